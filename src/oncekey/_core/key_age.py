"""Refuse keys that are older than memory: a retry after its record expired must not run as new.

Most keys tell nothing about their age, and such a retry runs again (E67). Two things help:

- A UUID of version 7 or a ULID says when it was made, by the clock of the machine that made it.
  What was done with a key is remembered for `Policy.memory_s` at least. An unknown key that is
  younger than that was surely not used before. An older one may have been, so it does not run. The
  clocks of the two machines may be `clock_skew_s` apart. A key from further in the future only says
  that one of the clocks is wrong.
- OASIS Repeatable Requests: the client also says when it first sent the request, and a request from
  before the server's memory is refused. The client's clock may be wrong, so the time is accepted
  only within *half* the retention, in both directions: a request whose time is at most half a
  retention ahead of the truth is accepted for at most one retention after it was really sent, and
  its record exists for that long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from oncekey._core.http_dates import parse_http_date
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem

_UUID7 = re.compile(r"([0-9a-f]{8})-?([0-9a-f]{4})-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}")
_ULID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")
_CROCKFORD = {digit: at for at, digit in enumerate("0123456789abcdefghjkmnpqrstvwxyz")}


def key_time(key: str, first_sent: float | None = None) -> float | None:
    """Return when a key was made, in seconds since 1970; None if the key does not say.

    If the client says when it first sent the request (`first_sent`), that counts.

    >>> key_time("018bcfe5-6800-7000-8000-000000000000")
    1700000000.0
    >>> key_time("01HF7YAT000000000000000000")
    1700000000.0
    >>> key_time("order-17")
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


def check_key_age(
    key: str, first_sent: float | None, now_wall: float, policy: Policy
) -> Problem | None:
    """Return why a request with an unknown key must not run as new; None if it may run."""
    if policy.key_age_s_max is None:
        return None
    made_at = key_time(key, first_sent)
    if made_at is None:
        return _age_unknown() if policy.key_time_required else None
    if made_at - now_wall > policy.clock_skew_s:
        return Problem(
            Kind.TOO_OLD,
            f"This key says that it was made more than {policy.clock_skew_s:g} seconds from now, "
            "so its age cannot be told, and it was not run. Correct the clock of the machine that "
            "made it, then send the request with a new key.",
        )
    return older_than_memory(key, first_sent, now_wall, policy)


def older_than_memory(
    key: str, first_sent: float | None, at_wall: float, policy: Policy
) -> Problem | None:
    """Return why a request that began at `at_wall` must not run: its key is older than memory."""
    made_at = key_time(key, first_sent)
    if policy.key_age_s_max is None or made_at is None or at_wall - made_at <= policy.key_age_s_max:
        return None
    return Problem(
        Kind.TOO_OLD,
        f"This key was made more than {policy.key_age_s_max:g} seconds ago, and what was done with "
        "it, if anything was, is not remembered any more. So it was not run. If the request is "
        "new, send it with a new key.",
    )


def _age_unknown() -> Problem:
    return Problem(
        Kind.INVALID_KEY,
        "This key does not tell when it was made, so it cannot be told from one whose record has "
        "expired. Send a UUID of version 7 or a ULID, made anew for each operation.",
    )


# ------------------------------------------------------------------ when a request was first sent


def parse_first_sent(lines: Sequence[bytes]) -> float | None:
    """Read the header lines, in seconds since 1970; None unless there is one valid line."""
    return parse_http_date(lines[0].decode("latin-1").strip(" \t")) if len(lines) == 1 else None


def check_first_sent(
    lines: Sequence[bytes], name: str, now_wall: float, retention_s: float
) -> Problem | None:
    """Return why the first-sent header lines of a request make it refused; None if they do not.

    `name` is the header's name, for the message. `retention_s` is the retention of this route.
    """
    sent = parse_first_sent(lines)
    if sent is None:
        return Problem(
            Kind.MALFORMED_REQUEST,
            f"Send one header {name}, with the time of the first try as an HTTP date, "
            "such as Sun, 06 Nov 1994 08:49:37 GMT.",
        )
    window_s = retention_s / 2
    if abs(now_wall - sent) <= window_s:
        return None
    where = "before" if sent < now_wall else "after"
    return Problem(
        Kind.TOO_OLD,
        f"The header {name} lies more than {window_s:g} seconds {where} this server's time. If the "
        "request is new, correct the clock of the machine that sent it.",
    )
