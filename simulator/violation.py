"""A violation: a promise was broken."""

from __future__ import annotations


class Violation(Exception):
    """Which promise, and how."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
