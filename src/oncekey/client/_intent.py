"""Intents: what somebody set out to do, under which key, and how long that key is worth something.

A key counts only as long as its server remembers it. After that nobody can tell a retry from a new
request, so a journal refuses to give the key out, and says why.
"""

from __future__ import annotations

from typing import Any

from oncekey._core.http_dates import parse_http_date
from oncekey._core.problems import Kind, Problem
from oncekey._core.validation import must_be_limits
from oncekey._core.values import value
from oncekey.client._errors import show
from oncekey.client._key_placement import origin_of
from oncekey.client._retention import RETENTION_S, usable_until
from oncekey.client._transport import outcome_of
from oncekey.errors import Misuse, Unknown

NAME_CHARS_MAX = 512
NOTE_CHARS_MAX = 65_536
LIST_MAX = 10_000
_APART = 0.05
"""The same retention, read at different moments, is no news."""
_HOUR_S = 3600.0


@value
class Intent:
    """Something that was begun and is not settled."""

    name: str
    key: str
    begun: float
    """Seconds since 1970."""
    until: float
    """How long the key may be sent: the server remembers it a little longer, as far as is known."""
    origin: str
    """Where it goes, if that was said."""
    note: str
    """What its caller wrote down to be able to resume it."""

    __repr__ = show

    def must_be_usable(self, wall: float) -> None:
        """`Unknown` is raised if the server has forgotten its key by now."""
        if wall >= self.until:
            raise _forgotten(self)


def found(
    name: str, key: str, begun: float, origin: str, note: str, *, retention_s: float
) -> Intent:
    """As it was written down, under what is known of its server by now."""
    return Intent(name, key, begun, usable_until(begun, retention_s), origin, note)


def must_fit(name: str, note: str) -> None:
    if not all(isinstance(text, str) for text in (name, note)):
        raise Misuse(
            f"the name and the note of an intent are texts, not {type(name).__name__} and "
            f"{type(note).__name__}: write a note of several things as JSON, json.dumps(…)"
        )
    if not name or len(name) > NAME_CHARS_MAX or len(note) > NOTE_CHARS_MAX:
        raise Misuse(
            f"an intent has a name of 1 to {NAME_CHARS_MAX} characters, and a note of at most "
            f"{NOTE_CHARS_MAX}"
        )


def must_be_one_of(names: tuple[str, ...], key: str | None) -> None:
    if key is not None and len(names) != 1:
        raise Misuse(f"settle: one key belongs to one intent, not to {len(names)}")


def must_last(retention_s: float | None) -> None:
    if retention_s is not None:
        must_be_limits("Journal", {"retention_s": retention_s})


def assumed(retention_s: float) -> float:
    """As it is written down for a server that has not said anything itself yet."""
    return -retention_s


def is_news(known_s: float | None, told_s: float) -> bool:
    """Whether what a server says changes what is known of it. Its routes may remember keys for
    different times, so the shortest that it ever said counts; what was assumed counts no more.
    """
    return known_s is None or known_s < 0 or told_s < known_s * (1 - _APART)


def counted_on(known_s: float | None, own_s: float | None, said_s: float | None) -> float:
    """How long keys count: as their server says, else as the application says (`own_s`). Who has
    no word of either counts on the shorter of what an application said once (`said_s`) and what was
    assumed.
    """
    if known_s is not None and known_s > 0:
        return known_s
    once = [each for each in (said_s, known_s and -known_s) if each]
    return own_s or min(once, default=RETENTION_S)


def where(url: str) -> str:
    """The origin of an address; whatever is no address stays as it is."""
    return origin_of(url) if "://" in url else url


def advertised(answer: Any, wall: float) -> tuple[str, float] | None:
    """The origin that gave this answer, and how long it says that it remembers keys."""
    told = outcome_of(answer)
    if told is None or told.replayed or not told.expires:
        return None  # a kept answer is some way through its time
    until = parse_http_date(told.expires.strip())
    now = parse_http_date((answer.headers.get("date") or "").strip())  # by the same clock
    left_s = 0.0 if until is None else until - (wall if now is None else now)
    return (origin_of(str(answer.request.url)), left_s) if left_s > 0 else None


def _forgotten(intent: Intent) -> Unknown:
    hours = (intent.until - intent.begun) / _HOUR_S
    ago = f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    detail = (
        f"The intent {intent.name!r} was begun over {ago} ago and never settled; its "
        "server has forgotten the key by now, so sending it again could do it twice. Find out at "
        "the server whether it was done, then settle the intent; a new key begins it anew."
    )
    return Unknown(detail, Problem(Kind.TOO_OLD, detail))
