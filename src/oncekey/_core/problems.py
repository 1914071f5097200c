"""Refusals as values: what is wrong, whether a retry helps, and what to do.

A profile (`oncekey._core.profiles`) decides what they look like on the wire. Nothing here gets the
key or a value of the request, so nothing here can leak one.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from oncekey._core.backoff import RETRY_AFTER_S_MAX

DETAIL_CHARS_MAX = 1000
FIELDS_MAX = 32
FIELD_CHARS_MAX = 100


class Kind(enum.StrEnum):
    """The stable names of refusals: the discriminator for clients, whatever the status says."""

    MISSING_KEY = "missing-key"
    INVALID_KEY = "invalid-key"
    NO_TENANT = "no-tenant"
    MALFORMED_REQUEST = "malformed-request"
    TOO_LARGE = "request-too-large"
    MISMATCH = "mismatch"
    IN_FLIGHT = "in-flight"
    OUTCOME_UNKNOWN = "outcome-unknown"
    ANSWER_NOT_KEPT = "answer-not-kept"
    STALE_ANSWER = "stale-answer"
    NEWER_RECORD = "newer-record"
    TOO_OLD = "too-old"
    KEY_EXPIRED = "key-expired"
    OVER_QUOTA = "quota-exceeded"
    NO_ROOM = "no-room"
    STORE_UNAVAILABLE = "store-unavailable"
    TRANSACTION_ENDED = "transaction-ended"
    UNSETTLED = "unsettled"
    NOT_FOUND = "key-not-found"


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal."""

    kind: Kind
    detail: str
    retryable: bool = False
    """Whether the same request with the same key may succeed later if nothing changes."""
    retry_after_s: float | None = None
    fields: tuple[str, ...] = ()
    """On a mismatch: the top-level fields that differ, never their values."""
    location: bytes | None = None
    """If the response was not stored: the resource that it created."""
    advice: str = ""
    """What to do with the key now, if that differs from the advice of its kind."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What all refusals of one kind have in common."""

    title: str
    status: int
    """Unless a profile says otherwise."""
    advice: str
    """What to do with the key now, unless the refusal has its own advice."""


_SAME_KEY = "Wait, then send the same request with the same key."
_DONE = "Do not send it with a new key: it was done. Read what it created."

MEANINGS: Final[Mapping[Kind, Meaning]] = MappingProxyType(
    {
        Kind.MISSING_KEY: Meaning(
            "A key is required",
            400,
            "Send a key that is new for every operation and the same for every retry of it.",
        ),
        Kind.INVALID_KEY: Meaning(
            "The key cannot be used", 400, "Nothing was run. Send it again with a valid key."
        ),
        Kind.NO_TENANT: Meaning(
            "The request belongs to no account",
            401,
            "Nothing was run and the key is not spent: authenticate and send it again.",
        ),
        Kind.MALFORMED_REQUEST: Meaning(
            "The request cannot be read",
            400,
            "Nothing was run and the key is not spent: correct the request and send it again.",
        ),
        Kind.TOO_LARGE: Meaning(
            "The request is too large",
            413,
            "Nothing was run and the key is not spent: send a smaller request.",
        ),
        Kind.MISMATCH: Meaning(
            "The key belongs to another request",
            422,
            "To retry, send the first request unchanged. For another operation, use a new key.",
        ),
        Kind.IN_FLIGHT: Meaning("The first request is still running", 409, _SAME_KEY),
        # Clients that retry every 409 would try in vain, but harm nothing: it does not run again.
        Kind.OUTCOME_UNKNOWN: Meaning(
            "Nobody knows how the first request ended",
            409,
            "Do not send it with a new key before that is known: it could happen twice.",
        ),
        # Not 410, which makes webhook senders give up on the whole address.
        Kind.ANSWER_NOT_KEPT: Meaning("It was done, but its answer was not kept", 409, _DONE),
        Kind.STALE_ANSWER: Meaning("It was done, and answered in another version", 409, _DONE),
        Kind.NEWER_RECORD: Meaning("A newer release wrote this record", 503, _SAME_KEY),
        Kind.TOO_OLD: Meaning(
            "The request was first sent too long ago",
            412,
            "Find out whether the first try took effect before you send it with a new key.",
        ),
        Kind.KEY_EXPIRED: Meaning(
            "It was done, so long ago that its answer is not kept any more", 409, _DONE
        ),
        Kind.OVER_QUOTA: Meaning("The account has too much kept here", 429, _SAME_KEY),
        Kind.NO_ROOM: Meaning("The server has no room for the request's body", 503, _SAME_KEY),
        Kind.STORE_UNAVAILABLE: Meaning("The store of keys does not answer", 503, _SAME_KEY),
        Kind.TRANSACTION_ENDED: Meaning(
            "The handler ended its transaction itself",
            503,
            "Do not send it again before its service is put right: it could happen twice.",
        ),
        Kind.UNSETTLED: Meaning(
            "What became of the first request is not found out yet", 503, _SAME_KEY
        ),
        Kind.NOT_FOUND: Meaning(
            "Nothing is kept under this key",
            404,
            "It was never used here, or its record has expired.",
        ),
    }
)


