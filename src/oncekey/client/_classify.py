"""Classify a response: it is final, the request should be retried, or its key belongs to another
request.

Retried is what may change by itself: no complete response, 5xx, 408, 425, 429, and a first request
still in flight. What the server says (`Stripe-Should-Retry`, `X-Should-Retry`, `retryable` in a
problem, `Transient-Error`) overrides the status. A stored response (a replay) is final whatever its
status: a retry returns the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from oncekey._core.backoff import retry_after
from oncekey._core.error_bodies import SHAPES
from oncekey._core.http_dates import parse_http_date
from oncekey._core.problems import MEANINGS, Kind, Problem
from oncekey._core.profiles import Profile
from oncekey._core.reasons import GaveUp, GiveUpKind
from oncekey._core.values import value

BODY_BYTES_MAX = 65_536
"""Longer bodies are not parsed: no refusal is longer."""
_TRANSIENT_STATUSES = frozenset({408, 425, 429})
_SHOULD_RETRY = ("stripe-should-retry", "x-should-retry")
_PROBLEM = "urn:oncekey:problem:"
_TRANSIENT_KINDS = frozenset(
    {
        Kind.IN_FLIGHT,
        Kind.NEWER_RECORD,
        Kind.NO_ROOM,
        Kind.OVER_QUOTA,
        Kind.STORE_UNAVAILABLE,
        Kind.UNSETTLED,
    }
)
_AWS_TRANSIENT = frozenset(
    {
        *("BandwidthLimitExceeded", "EC2Throttled", "LimitExceeded", "PriorRequestNotComplete"),
        *("ProvisionedThroughputExceeded", "RequestLimitExceeded", "RequestThrottled"),
        *("RequestTimeout", "SlowDown", "Throttled", "Throttling", "TooManyRequests"),
    }
)
"""AWS error codes for throttling and slow requests, mostly sent with 400."""
_FINAL_KINDS = frozenset(
    {
        Kind.OUTCOME_UNKNOWN,
        Kind.ANSWER_NOT_KEPT,
        Kind.STALE_ANSWER,
        Kind.TOO_OLD,
        Kind.KEY_EXPIRED,
        Kind.TRANSACTION_ENDED,
    }
)


class HeaderLookup(Protocol):
    """Case-insensitive headers."""

    def get(self, name: str, /) -> str | None: ...


@value
class WholeResponse:
    """A complete response."""

    status: int
    headers: HeaderLookup
    body: bytes
    native: Any = None
    """The HTTP library's own response object."""


@value
class NoResponse:
    """No response, or an incomplete one. The server may or may not have carried out the request."""

    error: Exception
    sent: bool = True
    """False if no connection was made: then the request was not carried out."""


@value
class Final:
    """Give the response to the caller."""

    gave_up: GaveUp | None = None
    """Why there is no retry, although the response is not an outcome."""


FINAL = Final()
OUTCOME_UNKNOWN = Final(
    GaveUp(GiveUpKind.UNKNOWN, "the server says that nobody knows what became of it")
)


@value
class RetryLater:
    """Send the same request with the same key later."""

    retry_after_s: float | None = None


@value
class Mismatched:
    """The key belongs to another request: a retry cannot help, and the caller must know."""

    problem: Problem


Classification = Final | RetryLater | Mismatched


def is_replay(headers: HeaderLookup, profile: Profile) -> bool:
    """Whether the server marks this as the stored response of an earlier attempt."""
    if profile.replay_marker is None:
        return False
    name, marker = profile.replay_marker
    return (headers.get(name) or "").strip().lower() == marker


def classify(
    response: WholeResponse | NoResponse, profile: Profile, now_wall: float
) -> Classification:
    """Decide what to do after a response, or the lack of one."""
    if isinstance(response, NoResponse):
        return RetryLater()
    if response.status < 400:
        return FINAL
    content = _json(response.body)
    kind = _kind(response, content, profile)
    if kind is Kind.MISMATCH:
        return Mismatched(_mismatch(content))
    if response.headers.get("idempotency-outcome") == "unknown":  # a retry does not run
        return OUTCOME_UNKNOWN
    if is_replay(response.headers, profile):
        return FINAL
    if not _is_transient(response, content, kind, profile):
        return OUTCOME_UNKNOWN if kind is Kind.OUTCOME_UNKNOWN else FINAL
    asked = response.headers.get("retry-after")
    if asked is None:
        return RetryLater()
    # A date is by the server's clock, which may differ from ours by hours.
    there = parse_http_date((response.headers.get("date") or "").strip())
    return RetryLater(retry_after(asked, now_wall if there is None else there))


