"""Ids and secrets: the one place of this package that asks for chance.

An id begins with what it names (`ch_`, `pi_`) and goes on with the time at which it was made, so
that ids sort as their objects were created: lists need no index but that of the ids.
"""

from __future__ import annotations

import random
import re
import secrets

from payments import clock

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""In the order of their bytes, so that text sorts as numbers do."""
_TIME_CHARS = 9
_CHANCE_CHARS = 15

_GENERATED = "-7a70-8a70-"
"""Where a UUID has its version, and else mere chance."""
_GENERATED_KEY = re.compile(f"[0-9a-f]{{8}}-[0-9a-f]{{4}}{_GENERATED}[0-9a-f]{{12}}")

_RANDOM = random.Random()  # noqa: S311  (spreads retries, protects nothing)


def new(prefix: str) -> str:
    """A new id: `ch_` and 24 letters and digits."""
    return f"{prefix}_{_in_digits(int(clock.wall() * 1e6))}{random_letters(_CHANCE_CHARS)}"


def generated_key() -> str:
    """An idempotency key for a request that brings none: a UUID of version 7, by which oncekey
    knows that it is new, also after the database lost what was there before.
    """
    ms = f"{int(clock.wall() * 1000):012x}"
    return f"{ms[:8]}-{ms[8:]}{_GENERATED}{secrets.token_hex(6)}"


def is_generated_key(key: str) -> bool:
    """Whether a key was made here, not by a client."""
    return _GENERATED_KEY.fullmatch(key) is not None


def random_letters(count: int) -> str:
    """Letters and digits that nobody can guess."""
    drawn = int.from_bytes(secrets.token_bytes(count), "big")
    text = ""
    for _ in range(count):
        drawn, rest = divmod(drawn, 62)
        text += _DIGITS[rest]
    return text


def jitter() -> float:
    """A number from 0 up to 1, to spread what would otherwise come at once."""
    return _RANDOM.random()


def _in_digits(number: int) -> str:
    text = ""
    for _ in range(_TIME_CHARS):
        number, rest = divmod(number, 62)
        text = _DIGITS[rest] + text
    return text
