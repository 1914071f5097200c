"""Steps: kept under the fence, skipped by later attempts, never silently mixed."""

import asyncio
import dataclasses
import json
import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest

import oncekey
from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import arun, run
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind
from oncekey._core.record import Answer
from oncekey._core.verbs import AppendStep, Purge, Steps
from oncekey._engine.guard import Call, Execute, Guard, Refuse
from oncekey._engine.handler_calls import Ports, in_thread
from oncekey._engine.heartbeat import Heartbeat
from oncekey._engine.lease import Phase
from oncekey._engine.runtime import Runtime
from oncekey._engine.steps import STEP_BYTES_MAX, child_key, current_child_key, digest_of
from oncekey._system.clock import FakeClock
from oncekey.errors import LeaseLost, Misuse, OutcomeUnknown, StepsChanged
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore

CALL = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))


class World:
    """Attempts of one operation, one after the other; those before the last died."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.guard = Guard(clock=self.clock)
        self.store = MemoryStore(self.clock)
        self.policy = Policy(lease_s=10, recovery="resume").settled()
        self.gatherer = Gatherer(self.store)
        self.asked: list[Any] = []
        self.ports = Ports(
            self.guard.ownership,
            self.store,
            Heartbeat(self.store, self.guard.ownership, self.clock),
            ask=in_thread(self.ask),
            ask_sync=self.ask,
            forget=lambda claim: pytest.fail(repr(claim)),
        )

    def ask(self, question: Any) -> Any:
        self.asked.append(question)
        return self.gatherer.ask(question)

    def attempt(self) -> oncekey.Attempt:
        self.clock.advance(11)
        decision = run(self.guard.begin(CALL, self.policy), self.ask)
        assert isinstance(decision, Execute)
        decision.attempt.ports = self.ports
        self.asked.clear()
        return decision.attempt


def test_e41_a_later_attempt_gets_the_results_back_and_continues() -> None:
    world = World()
    ran: list[str] = []

    def takes(name: str, result: object) -> object:
        ran.append(name)
        return result

    first = world.attempt()
    assert first.step_sync("reserve", lambda: takes("reserve", "r_1")) == "r_1"
    assert first.step_sync("charge", lambda: takes("charge", {"id": 7})) == {"id": 7}
    second = world.attempt()
    assert second.step_sync("reserve", lambda: takes("again", None)) == "r_1"
    assert second.step_sync("charge", lambda: takes("again", None)) == {"id": 7}
    assert second.step_sync("mail", lambda: takes("mail", None)) is None
    assert ran == ["reserve", "charge", "mail"]
    questions = [type(question) for question in world.asked]
    assert questions == [Steps, AppendStep], (
        "all steps in one round trip, one write for the new one"
    )


@pytest.mark.parametrize("result", [None, 0, "", [], {}, False, 1.5, "text", {"a": [1, None]}])
def test_whatever_json_knows_is_a_result(result: object) -> None:
    world = World()
    assert world.attempt().step_sync("s", lambda: result) == result
    again = world.attempt()
    assert again.step_sync("s", lambda: pytest.fail("ran again")) == result


def test_the_first_attempt_sees_a_result_as_later_ones_will() -> None:
    world, pair = World(), cast(Callable[[], Any], lambda: (1, 2))
    assert world.attempt().step_sync("s", pair) == [1, 2]
    assert world.attempt().step_sync("s", pair) == [1, 2]


def test_a_first_attempt_reads_nothing() -> None:
    world = World()
    world.attempt().step_sync("s", lambda: 1)
    assert [type(question) for question in world.asked] == [AppendStep]


async def test_steps_may_be_async_and_call_sync_functions() -> None:
    attempt = World().attempt()

    async def slow(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    assert await attempt.step("a", slow, 1) == 2
    assert await attempt.step("b", len, "four") == 4


def test_a_step_that_raises_leaves_nothing_and_runs_again() -> None:
    world = World()
    first = world.attempt()
    with pytest.raises(ZeroDivisionError):
        first.step_sync("s", lambda: 1 // 0)
    assert first.step_sync("s", lambda: 2) == 2


# ----------------------------------------------------------------------- changed programs


@pytest.mark.parametrize(
    ("name", "argument", "says"),
    [("charge", 5, "where 'reserve' was taken"), ("reserve", 6, "with other arguments")],
)
def test_changed_steps_are_reported_not_mixed(name: str, argument: int, says: str) -> None:
    world = World()
    world.attempt().step_sync("reserve", str, 5)
    with pytest.raises(StepsChanged, match=rf"/orders key=[0-9a-f]{{12}}: .* {says}"):
        world.attempt().step_sync(name, str, argument)


def test_arguments_that_json_does_not_know_are_compared_by_type() -> None:
    world = World()
    world.attempt().step_sync("s", lambda thing: 1, object())
    assert world.attempt().step_sync("s", lambda thing: 2, object()) == 1
    with pytest.raises(StepsChanged):
        world.attempt().step_sync("s", lambda thing: 2, Guard())


def test_what_was_not_come_to_is_told(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    first = world.attempt()
    first.step_sync("a", lambda: 1)
    first.step_sync("b", lambda: 1)
    second = world.attempt()
    second.step_sync("a", lambda: 1)
    assert second.steps.left_over == ["b"]
    run(world.guard.ownership.conclude(second, End.KEPT, Answer(201), CALL), world.ask)
    assert "ends without the steps 'b'" in caplog.text


def test_of_an_attempt_that_came_to_every_step_nothing_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.attempt().step_sync("a", lambda: 1)
    second = world.attempt()
    second.step_sync("a", lambda: 1)
    run(world.guard.ownership.conclude(second, End.KEPT, Answer(201), CALL), world.ask)
    assert not caplog.text


# -------------------------------------------------------------------------- at most once


def test_at_most_once_becomes_unknown_rather_than_repeat() -> None:
    world = World()
    with pytest.raises(KeyboardInterrupt):
        world.attempt().step_sync("charge", _dies, at_most_once=True)
    second = world.attempt()
    with pytest.raises(OutcomeUnknown, match=r"'charge' of POST /orders key=[0-9a-f]{12} must"):
        second.step_sync("charge", lambda: pytest.fail("ran again"), at_most_once=True)
    assert second.doubted


def test_at_most_once_that_ended_is_an_ordinary_step() -> None:
    world = World()
    world.attempt().step_sync("charge", lambda: "ch_1", at_most_once=True)
    assert world.attempt().step_sync("charge", lambda: "ch_2", at_most_once=True) == "ch_1"


def test_at_most_once_is_not_repeated_by_its_own_attempt_either() -> None:
    """A handler that catches what it raised cannot know whether it had its effect."""
    attempt = World().attempt()
    with pytest.raises(KeyboardInterrupt):
        attempt.step_sync("charge", _dies, at_most_once=True)
    assert attempt.step_sync("apologise", lambda: "sorry") == "sorry"
    with pytest.raises(OutcomeUnknown, match="charge"):
        attempt.step_sync("charge", lambda: pytest.fail("ran again"), at_most_once=True)
    assert attempt.doubted


@pytest.mark.parametrize("at_most_once", [True, False])
def test_a_purge_never_takes_a_step_twice(at_most_once: bool) -> None:
    world = World()
    first = world.attempt()
    assert first.step_sync("print", lambda: "page 1", at_most_once=at_most_once) == "page 1"
    run(world.guard.ownership.abandon(first, no_effect=False), world.ask)
    assert world.ask(Purge("acme", 10)) == 1

    with pytest.raises(OutcomeUnknown):
        world.attempt().step_sync("print", lambda: pytest.fail("ran again"))


def test_at_most_once_that_began_is_no_attempt_without_effect() -> None:
    """P5: the next attempt must read that it began, so it is not the first again."""
    world = World()
    first = world.attempt()
    with pytest.raises(KeyboardInterrupt):
        first.step_sync("charge", _dies, at_most_once=True)
    run(world.guard.ownership.abandon(first, no_effect=True), world.ask)
    with pytest.raises(OutcomeUnknown, match="charge"):
        world.attempt().step_sync("charge", lambda: pytest.fail("ran"), at_most_once=True)


@pytest.mark.parametrize("awaited", [True, False])
async def test_p5_a_step_that_failed_binds_the_key_to_its_request(awaited: bool) -> None:
    """Its child key may be spent: what it calls must not take another request for the same one."""
    world = World()
    first = world.attempt()
    with pytest.raises(KeyboardInterrupt):
        await first.step("charge", _dies) if awaited else first.step_sync("charge", _dies)
    run(world.guard.ownership.abandon(first, no_effect=True), world.ask)
    other = dataclasses.replace(CALL, fingerprint=Fingerprint(1, b"\x01" * 32))
    refused = run(world.guard.begin(other, world.policy), world.ask)
    assert isinstance(refused, Refuse)
    assert refused.problem.kind is Kind.MISMATCH


def test_a_step_that_is_rolled_back_leaves_the_key_to_another_request() -> None:
    """P7: its rows are gone with the caller's transaction."""
    world = World()
    first = world.attempt()
    with pytest.raises(KeyboardInterrupt):
        first.step_sync("order", _dies, within=object())
    run(world.guard.ownership.abandon(first, no_effect=True), world.ask)
    other = dataclasses.replace(CALL, fingerprint=Fingerprint(1, b"\x01" * 32))
    assert isinstance(run(world.guard.begin(other, world.policy), world.ask), Execute)


