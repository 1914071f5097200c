"""The verbs of the SQLite store: its two clocks, and batches that are done together."""

from __future__ import annotations

import dataclasses
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from oncekey._core import lifecycle
from oncekey._core.lifecycle import Held
from oncekey._core.op import run
from oncekey._core.record import Answer, Claim, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Done,
    Due,
    Find,
    Insert,
    Inserted,
    Peek,
    Refused,
    Requested,
    Steps,
    Swap,
    Sweep,
    Verb,
)
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.sqlite.connection import File, SqliteConnection
from oncekey.stores.sqlite.store import SqliteStore, _write
from oncekey.stores.sqlite.verbs import Batch, NotAll, Writer
from tests.stores.sqlite.worker import HOUR_S, claim

DAY_S = 24 * HOUR_S
ANSWER = Answer(201, (), b"created")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def gatherer(path: Path, clock: FakeClock) -> Iterator[Gatherer]:
    gatherer = Gatherer(SqliteStore(path, clock=clock))
    yield gatherer
    gatherer.close()


def begin(gatherer: Gatherer, name: str) -> Record:
    attempt = claim(name)
    assert isinstance(gatherer.ask(Insert(attempt)), Inserted)
    return find(gatherer, attempt.id)


def complete(gatherer: Gatherer, record: Record) -> Record:
    held = lifecycle.Held(record.id, record.fence, record.token)
    outcome = gatherer.ask(lifecycle.complete(held, ANSWER, retention_s=HOUR_S))
    assert isinstance(outcome, Done)
    return find(gatherer, record.id)


def find(gatherer: Gatherer, record_id: bytes) -> Record:
    record = gatherer.ask(Find(record_id))
    assert isinstance(record, Record)
    return record


# ------------------------------------------------------------------------------ two clocks


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S], ids=["ahead", "back"])
def test_p8_a_step_of_the_wall_clock_changes_no_lease(
    gatherer: Gatherer, clock: FakeClock, step_s: float
) -> None:
    record = begin(gatherer, "order-1")
    clock.step_wall(step_s)
    must_exist = find(gatherer, record.id)
    assert must_exist.lease_left_s == record.lease_left_s
    assert gatherer.ask(Peek(record.id)).lease_left_s == record.lease_left_s
    assert (must_exist.lapsed, must_exist.overlong, must_exist.expired) == (False, False, False)
    assert gatherer.ask(Due(10)) == []


@pytest.mark.parametrize("take", ["take over", "start over"])
def test_p8_a_live_lease_is_not_taken_whatever_the_wall_clock_says(
    gatherer: Gatherer, clock: FakeClock, take: str
) -> None:
    record = begin(gatherer, "order-1")
    clock.step_wall(400 * DAY_S)
    expires_in_s = {"take over": 1.0, "start over": -1.0}[take]
    believed = dataclasses.replace(record, lease_left_s=-1.0, expires_in_s=expires_in_s)
    swap = lifecycle.take(believed, claim("order-1"))
    assert isinstance(gatherer.ask(swap), Refused)
    assert find(gatherer, record.id).token == record.token


