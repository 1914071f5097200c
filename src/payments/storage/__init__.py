"""The database: tables, rows, ids, transactions."""
