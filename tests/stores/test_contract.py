"""Every one of our stores keeps the contract."""

from oncekey.testing.contract import StoreContract


class TestStore(StoreContract):
    """Over each store in the table of conftest.py."""