def _is_transient(
    response: WholeResponse, content: Any, kind: Kind | None, profile: Profile
) -> bool:
    for name in _SHOULD_RETRY:
        header = (response.headers.get(name) or "").strip().lower()
        if header in ("true", "false"):
            return header == "true"
    if kind is not None and isinstance(retryable := _member(content, "retryable"), bool):
        return retryable
    if kind in _TRANSIENT_KINDS or response.status >= 500 or response.status in _TRANSIENT_STATUSES:
        return True
    if profile.shape == "aws" and _code(response, content, "aws") in _AWS_TRANSIENT:
        return True
    if (response.headers.get(profile.transient_header or "transient-error") or "") == "true":
        return True
    # A 409 without a reason: Stripe's means a first request in flight, and its own clients retry
    # it. Elsewhere it is more likely the application's own, unless it has a Retry-After.
    if response.status == 409 and kind not in _FINAL_KINDS:
        return profile.shape == "stripe" or response.headers.get("retry-after") is not None
    return False


def _mismatch(content: Any) -> Problem:
    fields = _member(content, "fields")
    words = (
        _member(content, "detail"),
        _member(content, "message"),
        _member(_member(content, "error"), "message"),
        _member(_first(_member(content, "errors")), "detail"),
        _member(_first(_member(content, "details")), "description"),
    )
    detail = next((header for header in words if isinstance(header, str) and header), None)
    return Problem(
        Kind.MISMATCH,
        f"The server says that this key belongs to another request: {detail or 'without details.'} "
        "To retry, send the first request unchanged; for another operation, use a new key.",
        fields=tuple(map(str, fields)) if isinstance(fields, list) else (),
    )


# ------------------------------------------------------------------------- names of refusals
#
# These invert the tables that write refusals, so that both sides cannot drift apart.


def _kind(response: WholeResponse, content: Any, profile: Profile) -> Kind | None:
    problem = _member(content, "type")
    if isinstance(problem, str) and problem.startswith(_PROBLEM):
        name = problem.removeprefix(_PROBLEM)
        return Kind(name) if name in Kind._value2member_map_ else None
    shape = profile.shape if isinstance(profile.shape, str) else ""
    if shape not in _CODE_READERS:
        return _kind_by_ietf_draft(response, content)
    kind = _KIND_BY_CODE[shape].get(_code(response, content, shape))
    if kind is None and _member(_member(content, "error"), "type") == "idempotency_error":
        return Kind.IN_FLIGHT if response.status == 409 else Kind.MISMATCH
    if shape == "adyen" and kind is Kind.IN_FLIGHT:  # 704 means both; only one is transient
        transient = response.headers.get("transient-error") == "true"
        return Kind.IN_FLIGHT if transient else Kind.MISMATCH
    return kind


def _kind_by_ietf_draft(response: WholeResponse, content: Any) -> Kind | None:
    """The IETF draft defines statuses but no names, so look for the word in type and title."""
    text = f"{_member(content, 'type')} {_member(content, 'title')}".lower()
    if "idempotency" not in text:
        return None
    return {409: Kind.IN_FLIGHT, 422: Kind.MISMATCH}.get(response.status)


_CODE_READERS: Mapping[str, Callable[[Any], Any]] = {
    "stripe": lambda content: _member(_member(content, "error"), "code"),
    "square": lambda content: _member(_first(_member(content, "errors")), "code"),
    "paypal": lambda content: _member(_first(_member(content, "details")), "issue"),
    "adyen": lambda content: _member(content, "errorCode"),
    "aws": lambda content: _member(content, "__type"),
    "azure": lambda content: _member(_member(content, "error"), "code"),
    "gcp": lambda content: (
        _member(_first(_member(_member(content, "error"), "details")), "reason")
        or _member(_member(content, "error"), "status")
    ),
}


def _code(response: WholeResponse, content: Any, shape: str) -> str:
    """Return the error code of this response in this provider's error format."""
    return _strip_namespace(
        _CODE_READERS[shape](content) or response.headers.get("x-amzn-errortype")
    )


def _strip_namespace(code: Any) -> str:
    """Remove the namespace before an error code and the suffixes after it."""
    if not isinstance(code, str):
        return ""
    return code.rpartition("#")[2].partition(":")[0].removesuffix("Exception")


def _invert_error_bodies(shape: str) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    for kind in (Kind.IN_FLIGHT, *Kind):  # first, where one code means two kinds: see `_kind`
        body = SHAPES[shape](Problem(kind, ""), MEANINGS[kind].status, "").body
        kinds.setdefault(_strip_namespace(_CODE_READERS[shape](body)), kind)
    return kinds


def _json(body: bytes) -> Any:
    if len(body) > BODY_BYTES_MAX or not body.lstrip().startswith(b"{"):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _member(content: Any, name: str) -> Any:
    return content.get(name) if isinstance(content, dict) else None


def _first(content: Any) -> Any:
    return content[0] if isinstance(content, list) and content else None


_KIND_BY_CODE = {shape: _invert_error_bodies(shape) for shape in _CODE_READERS}
_KIND_BY_CODE["gcp"]["ABORTED"] = Kind.IN_FLIGHT  # Google's services do not use our reasons
