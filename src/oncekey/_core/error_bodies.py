"""Bodies of refusals: problem+json, or what the clients of a provider expect.

A shape is a function `(problem, status, docs_url) -> Shaped`; `docs_url` is None if there is no
page. Codes that a provider publishes are used as published. If it has none, the kind's own name is
used in the provider's spelling, so that a client can tell all kinds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from oncekey._core.problems import MEANINGS, Kind, Problem, as_json, detail_of, docs_link


@dataclass(frozen=True, slots=True)
class Shaped:
    """A body that `json` can write, with the headers that describe it."""

    body: Mapping[str, Any]
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


Shape = Callable[[Problem, int, str | None], Shaped]


def problem_json(problem: Problem, status: int, docs_url: str | None) -> Shaped:
    return Shaped(as_json(problem, status, docs_url), b"application/problem+json")


# -------------------------------------------------------------------------------- stripe

_ABOUT_THE_FIRST = frozenset(
    {
        Kind.MISMATCH,
        Kind.IN_FLIGHT,
        Kind.OUTCOME_UNKNOWN,
        Kind.ANSWER_NOT_KEPT,
        Kind.STALE_ANSWER,
        Kind.TOO_OLD,
        Kind.KEY_EXPIRED,
    }
)
_STRIPE_CODES = {Kind.IN_FLIGHT: "idempotency_key_in_use", Kind.NOT_FOUND: "resource_missing"}


def stripe(problem: Problem, status: int, docs_url: str | None) -> Shaped:
    """Write Stripe's errors. `error` must be the top-level member: stripe-node takes any JSON body
    without it for success, whatever the status. `type` decides which exception its libraries raise.
    """
    kind = problem.kind
    if status >= 500:
        error_type = "api_error"
    else:
        error_type = "idempotency_error" if kind in _ABOUT_THE_FIRST else "invalid_request_error"
    error = {
        "type": error_type,
        "code": _STRIPE_CODES.get(kind, _snake(kind)),
        "message": detail_of(problem),
    }
    if docs_url is not None:
        error["doc_url"] = docs_link(kind, docs_url)
    return Shaped({"error": error})


# -------------------------------------------------------------------------------- square

_SQUARE_CODES = {
    Kind.MISSING_KEY: "MISSING_REQUIRED_PARAMETER",
    Kind.INVALID_KEY: "INVALID_VALUE",
    Kind.NO_TENANT: "UNAUTHORIZED",
    Kind.MALFORMED_REQUEST: "BAD_REQUEST",
    Kind.TOO_LARGE: "REQUEST_ENTITY_TOO_LARGE",
    Kind.MISMATCH: "IDEMPOTENCY_KEY_REUSED",
    Kind.IN_FLIGHT: "CONFLICT",
    Kind.OVER_QUOTA: "RATE_LIMITED",
    Kind.NEWER_RECORD: "SERVICE_UNAVAILABLE",
    Kind.NO_ROOM: "SERVICE_UNAVAILABLE",
    Kind.STORE_UNAVAILABLE: "SERVICE_UNAVAILABLE",
    Kind.UNSETTLED: "SERVICE_UNAVAILABLE",
    Kind.NOT_FOUND: "NOT_FOUND",
}
_ABOUT_THE_KEY = frozenset({Kind.MISSING_KEY, Kind.INVALID_KEY, Kind.MISMATCH})


def square(problem: Problem, status: int, docs_url: str | None) -> Shaped:
    kind = problem.kind
    category = "API_ERROR" if status >= 500 else "INVALID_REQUEST_ERROR"
    error = {
        "category": "AUTHENTICATION_ERROR" if status == 401 else category,
        "code": _SQUARE_CODES.get(kind, _snake(kind).upper()),
        "detail": detail_of(problem),
    }
    if kind in _ABOUT_THE_KEY:
        error["field"] = "idempotency_key"
    return Shaped({"errors": [error]})


# -------------------------------------------------------------------------------- paypal

_PAYPAL_NAMES = {
    401: "AUTHENTICATION_FAILURE",
    404: "RESOURCE_NOT_FOUND",
    409: "RESOURCE_CONFLICT",
    422: "UNPROCESSABLE_ENTITY",
    429: "RATE_LIMIT_REACHED",
    503: "SERVICE_UNAVAILABLE",
}
_PAYPAL_ISSUES = {
    Kind.MISSING_KEY: "PAYPAL_REQUEST_ID_REQUIRED",
    Kind.MISMATCH: "PAYPAL_REQUEST_ID_PREVIOUSLY_USED",
    Kind.IN_FLIGHT: "PREVIOUS_REQUEST_IN_PROGRESS",
}


def paypal(problem: Problem, status: int, docs_url: str | None) -> Shaped:
    issue = _PAYPAL_ISSUES.get(problem.kind, _snake(problem.kind).upper())
    body: dict[str, Any] = {
        "name": _PAYPAL_NAMES.get(status, "INVALID_REQUEST"),
        "message": MEANINGS[problem.kind].title,
        "details": [{"issue": issue, "description": detail_of(problem)}],
    }
    if docs_url is not None:
        body["links"] = [{"href": docs_link(problem.kind, docs_url), "rel": "information_link"}]
    return Shaped(body)


# --------------------------------------------------------------------------------- adyen

# 704: request already processed or in progress. 703: a resource is not available for now.
_ADYEN_CODES = {
    Kind.IN_FLIGHT: "704",
    Kind.MISMATCH: "704",
    Kind.NEWER_RECORD: "703",
    Kind.NO_ROOM: "703",
    Kind.STORE_UNAVAILABLE: "703",
    Kind.UNSETTLED: "703",
}


def adyen(problem: Problem, status: int, docs_url: str | None) -> Shaped:
    error_type = "internal" if status >= 500 else "validation"
    body = {
        "status": status,
        "errorCode": _ADYEN_CODES.get(problem.kind, str(problem.kind)),
        "message": detail_of(problem),
        "errorType": "security" if status == 401 else error_type,
    }
    return Shaped(body)


# ---------------------------------------------------------------------------- aws, azure

# botocore retries TransactionInProgressException for its name, whatever the status says.
_AWS_CODES = {
    Kind.MISSING_KEY: "MissingParameter",
    Kind.INVALID_KEY: "InvalidParameterValue",
    Kind.MISMATCH: "IdempotentParameterMismatch",
    Kind.IN_FLIGHT: "TransactionInProgressException",
    Kind.OVER_QUOTA: "ThrottlingException",
    Kind.NEWER_RECORD: "ServiceUnavailable",
    Kind.NO_ROOM: "ServiceUnavailable",
    Kind.STORE_UNAVAILABLE: "ServiceUnavailable",
    Kind.UNSETTLED: "ServiceUnavailable",
}


def aws(problem: Problem, status: int, docs_url: str | None) -> Shaped:
    """Write AWS's errors. The JSON protocol reads the code from the body, REST from the header."""
    code = _AWS_CODES.get(problem.kind, _camel(problem.kind))
    body = {"__type": code, "message": detail_of(problem)}
    return Shaped(body, headers=((b"x-amzn-errortype", code.encode("ascii")),))


