"""How long a key is worth something: as long as its server remembers it.

After that nobody can tell a retry from a new request, so nothing is sent under it any more.
"""

from __future__ import annotations

from oncekey._core.reasons import GaveUp, GiveUpKind

MARGIN_S_MAX = 120.0
"""A key that is given out now is used for a while: its retries must arrive in time as well."""
FORGOTTEN = GaveUp(
    GiveUpKind.FORGOTTEN, "the server has forgotten its key by now: a retry could do it twice"
)

RETENTION_S = 86_400.0
"""What most servers remember, until one says otherwise."""

EVERYWHERE = "*"
"""In place of an origin: how long keys are counted on where nothing else is known."""


def usable_until(begun: float, retention_s: float) -> float:
    """How long a key may be sent that was made at `begun`."""
    return begun + retention_s - min(MARGIN_S_MAX, retention_s / 10)
