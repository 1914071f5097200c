"""The handler under test, for each way to be safe.

Like the engine it is a generator that yields actions, which `executor` performs.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from oncekey import Answer, Learned, Policy, current
from oncekey._core.op import Op, Pause
from oncekey._engine.attempt import Attempt
from oncekey.events import Event, Started
from soak.ledger import Id, Ledger, now

LEASE_S = 1.5
BRIEF_S = 3.0
"""How long responses of the route `brief` are stored: some retries come later."""
BEAT_S = 0.3
STEPS = ("authorise", "capture", "mail")
RAISES, TIMES_OUT, ANSWERS, CUT_OFF, UNKNOWN, STEP = HOWS = (
    "raises",
    "times out",
    "answers 500",
    "is cut off",
    "says unknown",
    "breaks in a step",
)
"""How a run fails, after its effect."""
LIMIT_S = 2.0
"""How much longer than an order takes the application's own timeout is."""
JSON = {"content-type": "application/json"}
JSON_LINES = tuple((name.encode(), value.encode()) for name, value in JSON.items())
DOUBTED = 4
"""For one in so many orders the application does not know the outcome."""


class OrderedFailure(RuntimeError):
    """An exception that leaves the application; it renders all others as responses."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    effect: Callable[[], None]
    at_most_once: bool


@dataclass(frozen=True, slots=True)
class Row:
    """What a run commits, together with a message of the same content."""

    id: Id
    run: str
    part: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write in the transaction of the atomic mode."""

    row: Row


@dataclass(frozen=True, slots=True)
class StepWithin:
    """Write in the handler's own transaction, together with a step."""

    row: Row


@dataclass(frozen=True, slots=True)
class AnswerWithin:
    """Write in the handler's own transaction, together with the response."""

    row: Row
    answer: dict[str, Any]


Action = Pause | Step | Write | StepWithin | AnswerWithin

_claimed_at: ContextVar[float] = ContextVar("claimed_at")


def watch(event: Event) -> None:
    """Note when the request's claim succeeded."""
    if isinstance(event, Started):
        _claimed_at.set(now())


def policies(ledger: Ledger) -> dict[str, Policy]:
    """Return the policies by route. Lapses are unlimited: their limit has its own tests."""
    leased = Policy(lease_s=LEASE_S, lapses_max=10_000)
    named = {
        "rerun": Policy(recovery="rerun"),
        "block": Policy(recovery="block"),
        "resume": Policy(recovery="resume"),
        "careful": Policy(recovery="resume"),
        "ask": Policy(recovery="ask", ask=partial(find_out, ledger)),
        "joined": Policy(recovery="resume"),
        "brief": Policy(recovery="rerun", retention_s=BRIEF_S),
    }
    return {name: policy.over(leased) for name, policy in named.items()}


def id_of(attempt: Attempt) -> Id:
    return Id(attempt.tenant, attempt.operation.rpartition("/")[2], attempt.key or "")


def handle(ledger: Ledger, order: dict[str, Any]) -> Op[dict[str, Any]]:
    """Run an order: take its time, write to the ledger, and fail if the order says so.

    Effects are in the ledger before the failure.
    """
    attempt, run, claimed_at = current(), uuid.uuid4().hex, _claimed_at.get()
    id_ = id_of(attempt)

    def note(what: str, step: str = "") -> None:
        ledger.note(what, id_, run, attempt.fence, claimed_at, attempt.lease.until, step)

    note("begin")
    answer = answer_of(order["name"], run)
    how = order["how"] if attempt.attempt <= order["failures"] else ""
    try:
        match id_.route:
            case "resume" | "careful":
                once, breaks = id_.route == "careful", how == STEP
                yield from _steps(note, order["seconds"], at_most_once=once, breaks=breaks)
            case "atomic":
                yield Write(Row(id_, run, "answer"))
                yield Pause(order["seconds"])
            case "joined":
                yield StepWithin(Row(id_, run, "step"))
                yield from _beats(note, order["seconds"])
            case "ask":
                yield from _beats(note, order["seconds"])
                ledger.record_effect(id_, answer)
                note("effect", "ask")
                yield from _beats(note, order["seconds"])
            case "block":
                yield from _beats(note, order["seconds"])
                note("effect", "block")
            case _:
                yield from _beats(note, order["seconds"])
        yield from _fail(attempt, how)
        if id_.route == "joined":
            yield AnswerWithin(Row(id_, run, "answer"), answer)
    except BaseException:  # also cancellation
        note("failed")
        raise
    note("end")
    return answer


def _fail(attempt: Attempt, how: str) -> Op[None]:
    match how:
        case "":
            return
        case "times out":
            raise TimeoutError("the bank did not answer")
        case "answers 500":
            raise RuntimeError("as ordered")
        case "is cut off":
            yield Pause(2 * LIMIT_S)
        case "says unknown":
            attempt.unknown()
    raise OrderedFailure("as ordered")


def _beats(note: Callable[[str], None], seconds: float) -> Op[None]:
    for beat in range(math.ceil(seconds / BEAT_S)):
        yield Pause(min(BEAT_S, seconds - beat * BEAT_S))
        note("beat")


def _steps(
    note: Callable[..., None], seconds: float, *, at_most_once: bool, breaks: bool
) -> Op[None]:
    for name in STEPS:
        effect = partial(note, "effect", name)
        if breaks and name == STEPS[1]:
            effect = partial(_break, effect)
        yield Step(name, effect, at_most_once)
        note("kept", name)
        yield Pause(seconds / len(STEPS))


def _break(effect: Callable[[], None]) -> None:
    effect()
    raise OrderedFailure("as ordered")


def find_out(ledger: Ledger, attempt: Attempt) -> Answer | Learned:
    """Look up what became of an attempt that died."""
    id_ = id_of(attempt)
    if int(id_.key.rpartition("-")[2]) % DOUBTED == 0:
        return Learned.UNKNOWN
    answer = ledger.find_effect(id_)
    if answer is None:
        return Learned.NOT_DONE
    return Answer(201, JSON_LINES, encode(answer))


def answer_of(name: str, run: str) -> dict[str, Any]:
    return {"order": name, "run": run}


def encode(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()
