"""How long a key is worth something: as long as its server remembers it.

After that nobody can tell a retry from a new request, so nothing is sent under it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MARGIN_S_MAX = 120.0
"""A key that is given out now is used for a while: its retries must arrive in time as well."""
FORGOTTEN = "the server has forgotten its key by now: a retry could do it twice"

_HOUR_S = 3600.0
RETENTION_S = 24 * _HOUR_S
"""What most servers remember, until one says otherwise."""

EVERYWHERE = "*"
"""In place of an origin: how long keys are counted on where nothing else is known."""

RELIED_S: Final[Mapping[str, float]] = MappingProxyType(
    {
        "oncekey": RETENTION_S,
        "ietf": RETENTION_S,
        "stripe": RETENTION_S,  # "at least 24 hours"
        "square": RETENTION_S,  # publishes nothing
        "paypal": 3 * _HOUR_S,  # the shortest of its APIs; orders v2 remembers 6 hours
        "adyen": 7 * RETENTION_S,  # "at least 7 days"
        "aws": 600.0,  # the shortest that one of its services publishes: DynamoDB
        "azure": 300.0,  # what was first sent longer ago is refused
        "gcp": _HOUR_S,  # "at least 60 minutes"
    }
)
"""By profile: what a caller can count on. A server may keep its keys for longer than it promises,
so this is at times less than what the same profile chooses for a server of ours.
"""


def usable_until(begun: float, retention_s: float) -> float:
    """How long a key may be sent that was made at `begun`."""
    return begun + retention_s - min(MARGIN_S_MAX, retention_s / 10)
