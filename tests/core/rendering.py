"""Refusals as a profile says them, and a look into what a client gets."""

import json
from typing import Any

from oncekey._core.problems import Kind, Problem
from oncekey._core.profiles import Profile, profile, render
from oncekey._core.record import Answer

RETRYABLE = {
    Kind.IN_FLIGHT,
    Kind.NEWER_RECORD,
    Kind.NO_ROOM,
    Kind.OVER_QUOTA,
    Kind.STORE_UNAVAILABLE,
    Kind.UNSETTLED,
}


def refusal(kind: Kind, name: str | Profile) -> Answer:
    retryable = kind in RETRYABLE
    problem = Problem(kind, "Details.", retryable, retry_after_s=1.5 if retryable else None)
    return render(problem, profile(name))


def body(answer: Answer) -> Any:
    assert answer.body is not None
    return json.loads(answer.body)


def header(answer: Answer, name: bytes) -> bytes | None:
    found = [value for each, value in answer.headers if each == name]
    assert len(found) <= 1, f"{name!r} stands there more than once"
    return found[0] if found else None
