"""The crash tests run on every store on which several processes can meet."""

from tests.places import place

__all__ = ["place"]