def test_p10_a_live_lease_is_not_swept_whatever_the_wall_clock_says(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    running = begin(gatherer, "order-1")
    ended = complete(gatherer, begin(gatherer, "order-2"))
    clock.step_wall(400 * DAY_S)
    assert gatherer.ask(Sweep(10)) == 1
    assert gatherer.ask(Find(ended.id)) is None
    clock.advance(HOUR_S)
    assert find(gatherer, running.id).lapsed
    assert gatherer.ask(Sweep(10)) == 1


def test_p8_a_wall_clock_that_was_set_back_does_not_prolong_a_lease(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    record = begin(gatherer, "order-1")
    clock.step_wall(-DAY_S)
    clock.advance(HOUR_S)
    assert gatherer.ask(Due(10)) == [record.id]
    swap = lifecycle.take(find(gatherer, record.id), claim("order-1"))
    assert gatherer.ask(swap) == Done(record.fence + 1)


def test_p6_what_ran_when_the_machine_went_down_is_lapsed_when_it_is_back(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    """Its boot clock starts again at 0, so the old deadline lies far ahead and means nothing."""
    record = begin(gatherer, "order-1")
    clock.reboot()
    must_exist = find(gatherer, record.id)
    assert (must_exist.lapsed, must_exist.overlong, must_exist.expired) == (True, False, False)
    assert gatherer.ask(Due(10)) == [record.id]
    assert gatherer.ask(Sweep(10)) == 0
    swap = lifecycle.take(must_exist, claim("order-1"))
    assert gatherer.ask(swap) == Done(record.fence + 1)
    assert find(gatherer, record.id).lease_left_s == HOUR_S


def test_an_owner_that_survived_a_suspend_may_still_complete(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    record = begin(gatherer, "order-1")
    clock.advance(DAY_S)
    assert complete(gatherer, record).answer == ANSWER


def test_retention_goes_on_over_a_reboot(gatherer: Gatherer, clock: FakeClock) -> None:
    record = complete(gatherer, begin(gatherer, "order-1"))
    clock.advance(HOUR_S / 2)
    clock.reboot()
    assert find(gatherer, record.id).expires_in_s == pytest.approx(HOUR_S / 2)
    clock.advance(HOUR_S / 2)
    assert find(gatherer, record.id).expired
    assert gatherer.ask(Sweep(10)) == 1


def test_what_waits_longest_is_due_first_by_whichever_clock(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    """What a reboot cut off comes before all else: how long ago that was, nobody knows."""
    ended = complete(gatherer, begin(gatherer, "order-1"))
    cut_off = begin(gatherer, "order-2")
    clock.advance(HOUR_S / 2)
    clock.reboot()
    lapsed = begin(gatherer, "order-3")
    clock.advance(HOUR_S)
    assert gatherer.ask(Due(10)) == [cut_off.id, ended.id, lapsed.id]
    assert gatherer.ask(Due(2)) == [cut_off.id, ended.id]


# ------------------------------------------------------------------------------ batches


class Hand:
    """A store with one connection: what is asked together is one batch."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        self.clock = clock
        self._store = SqliteStore(path, clock=clock)
        self._connection: SqliteConnection = self._store.connect()
        run(self._store.prepare(), self._connection.ask)

    def ask(self, verbs: Sequence[Verb]) -> list[Any]:
        return run(self._store.perform(verbs), self._connection.ask)

    def one_by_one(self, verbs: Sequence[Verb]) -> Any:
        return self.write(lambda execute: Writer(self.clock, execute).carry_out(verbs))

    def write(self, work: Callable[[Any], Any]) -> Any:
        return self.question(lambda file: file.write(work))

    def question(self, question: Callable[[File], Any]) -> Any:
        return self._connection.ask(question)

    def statements(self, verbs: Sequence[Verb]) -> list[str]:
        """What is executed for one batch: the first words. Where a trigger fires, its statement is
        told again.
        """
        executed: list[str] = []
        self.question(lambda file: file._db.set_trace_callback(executed.append))
        self.ask(verbs)
        self.question(lambda file: file._db.set_trace_callback(None))
        return [text.split()[0] for text, _ in itertools.groupby(executed)]

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def hand(path: Path, clock: FakeClock) -> Iterator[Hand]:
    hand = Hand(path, clock)
    yield hand
    hand.close()


def completion(attempt: Claim, **other: Any) -> Swap:
    held = Held(attempt.id, 1, attempt.token)
    swap = lifecycle.complete(held, Answer(200, (), attempt.key.encode()), retention_s=HOUR_S)
    return dataclasses.replace(swap, **other)


def renewal(attempt: Claim) -> Swap:
    held = Held(attempt.id, 1, attempt.token)
    return lifecycle.renew(held, lease_s=2 * HOUR_S, retention_s=HOUR_S)


def release(attempt: Claim, *, no_effect: bool = False) -> Swap:
    held = Held(attempt.id, 1, attempt.token)
    return lifecycle.release(held, no_effect=no_effect, retention_s=HOUR_S)


def claims(count: int, prefix: str = "order") -> list[Claim]:
    return [claim(f"{prefix}-{number}") for number in range(count)]


def must_exist(record: Record | None) -> Record:
    assert record is not None
    return record


def test_a_batch_takes_a_handful_of_statements(hand: Hand) -> None:
    """Whatever its size: around each the interpreter's lock is let go and fought for."""
    attempts = claims(64)
    begun = ["BEGIN", "SELECT", "INSERT", "COMMIT"]
    assert hand.statements([*map(Insert, attempts)]) == ["SELECT", *begun]
    assert hand.statements([*map(renewal, attempts)]) == ["BEGIN", "INSERT", "COMMIT"]
    completed = ["BEGIN", "INSERT", "INSERT", "COMMIT"]
    assert hand.statements([*map(completion, attempts)]) == completed
    assert hand.statements([*map(Insert, attempts)]) == ["SELECT"]


def test_only_a_claim_that_brings_a_request_pays_for_it(hand: Hand) -> None:
    attempts = claims(8)
    attempts[3] = dataclasses.replace(attempts[3], request=b"POST /orders")
    begun = ["BEGIN", "SELECT", "INSERT", "INSERT", "COMMIT"]
    assert hand.statements([*map(Insert, attempts)]) == ["SELECT", *begun]
    assert hand.ask([Requested(attempts[3].id)]) == [b"POST /orders"]
    assert hand.statements([*map(renewal, attempts)]) == ["BEGIN", "INSERT", "COMMIT"]
    completed = ["BEGIN", "INSERT", "INSERT", "COMMIT"]
    assert hand.statements([*map(completion, attempts)]) == completed
    assert hand.ask([Requested(attempts[3].id)]) == [None]


@pytest.mark.parametrize("count", range(1, 131))
def test_batches_of_every_size_are_done_as_a_whole(hand: Hand, count: int) -> None:
    attempts = claims(count)
    assert hand.ask([*map(Insert, attempts)]) == [Inserted(1)] * count
    assert hand.ask([*map(renewal, attempts)]) == [Done(1)] * count
    hand.clock.advance(HOUR_S * 1.5)
    others = claims(count, "other")
    pairs = zip(map(completion, attempts), map(Insert, others), strict=True)
    mixed = [verb for pair in pairs for verb in pair]
    assert hand.ask(mixed) == [Done(1), Inserted(1)] * count
    replayed = hand.ask([*map(Insert, attempts)])
    assert [outcome.record.answer.body for outcome in replayed] == [
        attempt.key.encode() for attempt in attempts
    ]
    assert {outcome.record.beat for outcome in replayed} == {2}
    assert {outcome.record.lease_left_s for outcome in hand.ask([*map(Insert, others)])} == {HOUR_S}


def test_an_insert_whose_reply_was_lost_finds_its_own_record_in_any_batch(hand: Hand) -> None:
    lost, new = claims(20), claims(20, "other")
    hand.ask([*map(Insert, lost)])
    outcomes = hand.ask([Insert(each) for pair in zip(new, lost, strict=True) for each in pair])
    assert outcomes[::2] == [Inserted(1)] * 20
    assert [outcome.record.token for outcome in outcomes[1::2]] == [each.token for each in lost]


def test_p1_an_insert_that_lost_a_race_after_the_look_finds_the_winner(hand: Hand) -> None:
    """Between the look and the write another process may insert: then the write must notice."""
    winners, losers, new = claims(10), claims(10), claims(10, "other")
    hand.ask([*map(Insert, winners)])
    verbs = [Insert(each) for pair in zip(new, losers, strict=True) for each in pair]
    with pytest.raises(NotAll):
        hand.write(lambda execute: Batch(hand.clock, execute).carry_out(verbs))
    assert hand.ask([Find(each.id) for each in new]) == [None] * 10
    outcomes = hand.question(partial(_write, verbs, hand.clock))
    assert outcomes[::2] == [Inserted(1)] * 10
    assert [outcome.record.token for outcome in outcomes[1::2]] == [each.token for each in winners]


def test_one_id_twice_in_a_batch_is_inserted_once(hand: Hand) -> None:
    first, second, *others = [claim("order-1"), claim("order-1"), *claims(9, "other")]
    outcomes = hand.ask([*map(Insert, (first, *others, second))])
    assert outcomes[:-1] == [Inserted(1)] * 10
    assert outcomes[-1].record.token == first.token


REFUSED: dict[str, Callable[[Claim], Swap]] = {
    "wrong fence": lambda attempt: completion(attempt, fence=2),
    "wrong token": lambda attempt: completion(attempt, token=b"?" * 16),
    "wrong state": lambda attempt: completion(attempt, state=State.RELEASED),
    "wrong id": lambda attempt: completion(attempt, id=b"?" * 32),
}


@pytest.mark.parametrize("wrong", REFUSED)
@pytest.mark.parametrize("at", [0, 31, 32, 63, 64, 69])
def test_p2_one_that_is_refused_is_refused_alone(hand: Hand, wrong: str, at: int) -> None:
    attempts = claims(70)
    hand.ask([*map(Insert, attempts)])
    verbs = [completion(attempt) for attempt in attempts]
    verbs[at] = REFUSED[wrong](attempts[at])
    outcomes = hand.ask(verbs)
    refused = outcomes.pop(at)
    assert outcomes == [Done(1)] * 69
    [there] = hand.ask([Find(attempts[at].id)])
    assert there.state is State.RUNNING
    assert refused == Refused(None if wrong == "wrong id" else there)
    completed = hand.ask([Find(attempt.id) for attempt in attempts])
    assert [must_exist(each).answer is None for each in completed] == [n == at for n in range(70)]


def test_a_verb_that_cannot_be_taken_changes_nothing(hand: Hand) -> None:
    attempts = claims(10)
    attempts[5] = dataclasses.replace(attempts[5], schema_version="one")  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        hand.ask([*map(Insert, attempts)])
    assert hand.ask([Find(attempt.id) for attempt in attempts]) == [None] * 10
    del attempts[5]
    assert hand.ask([*map(Insert, attempts)]) == [Inserted(1)] * 9


STAGES: dict[str, Callable[[Claim], list[Verb]]] = {
    "nothing": lambda attempt: [],
    "running": lambda attempt: [Insert(attempt)],
    "completed": lambda attempt: [Insert(attempt), completion(attempt)],
    "released": lambda attempt: [Insert(attempt), release(attempt)],
}
MOVES: dict[str, Callable[[Claim], Verb]] = {
    "insert": Insert,
    "insert as another": lambda attempt: Insert(dataclasses.replace(attempt, token=b"!" * 16)),
    "complete": completion,
    "complete without an answer": lambda attempt: completion(attempt, answer=None),
    "complete with a resource": lambda attempt: completion(attempt, resource_id="o_1"),
    "renew": renewal,
    "release": release,
    "release without effect": lambda attempt: release(attempt, no_effect=True),
    "step": lambda attempt: AppendStep(attempt.id, 1, attempt.token, Step("pay", b"d", b"r")),
    "find": lambda attempt: Find(attempt.id),
    **REFUSED,
}
RIGHT = [
    *itertools.product(["nothing", "completed"], ["insert"]),
    *itertools.product(["running"], ["complete", "complete with a resource", "renew", "release"]),
]
ANY = [*itertools.product(STAGES, MOVES)]
BATCHES = st.one_of(
    st.lists(st.sampled_from(RIGHT), min_size=1, max_size=130),
    st.lists(st.sampled_from([*RIGHT * 8, *ANY]), min_size=1, max_size=130),
    st.lists(st.sampled_from(ANY), min_size=1, max_size=40),
)


def test_a_batch_means_the_same_as_its_verbs_one_by_one(
    tmp_path: Path, clock: FakeClock, pytestconfig: pytest.Config
) -> None:
    """Two files, one clock: the outcomes and what is kept are the same to the last digit."""
    together, apart = Hand(tmp_path / "a.db", clock), Hand(tmp_path / "b.db", clock)
    numbers = itertools.count()

    @hypothesis.settings(
        max_examples=25 if pytestconfig.getoption("--fast") else 150, deadline=None
    )
    @hypothesis.given(BATCHES)
    def compare(batch: list[tuple[str, str]]) -> None:
        example = next(numbers)
        attempts = [claim(f"{example}-{number}") for number in range(len(batch))]
        pairs = [*zip(attempts, batch, strict=True)]
        before = [verb for attempt, (stage, _) in pairs for verb in STAGES[stage](attempt)]
        assert together.one_by_one(before) == apart.one_by_one(before)
        clock.advance(1.0)
        verbs = [MOVES[move](attempt) for attempt, (_, move) in pairs]
        assert together.ask(verbs) == apart.one_by_one(verbs)
        looks = [look for each in attempts for look in (Find(each.id), Steps(each.id))]
        assert together.ask(looks) == apart.ask(looks)

    compare()
    together.close()
    apart.close()


def test_a_sweep_raises_the_fence_of_what_is_inserted_after_it(
    hand: Hand, clock: FakeClock
) -> None:
    """Within one transaction, too."""
    hand.ask([*map(Insert, claims(2))])
    clock.advance(3 * HOUR_S)
    verbs: list[Verb] = [Insert(claim("other")), Sweep(10), Insert(claim("order-1"))]
    assert hand.one_by_one(verbs) == [Inserted(1), 2, Inserted(2)]