# ------------------------------------------------------------------------------ rendering


def docs_link(kind: Kind, docs_url: str) -> str:
    """Return where this kind of refusal is explained: under an anchor of its name."""
    return f"{docs_url}#{kind}"


def as_json(problem: Problem, status: int, docs_url: str | None = None) -> dict[str, Any]:
    """Return the members of an application/problem+json body (RFC 9457)."""
    meaning = MEANINGS[problem.kind]
    body: dict[str, Any] = {
        "type": f"urn:oncekey:problem:{problem.kind}",
        "title": meaning.title,
        "status": status,
        "detail": detail_of(problem),
        "advice": problem.advice or meaning.advice,
        "retryable": problem.retryable,
    }
    if (wait_s := _wait_s(problem)) is not None:
        body["retry_after_s"] = round(wait_s, 3)
    if problem.fields:
        body["fields"] = [_clean(name, FIELD_CHARS_MAX) for name in problem.fields[:FIELDS_MAX]]
    if docs_url is not None:
        body["docs"] = docs_link(problem.kind, docs_url)
    return body


def reply_headers(problem: Problem, docs_url: str | None = None) -> list[tuple[bytes, bytes]]:
    """Return the headers of a refusal in every shape, except those that describe its body."""
    lines = [(b"cache-control", b"no-store")]
    if (wait_s := _wait_s(problem)) is not None:
        lines.append((b"retry-after", b"%d" % max(1, math.ceil(wait_s))))
    if problem.location and not _BREAKS_A_LINE.search(problem.location):
        lines.append((b"location", problem.location))
    if docs_url is not None and docs_url.startswith(("https://", "http://")):
        link = f'<{docs_link(problem.kind, docs_url)}>; rel="describedby"'
        lines.append((b"link", link.encode("ascii")))
    return lines


def detail_of(problem: Problem) -> str:
    """Return the detail, bounded and safe for any parser."""
    return _clean(problem.detail, DETAIL_CHARS_MAX)


def json_bytes(value: object) -> bytes:
    """Write JSON in ASCII that is harmless if it is read as HTML."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.translate(_HTML).encode("ascii")


_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_BREAKS_A_LINE = re.compile(rb"[\r\n\0]")


def _clean(text: str, chars_max: int) -> str:
    """Cut a text to this length, and replace lone surrogates, which strict parsers refuse."""
    return text[:chars_max].encode("utf-8", "replace").decode("utf-8")


def _wait_s(problem: Problem) -> float | None:
    wait_s = problem.retry_after_s
    if wait_s is None or math.isnan(wait_s):
        return None
    return max(0.0, min(wait_s, RETRY_AFTER_S_MAX))