def azure(problem: Problem, status: int, docs_url: str | None) -> Shaped:
    """Write Azure's errors. Its guidelines want the body's code in a header, too."""
    code = _camel(problem.kind)
    error = {"code": code, "message": detail_of(problem)}
    return Shaped({"error": error}, headers=((b"x-ms-error-code", code.encode("ascii")),))


# ----------------------------------------------------------------------------------- gcp

# The canonical codes. ABORTED: retry on a higher level. FAILED_PRECONDITION: do not retry before
# somebody has put the state right. UNAVAILABLE: retry.
_GCP_CODES = {
    Kind.NO_TENANT: "UNAUTHENTICATED",
    Kind.IN_FLIGHT: "ABORTED",
    Kind.ANSWER_NOT_KEPT: "ALREADY_EXISTS",
    Kind.STALE_ANSWER: "ALREADY_EXISTS",
    Kind.KEY_EXPIRED: "ALREADY_EXISTS",
    Kind.OUTCOME_UNKNOWN: "FAILED_PRECONDITION",
    Kind.TOO_OLD: "FAILED_PRECONDITION",
    Kind.OVER_QUOTA: "RESOURCE_EXHAUSTED",
    Kind.NEWER_RECORD: "UNAVAILABLE",
    Kind.NO_ROOM: "UNAVAILABLE",
    Kind.STORE_UNAVAILABLE: "UNAVAILABLE",
    Kind.TRANSACTION_ENDED: "FAILED_PRECONDITION",
    Kind.UNSETTLED: "UNAVAILABLE",
    Kind.NOT_FOUND: "NOT_FOUND",
}
_GCP_TYPE = "type.googleapis.com/google.rpc."


def gcp(problem: Problem, status: int, docs_url: str | None) -> Shaped:
    reason = _snake(problem.kind).upper()
    error = {
        "code": status,
        "message": detail_of(problem),
        "status": _GCP_CODES.get(problem.kind, "INVALID_ARGUMENT"),
        "details": [{"@type": f"{_GCP_TYPE}ErrorInfo", "reason": reason, "domain": "oncekey"}],
    }
    return Shaped({"error": error})


SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "problem": problem_json,
        "stripe": stripe,
        "square": square,
        "paypal": paypal,
        "adyen": adyen,
        "aws": aws,
        "azure": azure,
        "gcp": gcp,
    }
)


def _snake(kind: Kind) -> str:
    return kind.replace("-", "_")


def _camel(kind: Kind) -> str:
    return "".join(part.capitalize() for part in kind.split("-"))
