"""Records in PostgreSQL."""
