"""What an answer means for its sender: it is final, it is to be asked for again, or the key belongs
to another request.

Retried is what may end differently without anybody changing anything: no whole answer, 5xx, 408,
425, 429, and a first request that is still in flight. A server's own word (`Stripe-Should-Retry`,
`X-Should-Retry`, `retryable` in a problem, `Transient-Error`) goes before the status. A kept answer
is final whatever its status: asking again brings the same.
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
"""No refusal is longer: what is longer is not read for one."""
_AGAIN = frozenset({408, 425, 429})
_SHOULD_RETRY = ("stripe-should-retry", "x-should-retry")
_PROBLEM = "urn:oncekey:problem:"
_PASSING = frozenset(
    {
        Kind.IN_FLIGHT,
        Kind.NEWER_RECORD,
        Kind.NO_ROOM,
        Kind.OVER_QUOTA,
        Kind.STORE_UNAVAILABLE,
        Kind.UNSETTLED,
    }
)
_AWS_PASSING = frozenset(
    {
        *("BandwidthLimitExceeded", "EC2Throttled", "LimitExceeded", "PriorRequestNotComplete"),
        *("ProvisionedThroughputExceeded", "RequestLimitExceeded", "RequestThrottled"),
        *("RequestTimeout", "SlowDown", "Throttled", "Throttling", "TooManyRequests"),
    }
)
"""What AWS says of too much at once, or of too slow a request, mostly with 400."""
_SETTLED = frozenset(
    {
        Kind.OUTCOME_UNKNOWN,
        Kind.ANSWER_NOT_KEPT,
        Kind.STALE_ANSWER,
        Kind.TOO_OLD,
        Kind.KEY_EXPIRED,
        Kind.TRANSACTION_ENDED,
    }
)


class Headers(Protocol):
    """Looked up whatever the case."""

    def get(self, name: str, /) -> str | None: ...


@value
class Reply:
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes
    native: Any = None
    """As the library that received it has it."""


@value
class Broken:
    """No answer, or not a whole one. Whether the request was carried out is not known."""

    error: Exception
    sent: bool = True
    """False where no connection was made: then it was not carried out."""


@value
class Final:
    """It is the caller's."""

    gave_up: GaveUp | None = None
    """Why it is not asked for again, though it is no outcome."""


FINAL = Final()
NOBODY_KNOWS = Final(
    GaveUp(GiveUpKind.UNKNOWN, "the server says that nobody knows what became of it")
)


@value
class Again:
    """The same request with the same key, later."""

    retry_after_s: float | None = None


@value
class Mismatched:
    """The key belongs to another request: no retry helps, and the caller has to know."""

    problem: Problem


Verdict = Final | Again | Mismatched


def replayed(headers: Headers, profile: Profile) -> bool:
    """Whether the server says that this is the kept answer of an earlier attempt."""
    if profile.replay_marker is None:
        return False
    name, says = profile.replay_marker
    return (headers.get(name) or "").strip().lower() == says


def judge(answer: Reply | Broken, profile: Profile, now_wall: float) -> Verdict:
    """What to do now."""
    if isinstance(answer, Broken):
        return Again()
    if answer.status < 400:
        return FINAL
    said = _json(answer.body)
    kind = _kind(answer, said, profile)
    if kind is Kind.MISMATCH:
        return Mismatched(_mismatch(said))
    if answer.headers.get("idempotency-outcome") == "unknown":  # a retry does not run
        return NOBODY_KNOWS
    if replayed(answer.headers, profile):
        return FINAL
    if not _passing(answer, said, kind, profile):
        return NOBODY_KNOWS if kind is Kind.OUTCOME_UNKNOWN else FINAL
    asked = answer.headers.get("retry-after")
    if asked is None:
        return Again()
    # A date is one of the server's clock, which may be hours away from ours.
    there = parse_http_date((answer.headers.get("date") or "").strip())
    return Again(retry_after(asked, now_wall if there is None else there))


def _passing(reply: Reply, said: Any, kind: Kind | None, profile: Profile) -> bool:
    for name in _SHOULD_RETRY:
        word = (reply.headers.get(name) or "").strip().lower()
        if word in ("true", "false"):
            return word == "true"
    if kind is not None and isinstance(retryable := _member(said, "retryable"), bool):
        return retryable
    if kind in _PASSING or reply.status >= 500 or reply.status in _AGAIN:
        return True
    if profile.shape == "aws" and _code(reply, said, "aws") in _AWS_PASSING:
        return True
    if (reply.headers.get(profile.transient_header or "transient-error") or "") == "true":
        return True
    # A 409 that does not say why: Stripe's is a first request in flight, and its own clients retry
    # every one of them. Elsewhere it is more likely the application's own, unless it says when to
    # come back.
    if reply.status == 409 and kind not in _SETTLED:
        return profile.shape == "stripe" or reply.headers.get("retry-after") is not None
    return False


