"""Retry any request. It happens once."""
