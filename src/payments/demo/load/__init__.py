"""Customers who misbehave, for demonstrations and tests."""
