"""Movements of money: orders, settlement, ledger, reconciliation."""
