"""Answering from records of another schema version: what a client gets, and what is asked."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import Pause, run
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import Find, Insert, Steps, Swap, Verb
from oncekey._core.versions import Versions
from oncekey._engine.decisions import (
    Call,
    Decision,
    Execute,
    Finished,
    Refuse,
    Replay,
    Stored,
    Unstored,
)
from oncekey._engine.guard import Guard
from oncekey._system.clock import FakeClock
from oncekey.errors import TooLong
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore

CALL = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))
OTHER = Call("acme", "POST /orders", "k1", Fingerprint(1, b"\x01" * 32))
OLD = Answer(201, ((b"content-type", b"text/plain"), (b"location", b"/orders/7")), b"total 5")


class World:
    """Processes of several releases on one store. What one of them recalls no other does."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.gatherer = Gatherer(MemoryStore(self.clock))
        self.asked: list[Verb] = []

    def ask(self, question: Any) -> Any:
        self.asked.append(question)
        return self.gatherer.ask(question)

    def process(self, version: int, **policy: Any) -> Process:
        return Process(self, Policy(lease_s=30, schema_version=version, **policy).settled())


class Process:
    """One release of the application."""

    def __init__(self, world: World, policy: Policy) -> None:
        self.world = world
        self.policy = policy
        self.guard = Guard(clock=world.clock)

    def begin(self, call: Call = CALL) -> Decision:
        return run(self.guard.begin(call, self.policy), self.world.ask)

    def execute(self, call: Call = CALL) -> Execute:
        decision = self.begin(call)
        assert isinstance(decision, Execute)
        return decision

    def conclude(self, running: Execute, answer: Answer | None, end: End) -> Finished:
        return run(
            self.guard.ownership.conclude(running.attempt, end, answer, CALL), self.world.ask
        )

    def complete(self, answer: Answer) -> Finished:
        return self.conclude(self.execute(), answer, End.KEPT)

    def found(self) -> Record:
        found = self.world.ask(Find(self.guard.claim(CALL, self.policy).id))
        assert isinstance(found, Record)
        return found


@pytest.fixture
def world() -> World:
    """In which a process of version 3 has answered."""
    world = World()
    assert isinstance(world.process(3).complete(OLD), Stored)
    world.asked.clear()
    return world


def in_cents() -> Versions:
    versions = Versions()

    @versions.upcast(3, 4)
    def _(answer: Answer) -> Answer:
        return dataclasses.replace(answer, body=(answer.body or b"") + b"00")

    return versions


def kind(decision: object) -> Kind:
    assert isinstance(decision, Refuse)
    return decision.problem.kind


def test_the_version_is_kept_with_the_record(world: World) -> None:
    assert world.process(3).found().schema_version == 3


def test_by_default_it_is_replayed_as_it_is(world: World) -> None:
    decision = world.process(4).begin()
    assert isinstance(decision, Replay)
    assert decision.answer == OLD


# -------------------------------------------------------------------------------- upcasting


def test_p3_an_upcast_gives_every_retry_the_same_bytes(world: World) -> None:
    """In one process, and from another one."""
    process = world.process(4, upcasts=in_cents())
    decisions = [process.begin(), process.begin(), world.process(4, upcasts=in_cents()).begin()]
    for decision in decisions:
        assert isinstance(decision, Replay)
        assert decision.answer == dataclasses.replace(OLD, body=b"total 500")
    assert [type(verb) for verb in world.asked] == [Insert, Insert, Insert], "nothing is written"


def test_what_is_kept_stays_what_it_was(world: World) -> None:
    process = world.process(4, upcasts=in_cents())
    process.begin()
    assert (process.found().answer, process.found().schema_version) == (OLD, 3)
    old = world.process(3).begin()
    assert isinstance(old, Replay)
    assert old.answer == OLD, "an old process still gives what it gave"


def fails(answer: Answer) -> Answer:
    raise KeyError("total")