def test_at_most_once_contradicts_running_anew_for_a_version() -> None:
    """Noticed by whoever writes it, before the step has its effect."""
    world = World()
    world.policy = Policy(lease_s=10, stale="rerun").settled()
    with pytest.raises(Misuse, match=r"'charge' .* is at_most_once, but .*stale='rerun'"):
        world.attempt().step_sync("charge", lambda: pytest.fail("ran"), at_most_once=True)


def test_at_most_once_contradicts_a_transaction() -> None:
    """Where the mark is written the transaction is not: on SQLite each would wait for the other."""
    with pytest.raises(Misuse, match=r"'order' is at_most_once and within a transaction"):
        World().attempt().step_sync(
            "order", lambda: pytest.fail("ran"), at_most_once=True, within=object()
        )


def _dies() -> None:
    raise KeyboardInterrupt


# ------------------------------------------------------------------------------- fences


def test_p2_a_step_of_an_attempt_that_was_taken_over_is_refused() -> None:
    world = World()
    first = world.attempt()
    second = world.attempt()
    with pytest.raises(LeaseLost):
        first.step_sync("s", lambda: "stale")
    assert first.lost
    assert second.step_sync("s", lambda: "fresh") == "fresh"


def test_p2_a_step_after_the_lease_is_not_even_begun() -> None:
    """Whoever slept through its lease may have been taken over, or its record swept."""
    world = World()
    first = world.attempt()
    world.clock.advance(10)
    with pytest.raises(LeaseLost):
        first.step_sync("s", lambda: pytest.fail("ran"))
    assert first.lost


