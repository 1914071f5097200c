"""When a request was first sent: how a server refuses a retry that is older than its memory.

A key alone cannot tell a new request from a retry that comes after its record expired, so such a
retry runs again (E67). OASIS Repeatable Requests close that hole: the client also says when it
first sent the request, and a request from before the server's memory is refused instead of run.

The client's clock may be wrong. A stamp is therefore accepted only within *half* the retention,
in both directions: a request whose stamp is at most half a retention ahead of the truth is
accepted for at most one retention after it was really sent, and that long its record is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncekey._core.http_dates import parse_http_date
from oncekey._core.problems import Kind, Problem


def first_sent(lines: Sequence[bytes]) -> float | None:
    """What the header lines say, if there is one and it can be read; seconds since 1970."""
    return parse_http_date(lines[0].decode("latin-1").strip(" \t")) if len(lines) == 1 else None


def check_first_sent(
    lines: Sequence[bytes], name: str, now_wall: float, retention_s: float
) -> Problem | None:
    """Why a request is refused for the values of its first-sent header lines, None if it is not.

    `name` is the header's, for the words; `retention_s` is how long records of this route are kept.
    """
    sent = first_sent(lines)
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