def _mismatch(said: Any) -> Problem:
    fields = _member(said, "fields")
    words = (
        _member(said, "detail"),
        _member(said, "message"),
        _member(_member(said, "error"), "message"),
        _member(_first(_member(said, "errors")), "detail"),
        _member(_first(_member(said, "details")), "description"),
    )
    detail = next((word for word in words if isinstance(word, str) and word), None)
    return Problem(
        Kind.MISMATCH,
        f"The server says that this key belongs to another request: {detail or 'without details.'} "
        "To retry, send the first request unchanged; for another operation, use a new key.",
        fields=tuple(map(str, fields)) if isinstance(fields, list) else (),
    )


# ------------------------------------------------------------------------- names of refusals
#
# The same tables that write refusals are read backwards, so that both sides cannot drift apart.


def _kind(reply: Reply, said: Any, profile: Profile) -> Kind | None:
    problem = _member(said, "type")
    if isinstance(problem, str) and problem.startswith(_PROBLEM):
        name = problem.removeprefix(_PROBLEM)
        return Kind(name) if name in Kind._value2member_map_ else None
    shape = profile.shape if isinstance(profile.shape, str) else ""
    if shape not in _READ:
        return _by_the_draft(reply, said)
    kind = _KINDS[shape].get(_code(reply, said, shape))
    if kind is None and _member(_member(said, "error"), "type") == "idempotency_error":
        return Kind.IN_FLIGHT if reply.status == 409 else Kind.MISMATCH
    if shape == "adyen" and kind is Kind.IN_FLIGHT:  # 704 says both; only one of them passes
        transient = reply.headers.get("transient-error") == "true"
        return Kind.IN_FLIGHT if transient else Kind.MISMATCH
    return kind


def _by_the_draft(reply: Reply, said: Any) -> Kind | None:
    """The IETF's draft fixes statuses, and no names: what a problem is about is said in words."""
    about = f"{_member(said, 'type')} {_member(said, 'title')}".lower()
    if "idempotency" not in about:
        return None
    return {409: Kind.IN_FLIGHT, 422: Kind.MISMATCH}.get(reply.status)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "stripe": lambda said: _member(_member(said, "error"), "code"),
    "square": lambda said: _member(_first(_member(said, "errors")), "code"),
    "paypal": lambda said: _member(_first(_member(said, "details")), "issue"),
    "adyen": lambda said: _member(said, "errorCode"),
    "aws": lambda said: _member(said, "__type"),
    "azure": lambda said: _member(_member(said, "error"), "code"),
    "gcp": lambda said: (
        _member(_first(_member(_member(said, "error"), "details")), "reason")
        or _member(_member(said, "error"), "status")
    ),
}


def _code(reply: Reply, said: Any, shape: str) -> str:
    """What this answer is called where errors have this shape."""
    return _plain(_READ[shape](said) or reply.headers.get("x-amzn-errortype"))


def _plain(code: Any) -> str:
    """Without the name space before it, and what the service's model adds behind."""
    if not isinstance(code, str):
        return ""
    return code.rpartition("#")[2].partition(":")[0].removesuffix("Exception")


def _backwards(shape: str) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    for kind in (Kind.IN_FLIGHT, *Kind):  # where one code stands for two kinds: see `_kind`
        body = SHAPES[shape](Problem(kind, ""), MEANINGS[kind].status, "").body
        kinds.setdefault(_plain(_READ[shape](body)), kind)
    return kinds


def _json(body: bytes) -> Any:
    if len(body) > BODY_BYTES_MAX or not body.lstrip().startswith(b"{"):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _member(said: Any, name: str) -> Any:
    return said.get(name) if isinstance(said, dict) else None


def _first(said: Any) -> Any:
    return said[0] if isinstance(said, list) and said else None


_KINDS = {shape: _backwards(shape) for shape in _READ}
_KINDS["gcp"]["ABORTED"] = Kind.IN_FLIGHT  # its own services give no reason of ours