def test_an_upcast_that_fails_is_told_and_logged_and_changes_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    versions = Versions()
    versions.upcast(3, 4)(fails)
    process = world.process(4, upcasts=versions, stale="rerun")
    with caplog.at_level(logging.ERROR, "oncekey"):
        decision = process.begin()

    assert kind(decision) is Kind.STALE_ANSWER
    assert isinstance(decision, Refuse)
    assert decision.problem.retryable
    assert "POST /orders cannot be upcast from version 3 to 4" in caplog.text
    assert "KeyError: 'total'" in caplog.text
    found = process.found()
    assert (found.state, found.answer, found.fence) == (State.COMPLETED, OLD, 1)


def test_an_attempt_that_was_overtaken_gets_the_others_answer_in_its_own_version() -> None:
    """P2: a newer process stands still, an older one takes over and answers."""
    world = World()
    new, old = world.process(4, upcasts=in_cents()), world.process(3)
    overtaken = new.execute()
    world.clock.advance(31)
    old.complete(OLD)
    finished = new.conclude(overtaken, Answer(201, (), b"its own"), End.KEPT)
    assert isinstance(finished, Replay)
    assert finished.answer.body == b"total 500"


# --------------------------------------------------------------------------------- refusing


def test_a_refusal_says_what_was_done_and_where(world: World) -> None:
    decision = world.process(4, stale="refuse").begin()
    assert kind(decision) is Kind.STALE_ANSWER
    assert isinstance(decision, Refuse)
    problem = decision.problem
    assert not problem.retryable
    assert problem.location == b"/orders/7"
    assert "status 201, and answered in version 3" in problem.detail


def test_an_old_process_refuses_a_newer_answer_for_now(world: World) -> None:
    decision = world.process(2, stale="refuse").begin()
    assert kind(decision) is Kind.NEWER_RECORD


# -------------------------------------------------------------------------------- re-running


def test_running_anew_replaces_the_answer(world: World) -> None:
    new = world.process(4, stale="rerun")
    running = new.execute()
    assert (running.attempt.attempt, running.attempt.lapses) == (2, 0)
    assert isinstance(new.conclude(running, Answer(201, (), b"new"), End.KEPT), Stored)

    for process in (world.process(4, stale="rerun"), world.process(3, stale="rerun")):
        decision = process.begin()
        assert isinstance(decision, Replay), "an older process does not undo it"
        assert decision.answer.body == b"new"


def test_p1_of_two_that_would_run_it_anew_one_does(world: World) -> None:
    """Both found the same completed record; the second write meets the first one's fence."""
    one, two = world.process(4, stale="rerun"), world.process(4, stale="rerun")
    claims = [one.guard.claim(CALL, one.policy), two.guard.claim(CALL, two.policy)]
    ops = [
        guard.begin(CALL, one.policy, claim)
        for guard, claim in zip((one.guard, two.guard), claims, strict=True)
    ]
    swaps = [op.send(world.ask(next(op))) for op in ops]
    assert all(isinstance(swap, Swap) for swap in swaps)

    decisions = []
    for op, swap in zip(ops, swaps, strict=True):
        try:
            op.send(world.ask(swap))
        except StopIteration as end:
            decisions.append(end.value)
    first, second = decisions
    assert isinstance(first, Execute)
    assert kind(second) is Kind.IN_FLIGHT


def test_p5_what_is_run_anew_stays_bound_to_its_request(world: World) -> None:
    """The first run had its effect: "nothing happened" speaks of the second alone."""
    new = world.process(4, stale="rerun")
    new.conclude(new.execute(), None, End.NO_EFFECT)
    assert kind(new.begin(OTHER)) is Kind.MISMATCH
    assert new.execute().attempt.attempt == 3


