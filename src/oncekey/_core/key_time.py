"""When a key was made, where it tells: UUIDs of version 7 and ULIDs begin with the time.

The time is that of whoever made the key, so it is as true as that machine's clock.
"""

from __future__ import annotations

import re

_UUID7 = re.compile(r"([0-9a-f]{8})-?([0-9a-f]{4})-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}")
_ULID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")
_CROCKFORD = {digit: at for at, digit in enumerate("0123456789abcdefghjkmnpqrstvwxyz")}


def made_at(key: str, first_sent: float | None = None) -> float | None:
    """Seconds since 1970; None for a key that does not tell. Where a client says when it first sent
    the request, its word counts.

    >>> made_at("018bcfe5-6800-7000-8000-000000000000")
    1700000000.0
    >>> made_at("01HF7YAT000000000000000000")
    1700000000.0
    >>> made_at("order-17")
    """
    if first_sent is not None:
        return first_sent
    text = key.lower()
    if uuid := _UUID7.fullmatch(text):
        return int(uuid[1] + uuid[2], 16) / 1000
    if _ULID.fullmatch(text):
        ms = 0
        for digit in text[:10]:
            ms = ms << 5 | _CROCKFORD[digit]
        return ms / 1000
    return None
