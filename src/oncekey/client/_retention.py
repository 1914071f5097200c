"""How long a key may be used: as long as its server remembers it.

After that the server cannot tell a retry from a new request, so the key is not sent any more.
"""

from __future__ import annotations

from oncekey._core.reasons import GaveUp, GiveUpKind

MARGIN_S_MAX = 120.0
"""Safety margin: a key returned now is used for a while, and its retries must arrive in time."""
FORGOTTEN = GaveUp(
    GiveUpKind.FORGOTTEN, "the server has forgotten its key by now: a retry could do it twice"
)

RETENTION_S = 86_400.0
"""The usual retention of servers, assumed until one states its own."""

EVERYWHERE = "*"
"""Stands for every origin whose retention is unknown."""


def usable_until(begun: float, retention_s: float) -> float:
    """Return until when a key made at `begun` may be sent."""
    return begun + retention_s - min(MARGIN_S_MAX, retention_s / 10)
