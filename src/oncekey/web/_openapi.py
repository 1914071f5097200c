"""How a guarded operation is described in an OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oncekey._core.policy import Policy
from oncekey._core.problems import MEANINGS, Kind
from oncekey._core.profiles import BodyField, Header, Profile, QueryParameter

# What a client can do something about. An outage or a login is the application's own to describe.
_DESCRIBED = (
    Kind.MISSING_KEY,
    Kind.INVALID_KEY,
    Kind.IN_FLIGHT,
    Kind.OUTCOME_UNKNOWN,
    Kind.ANSWER_NOT_KEPT,
    Kind.MISMATCH,
)

_PROBLEM_SCHEMA = {
    "type": "object",
    "title": "IdempotencyProblem",
    "required": ["type", "title", "status", "detail", "advice", "retryable"],
    "properties": {
        "type": {"type": "string", "description": "What is wrong, as a stable name."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "advice": {"type": "string", "description": "What to do with the key now."},
        "retryable": {
            "type": "boolean",
            "description": "Whether the same request with the same key may succeed later.",
        },
        "retry_after_s": {"type": "number"},
        "fields": {"type": "array", "items": {"type": "string"}},
        "docs": {"type": "string"},
    },
}


def describe(profile: Profile, policy: Policy, *, declared: Iterable[str] = ()) -> dict[str, Any]:
    """The parts of an operation: its key as a parameter, and how it is refused.

    `declared` are the parameters that the operation declares itself, in lower case: none is there
    twice.
    """
    described: dict[str, Any] = {"responses": _responses(profile, policy)}
    parameters = _parameters(profile, policy, frozenset(declared))
    return described | ({"parameters": parameters} if parameters else {})


def _parameters(profile: Profile, policy: Policy, declared: frozenset[str]) -> list[dict[str, Any]]:
    match profile.key_in:
        case Header(name):
            place = "header"
        case QueryParameter(name):
            place = "query"
        case BodyField():
            return []  # the body is the application's to describe
    if name.lower() in declared:
        return []
    return [
        {
            "name": name,
            "in": place,
            "required": policy.required,
            "description": (
                "Makes this request safe to retry: new for each operation, and the same for every "
                "retry of it. A retry gets the first answer again, and nothing runs twice."
            ),
            "schema": {
                "type": "string",
                "minLength": policy.key_chars_min,
                "maxLength": profile.key_chars_max,
            },
        }
    ]


def _responses(profile: Profile, policy: Policy) -> dict[str, Any]:
    titles: dict[int, list[str]] = {}
    for kind in _DESCRIBED:
        if kind is not Kind.MISSING_KEY or policy.required:
            titles.setdefault(profile.status(kind), []).append(MEANINGS[kind].title)
    content: dict[str, Any] = {"application/json": {}}
    if profile.shape == "problem":
        content = {"application/problem+json": {"schema": _PROBLEM_SCHEMA}}
    return {
        str(status): {"description": _sentence(status, said), "content": content}
        for status, said in sorted(titles.items())
    }


def _sentence(status: int, titles: list[str]) -> str:
    # Frameworks answer 422 too: their description is replaced by this one, and must stay true.
    said = ["The request is not valid", *titles] if status == 422 else titles
    return ", or ".join([said[0], *(title[0].lower() + title[1:] for title in said[1:])]) + "."
