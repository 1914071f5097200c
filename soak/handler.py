"""The handler under attack, for each way to be safe. It is written once, as the engine is: a
generator that yields what it wants done; `hands` do it.
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
"""How long answers of the route `brief` are kept: some retries come after that."""
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
"""What the application's own limit on time adds to what an order takes."""
JSON = {"content-type": "application/json"}
JSON_LINES = tuple((name.encode(), value.encode()) for name, value in JSON.items())
DOUBTED = 4
"""The application cannot tell of every so many orders what became of them."""


class Broken(RuntimeError):
    """Leaves the application; everything else that is raised becomes an answer of it."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    effect: Callable[[], None]
    at_most_once: bool


@dataclass(frozen=True, slots=True)
class Row:
    """What a run commits; a message of the same content goes with it."""

    id: Id
    run: str
    part: str


@dataclass(frozen=True, slots=True)
class Write:
    """In the transaction that was lent."""

    row: Row


@dataclass(frozen=True, slots=True)
class StepWithin:
    """In a transaction of the handler's own, together with the step that wrote it."""

    row: Row


@dataclass(frozen=True, slots=True)
class AnswerWithin:
    """In a transaction of the handler's own, together with the answer."""

    row: Row
    answer: dict[str, Any]


Wanted = Pause | Step | Write | StepWithin | AnswerWithin

_claimed_at: ContextVar[float] = ContextVar("claimed_at")


def watch(event: Event) -> None:
    """Told within the request, as soon as the reply to its claim is there."""
    if isinstance(event, Started):
        _claimed_at.set(now())


def policies(ledger: Ledger) -> dict[str, Policy]:
    """By route. Lapses are not counted: that many end in an unknown outcome has its own tests."""
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
    """One run: it takes its time, fails if it is told to, and leaves lines in the ledger.

    What it did is in the ledger before it fails.
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
                ledger.keep(id_, answer)
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
    except BaseException:  # also of one that is cut off
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
    raise Broken("as ordered")


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
    raise Broken("as ordered")


def find_out(ledger: Ledger, attempt: Attempt) -> Answer | Learned:
    """What the application knows of an attempt that died."""
    id_ = id_of(attempt)
    if int(id_.key.rpartition("-")[2]) % DOUBTED == 0:
        return Learned.UNKNOWN
    kept = ledger.kept(id_)
    if kept is None:
        return Learned.NOT_DONE
    return Answer(201, JSON_LINES, written(kept))


def answer_of(name: str, run: str) -> dict[str, Any]:
    return {"order": name, "run": run}


def written(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()