def test_what_is_run_anew_takes_all_its_steps_again() -> None:
    world = World()
    old = world.process(3)
    running = old.execute()
    run(old.guard.ownership.keep_step(running.attempt, Step("charge", b"d" * 16, b"1")), world.ask)
    old.conclude(running, OLD, End.KEPT)
    new = world.process(4, stale="rerun")
    attempt = new.execute().attempt
    assert world.ask(Steps(attempt.held.id)) == []


def test_what_its_own_release_would_not_repeat_is_refused() -> None:
    world = World()
    world.process(3, recovery="block").complete(OLD)
    assert kind(world.process(4, stale="rerun").begin()) is Kind.STALE_ANSWER


# ------------------------------------------------------------------ more than the store takes


class Small(MemoryStore):
    """Takes answers of so many bytes only, headers and body."""

    bytes_max = 0

    def perform(self, verbs: Any) -> Any:
        for answer in [verb.answer for verb in verbs if isinstance(verb, Swap) and verb.answer]:
            said = [*answer.headers, (b"", answer.body or b"")]
            if sum(len(name) + len(text) for name, text in said) > self.bytes_max:
                raise TooLong("raise max_allowed_packet")
        return super().perform(verbs)


@pytest.mark.parametrize(
    ("bytes_max", "sent", "lines"),
    [(100, OLD.headers, OLD.headers), (10, OLD.headers, ()), (10, (), ())],
)
def test_of_an_answer_that_the_store_does_not_take_the_fact_is_kept(
    bytes_max: int, sent: Any, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world, store = World(), Small()
    store.bytes_max, world.gatherer = bytes_max, Gatherer(store)
    process = world.process(3)
    long = dataclasses.replace(OLD, headers=sent, body=b"x" * 1000)
    with caplog.at_level(logging.ERROR, "oncekey"):
        assert isinstance(process.complete(long), Stored)
    assert "it was done, and not what it gave: raise max_allowed_packet" in caplog.text
    assert process.found().answer == Answer(201, lines, None)
    assert kind(process.begin()) is Kind.ANSWER_NOT_KEPT


def test_a_store_that_takes_nothing_is_not_asked_again_and_again() -> None:
    world, store = World(), Small()
    store.bytes_max, world.gatherer = -1, Gatherer(store)
    process = world.process(3)
    running = process.execute()
    world.asked.clear()
    assert kind(process.conclude(running, OLD, End.KEPT)) is Kind.STORE_UNAVAILABLE
    assert [type(verb) for verb in world.asked] == [Swap] * 3


# ------------------------------------------------------------------------- what nobody foresaw


class Odd(MemoryStore):
    """Its driver fails at so many completions, by an error of its own."""

    fails = 0

    def perform(self, verbs: Any) -> Any:
        if any(isinstance(verb, Swap) for verb in verbs) and self.fails:
            self.fails -= 1
            raise KeyError("what was to be kept")
        return super().perform(verbs)


def test_a_completion_that_fails_as_nobody_foresaw_is_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, store = World(), Odd()
    store.fails, world.gatherer = 2, Gatherer(store)
    process = world.process(3)
    assert isinstance(process.complete(OLD), Stored)
    assert isinstance(process.begin(), Replay)
    assert "POST /orders: what it did is not kept yet: the store raised KeyError" in caplog.text
    assert "what was to be kept" not in caplog.text


@pytest.mark.parametrize("recovery", ["rerun", "block"])
def test_one_that_goes_on_failing_is_told_as_an_outage(recovery: Any) -> None:
    world, store = World(), Odd()
    process = world.process(3, recovery=recovery)
    world.gatherer = Gatherer(store)
    running = process.execute()
    store.fails = 1_000
    world.ask = lambda question: (  # type: ignore[method-assign]
        world.clock.advance(5) if type(question) is Pause else world.gatherer.ask(question)
    )
    ended = process.conclude(running, OLD, End.KEPT)
    if recovery == "block":
        assert isinstance(ended, Unstored)
    else:
        assert kind(ended) is Kind.STORE_UNAVAILABLE
