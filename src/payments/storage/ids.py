"""Ids, keys and secrets: the only module of this package that uses randomness.

An id begins with a prefix for its kind (`ch_`, `pi_`), followed by the time, so that ids sort by
creation: lists need no other index.
"""

from __future__ import annotations

import random
import re
import secrets

from payments import clock

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""In byte order, so that text sorts like numbers."""
_TIME_CHARS = 9
_CHANCE_CHARS = 15

_GENERATED = "-7a70-8a70-"
"""Where a UUID has its version and otherwise random digits."""
_GENERATED_KEY = re.compile(f"[0-9a-f]{{8}}-[0-9a-f]{{4}}{_GENERATED}[0-9a-f]{{12}}")

_RANDOM = random.Random()  # noqa: S311  (spreads retries, protects nothing)


def new(prefix: str) -> str:
    """Return a new id: `ch_` and 24 letters and digits."""
    return f"{prefix}_{_in_digits(int(clock.wall() * 1e6))}{random_letters(_CHANCE_CHARS)}"


def generated_key() -> str:
    """Return an idempotency key for a request without one.

    It is a UUID of version 7, so oncekey knows that it is new, even after the database was lost.
    """
    ms = f"{int(clock.wall() * 1000):012x}"
    return f"{ms[:8]}-{ms[8:]}{_GENERATED}{secrets.token_hex(6)}"


def is_generated_key(key: str) -> bool:
    """Whether a key was generated here, not by a client."""
    return _GENERATED_KEY.fullmatch(key) is not None


def random_letters(count: int) -> str:
    """Return unguessable letters and digits."""
    drawn = int.from_bytes(secrets.token_bytes(count), "big")
    text = ""
    for _ in range(count):
        drawn, rest = divmod(drawn, 62)
        text += _DIGITS[rest]
    return text


def jitter() -> float:
    """Return a random number from 0 up to 1."""
    return _RANDOM.random()


def _in_digits(number: int) -> str:
    text = ""
    for _ in range(_TIME_CHARS):
        number, rest = divmod(number, 62)
        text = _DIGITS[rest] + text
    return text
