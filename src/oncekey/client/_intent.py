"""Intents: something to do once, its key, and how long that key may be used.

A key works only as long as its server remembers it. After that the server cannot tell a retry from
a new request, so a journal refuses to return the key and says why.
"""

from __future__ import annotations

from typing import Any

from oncekey._core.http_dates import parse_http_date
from oncekey._core.problems import Kind, Problem
from oncekey._core.validation import must_be_limits
from oncekey._core.values import value
from oncekey.client._errors import redacted_repr
from oncekey.client._key_placement import origin_of
from oncekey.client._retention import RETENTION_S, usable_until
from oncekey.client._transport import outcome_of
from oncekey.errors import Misuse, Unknown

NAME_CHARS_MAX = 512
NOTE_CHARS_MAX = 65_536
LIST_MAX = 10_000
_CHANGE_MIN = 0.05
"""The smallest relative change of a retention that counts; less is measuring error."""
_HOUR_S = 3600.0


@value
class Intent:
    """An intent that was begun and is not settled."""

    name: str
    key: str
    begun: float
    """Seconds since 1970."""
    until: float
    """Until when the key may be sent: a little less than the server is known to remember it."""
    origin: str
    """The server's origin, if given."""
    note: str
    """What the caller needs to resume it."""

    __repr__ = redacted_repr

    def must_be_usable(self, wall: float) -> None:
        """Raise `Unknown` if the server has forgotten the key by now."""
        if wall >= self.until:
            raise _forgotten_error(self)


def intent_from_row(
    name: str, key: str, begun: float, origin: str, note: str, *, retention_s: float
) -> Intent:
    """Make an intent from its row and its server's retention."""
    return Intent(name, key, begun, usable_until(begun, retention_s), origin, note)


def must_be_valid(name: str, note: str) -> None:
    if not all(isinstance(text, str) for text in (name, note)):
        raise Misuse(
            f"the name and note of an intent must be texts, not {type(name).__name__} and "
            f"{type(note).__name__}: for a note with several values use JSON, json.dumps(…)"
        )
    if not name or len(name) > NAME_CHARS_MAX or len(note) > NOTE_CHARS_MAX:
        raise Misuse(
            f"an intent has a name of 1 to {NAME_CHARS_MAX} characters, and a note of at most "
            f"{NOTE_CHARS_MAX}"
        )


def must_match_key(names: tuple[str, ...], key: str | None) -> None:
    if key is not None and len(names) != 1:
        raise Misuse(f"settle: one key belongs to one intent, not to {len(names)}")


def must_be_retention(retention_s: float | None) -> None:
    if retention_s is not None:
        must_be_limits("Journal", {"retention_s": retention_s})


def as_assumption(retention_s: float) -> float:
    """Encode an assumed retention, for a server that has not stated its own: negative."""
    return -retention_s


def is_news(known_s: float | None, server_s: float) -> bool:
    """Whether a server's stated retention changes what is known. Its routes may have different
    retentions, so the shortest one counts; any stated one replaces an assumption.
    """
    return known_s is None or known_s < 0 or server_s < known_s * (1 - _CHANGE_MIN)


def usable_retention(
    known_s: float | None, configured_s: float | None, recorded_s: float | None
) -> float:
    """Return how long keys may be used: as their server states, else as configured here, else the
    shorter of what an application recorded and what was assumed.
    """
    if known_s is not None and known_s > 0:
        return known_s
    fallbacks = [each for each in (recorded_s, known_s and -known_s) if each]
    return configured_s or min(fallbacks, default=RETENTION_S)


def normalize_origin(url: str) -> str:
    """Return the origin of a URL; any other text unchanged."""
    return origin_of(url) if "://" in url else url


def stated_retention(answer: Any, wall: float) -> tuple[str, float] | None:
    """Return the origin of this response and how long it says it remembers keys."""
    outcome = outcome_of(answer)
    if outcome is None or outcome.replayed or not outcome.expires:
        return None  # a stored response has less than the full time left
    until = parse_http_date(outcome.expires.strip())
    now = parse_http_date((answer.headers.get("date") or "").strip())  # by the same clock
    left_s = 0.0 if until is None else until - (wall if now is None else now)
    return (origin_of(str(answer.request.url)), left_s) if left_s > 0 else None


def _forgotten_error(intent: Intent) -> Unknown:
    hours = (intent.until - intent.begun) / _HOUR_S
    ago = f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    detail = (
        f"The intent {intent.name!r} was begun over {ago} ago and never settled; its "
        "server has forgotten the key by now, so sending it again could do it twice. Find out at "
        "the server whether it was done, then settle the intent; a new key begins it anew."
    )
    return Unknown(detail, Problem(Kind.TOO_OLD, detail))