def test_p2_a_step_whose_attempt_is_taken_over_meanwhile_is_not_kept() -> None:
    world = World()
    first = world.attempt()
    heirs: list[oncekey.Attempt] = []
    with pytest.raises(LeaseLost, match=r"'s' of POST /orders key=[0-9a-f]{12} was not kept"):
        first.step_sync("s", lambda: heirs.append(world.attempt()))
    assert first.lost
    assert heirs[0].step_sync("s", lambda: "fresh") == "fresh"


def test_a_step_after_the_loss_is_not_even_begun() -> None:
    world = World()
    first = world.attempt()
    first.mark_lost()
    with pytest.raises(LeaseLost):
        first.step_sync("s", lambda: pytest.fail("ran"))


# ------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("name", ["", "x" * 101, "two\nlines", "nul\0", 17])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(Misuse, match="printable"):
        World().attempt().step_sync(name, lambda: 1)


def test_a_child_key_is_named_by_a_text() -> None:
    with pytest.raises(Misuse, match="takes the name of what it is for, not a int"):
        World().attempt().child_key(17)  # type: ignore[arg-type]


def test_a_result_that_json_cannot_keep_is_refused() -> None:
    with pytest.raises(Misuse, match="JSON"):
        World().attempt().step_sync("s", object)
    with pytest.raises(Misuse, match="JSON"):
        World().attempt().step_sync("s", lambda: float("nan"))


def test_p11_a_result_is_bounded() -> None:
    with pytest.raises(Misuse, match="more than"):
        World().attempt().step_sync("s", lambda: "x" * STEP_BYTES_MAX)


def test_p11_the_number_of_steps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncekey._engine.steps.STEPS_MAX", 2)
    attempt = World().attempt()
    for name in "ab":
        attempt.step_sync(name, lambda: 1)
    with pytest.raises(Misuse, match="at most 2 steps"):
        attempt.step_sync("c", lambda: pytest.fail("ran"))


def test_steps_do_not_overlap() -> None:
    attempt = World().attempt()
    with pytest.raises(Misuse, match="one after the other"):
        attempt.step_sync("outer", lambda: attempt.step_sync("inner", lambda: 1))


async def test_steps_do_not_overlap_while_the_store_is_asked_either() -> None:
    attempt = World().attempt()

    async def takes(number: int) -> int:
        await asyncio.sleep(0)
        return number

    both = (attempt.step(name, takes, 1, at_most_once=True) for name in ("a", "b"))
    results = await asyncio.gather(*both, return_exceptions=True)
    assert (results[0], type(results[1])) == (1, Misuse)
    assert await attempt.step("b", takes, 2) == 2


def test_each_step_has_a_name_of_its_own() -> None:
    """Two of one name would share their child key, and the second would overwrite the first."""
    world = World()
    attempt = world.attempt()
    attempt.step_sync("pay", str, 1)
    with pytest.raises(Misuse, match=r"'pay' is taken twice.* such as 'pay-2'"):
        attempt.step_sync("pay", str, 2)
    later = world.attempt()
    later.step_sync("pay", str, 1)
    with pytest.raises(Misuse, match="taken twice"):
        later.step_sync("pay", str, 1)


def test_steps_belong_into_a_running_handler() -> None:
    attempt = World().attempt()
    attempt.lease.move(Phase.ENDED)
    with pytest.raises(Misuse, match="while it runs"):
        attempt.step_sync("s", lambda: 1)


# ------------------------------------------------------------------------------ child keys


def test_child_keys_stay_what_they_are() -> None:
    """Another release may finish what this one began: whoever is called must know the key again."""
    assert child_key(bytes(32), "charge") == "f728920c-3c9e-86f7-bf73-ef819d27e5e3"
    assert child_key(bytes(32), "charge", 2) == "12d9d3fd-a486-8435-9b17-547ca7f9886f"


def test_digests_of_steps_stay_what_they_are() -> None:
    """Else what an earlier release has begun could be finished by none after it."""
    digest = digest_of("charge", ((7,), {"to": "ann"}))
    assert digest.hex() == "2457aadceac731ffde55ca8f360cff50"


def test_e47_a_child_key_is_the_same_over_all_attempts_and_differs_otherwise() -> None:
    world = World()
    keys = {world.attempt().child_key("charge") for _ in range(3)}
    assert len(keys) == 1
    assert keys != {world.attempt().child_key("mail")}
    assert keys != {child_key(bytes(32), "charge")}
    assert uuid.UUID(keys.pop()).variant == uuid.RFC_4122


def test_e47_within_a_step_its_key_is_at_hand() -> None:
    attempt = World().attempt()
    assert current_child_key.get() is None
    assert attempt.step_sync("charge", current_child_key.get) == attempt.child_key("charge")
    assert current_child_key.get() is None


async def test_the_wrong_way_to_ask_is_told_before_the_effect() -> None:
    async with Runtime("memory://") as runtime:
        decision = await runtime.drive(runtime.guard.begin(CALL, World().policy))
        assert isinstance(decision, Execute)
        attempt, attempt.ports = decision.attempt, runtime.ports()
        with pytest.raises(Misuse, match="block the event loop"):
            attempt.step_sync("a", pytest.fail)

        def elsewhere() -> None:
            asyncio.run(attempt.step("a", pytest.fail))

        with pytest.raises(Misuse, match="another event loop"):
            await asyncio.to_thread(elsewhere)
        assert await asyncio.to_thread(attempt.step_sync, "a", lambda: 1) == 1


async def test_both_ways_to_ask_keep_the_same() -> None:
    world = World()
    assert await world.attempt().step("s", json.dumps, [1]) == "[1]"
    found = await arun(world.guard.ownership.steps(world.attempt()), in_thread(world.ask))
    assert [(step.name, step.result) for step in found] == [("s", b'"[1]"')]


@pytest.mark.filterwarnings("error")
def test_a_blocking_step_is_given_no_coroutine() -> None:
    async def charge() -> None:
        pytest.fail("nobody awaits it")

    attempt = World().attempt()
    with pytest.raises(Misuse, match="a coroutine, which did not run: use the awaited form"):
        _ = attempt.step_sync("charge", charge)
    assert attempt.step_sync("charge", lambda: "ch_1") == "ch_1"  # it is not under way


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_step_that_was_called_instead_of_given_is_told_before_it_begins(
    at_most_once: bool,
) -> None:
    attempt, called = World().attempt(), cast(Any, None)  # what charge(card) gave
    with pytest.raises(Misuse, match="what is to run is a function, not NoneType: give it uncall"):
        attempt.step_sync("charge", called, at_most_once=at_most_once)
    with pytest.raises(Misuse, match="what is to run is a function, not NoneType: give it uncall"):
        await attempt.step("charge", called, at_most_once=at_most_once)
    assert attempt.step_sync("charge", lambda: "ch_1", at_most_once=at_most_once) == "ch_1"
