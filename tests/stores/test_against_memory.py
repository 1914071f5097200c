"""Every store is compared with the memory store: the same verbs, the same outcomes.

Both are asked the same at the same time and are told alike that time passes. What they may differ
in is left out of the comparison: the numbers of fences, not their order, and the moment of looking.
All times are chosen so that no deadline comes nearer to a moment of looking than `TOLERANCE_S`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    multiple,
    rule,
    run_state_machine_as_test,
)

from oncekey._core import lifecycle
from oncekey._core.lifecycle import TRANSITIONS, Held
from oncekey._core.record import Answer, Claim, Glimpse, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Swap,
    Sweep,
    Tally,
    Verb,
)
from oncekey._system.clock import FakeClock
from oncekey.stores.memory import MemoryStore
from oncekey.testing.contract import Subject
from oncekey.testing.contract.subject import FACES, Face, SyncFace, new_id, new_token, timeless
from tests.stores.conftest import MORE, STORES

# Time passes in steps of 100 s; deadlines end on 50 (lease), 80 (lease and retention) or 30.
STEPS_S = [100.0, 200.0, 1100.0, 2500.0, -100.0, -1000.0]
LEASES_S = [150.0, 350.0]
RETENTIONS_S = [1030.0, 2030.0]
TOLERANCE_S = 20.0
EVERYTHING = 1000

WAITS_S = {"at once": 0.0, "when it lapsed": 400.0, "when it expired": 2500.0}
HOW = st.sampled_from(["on an old read", *WAITS_S])

RECOVERIES = st.sampled_from(["rerun", "resume", "block"])
REQUESTS = st.sampled_from([None, b"", b"POST /orders"])
IDS, TENANTS = st.integers(0, 3), st.sampled_from(["acct_1", "acct_2"])
ANSWERS = st.builds(
    Answer,
    st.sampled_from([200, 404]),
    st.sampled_from([(), ((b"x-a", b"1"), (b"x-a", b"\xff"))]),
    st.one_of(st.none(), st.binary(max_size=20)),
)

Read = tuple[Record, Record]
"""A record as both stores returned it at one time; it may be out of date by now."""
Build = Callable[[Record], Swap]


class AgainstMemory(RuleBasedStateMachine):
    reads: Bundle[Read] = Bundle("reads")

    def __init__(self, subject: Subject, face: Face) -> None:
        super().__init__()
        clock = FakeClock()
        self.store, self.elapse_store = face, subject.elapse
        self.observed = subject.observed
        self.memory, self.elapse_memory = SyncFace(MemoryStore(clock)), clock.advance
        self.ids = sorted(new_id() for _ in range(4))
        self.fences: dict[bytes, dict[int, int]] = {record_id: {} for record_id in self.ids}
        self.was_set_back = False

    def teardown(self) -> None:
        """Leave the store empty for the next example."""
        self.elapse_store(1_000_000_000.0)
        # One more where a store keeps something for itself, which has expired by the fourth time.
        assert self.store.ask(Sweep(EVERYTHING)) <= len(self.ids) + 1
        assert self.store.ask(Count()) == dict.fromkeys(State, 0)

    # -------------------------------------------------------------------------- comparing

    def ask(self, verb: Verb, for_memory: Verb | None = None) -> Any:
        """Ask both; what they return must be the same. → a pair to go on with, if there is one"""
        one = self.store.ask(verb)
        other = self.memory.ask(for_memory or verb)
        assert type(one) is type(other), (one, other)
        match one:
            case Inserted() | Done():
                assert isinstance(verb, Insert | Swap | AppendStep)
                self.same_fence(verb.id, one.fence, other.fence)
            case Found():
                return self.same_record(one.record, other.record, may_be_copied=True)
            case Refused():
                return self.same_record(one.record, other.record)
            case Record():
                return self.same_record(one, other)
            case Glimpse():
                assert isinstance(verb, Peek)
                assert one.state is other.state
                self.same_fence(verb.id, one.fence, other.fence)
                if one.state is State.RUNNING:
                    assert one.lease_left_s == pytest.approx(other.lease_left_s, abs=TOLERANCE_S)
            case _:
                assert one == other
        return None

    def same_fence(self, record_id: bytes, one: int, other: int) -> None:
        known = self.fences[record_id]
        assert known.setdefault(one, other) == other, known
        assert [known[fence] for fence in sorted(known)] == sorted(known.values()), known

    def same_record(
        self, one: Record | None, other: Record | None, *, may_be_copied: bool = False
    ) -> Read | None:
        """What an insert finds may be a copy, as a tiered store has them: its counters stand still,
        and so does its time while a clock catches up.
        """
        if one is None or other is None:
            assert one is other
            return None
        if may_be_copied:
            one = dataclasses.replace(one, replays=other.replays, conflicts=other.conflicts)
        self.same_fence(one.id, one.fence, other.fence)
        assert timeless(dataclasses.replace(one, fence=other.fence)) == timeless(other)
        assert (one.lapsed, one.expired, one.overlong) == (
            other.lapsed,
            other.expired,
            other.overlong,
        )
        if not (may_be_copied and self.was_set_back):
            assert one.age_s == pytest.approx(other.age_s, abs=TOLERANCE_S)
            assert one.expires_in_s == pytest.approx(other.expires_in_s, abs=TOLERANCE_S)
        if one.state is State.RUNNING:
            assert one.lease_left_s == pytest.approx(other.lease_left_s, abs=TOLERANCE_S)
        return one, other

    def swap(self, read: Read, how: str, build: Build) -> Any:
        """Ask for a change, decided on what was read then or is read now. → the record after it"""
        if how != "on an old read":
            self.elapse(WAITS_S[how])
            read = self.ask(Find(read[0].id)) or read
        self.ask(build(read[0]), build(read[1]))
        self.ask(Requested(read[0].id))
        return self.find_again(read[0].id)

    def find_again(self, record_id: bytes) -> Any:
        read = self.ask(Find(record_id))
        return multiple() if read is None else read

    # ------------------------------------------------------------------------------ rules

    @rule(seconds=st.sampled_from(STEPS_S))
    def elapse(self, seconds: float) -> None:
        if seconds < 0 and self.observed:  # no clock of its own to be set back under a lease
            return
        self.was_set_back |= seconds < 0
        self.elapse_store(seconds)
        self.elapse_memory(seconds)

    @rule(
        target=reads,
        which=IDS,
        lease_s=st.sampled_from(LEASES_S),
        retention_s=st.sampled_from(RETENTIONS_S),
        recovery=RECOVERIES,
        request=REQUESTS,
        again=st.booleans(),
    )
    def insert(
        self,
        which: int,
        lease_s: float,
        retention_s: float,
        recovery: str,
        request: bytes | None,
        again: bool,
    ) -> Any:
        claim = self.claim(self.ids[which], lease_s, retention_s, recovery, request)
        self.ask(Insert(claim))
        if again:
            self.ask(Insert(claim))
        return self.find_again(claim.id)

    def claim(
        self,
        record_id: bytes,
        lease_s: float,
        retention_s: float,
        recovery: str,
        request: bytes | None,
    ) -> Claim:
        return Claim(
            id=record_id,
            token=new_token(),
            # An id belongs to one tenant for ever.
            tenant=f"acct_{self.ids.index(record_id) % 2 + 1}",
            operation="POST /orders",
            key="order-17",
            fingerprint=new_id(),
            fingerprint_version=1,
            lease_s=lease_s,
            retention_s=retention_s,
            recovery=recovery,
            field_digests={"amount": recovery},
            request=request,
        )

    @rule(target=reads, which=IDS)
    def find(self, which: int) -> Any:
        return self.find_again(self.ids[which])

    @rule(target=reads, read=reads, how=HOW, lease_s=st.sampled_from(LEASES_S))
    def renew(self, read: Read, how: str, lease_s: float) -> Any:
        return self.swap(
            read,
            how,
            lambda found: lifecycle.renew(owner(found), lease_s=lease_s, retention_s=1030.0),
        )

    @rule(
        target=reads,
        read=reads,
        how=HOW,
        answer=ANSWERS,
        resource=st.sampled_from([None, "", "o_1"]),
    )
    def complete(self, read: Read, how: str, answer: Answer, resource: str | None) -> Any:
        return self.swap(
            read,
            how,
            lambda found: lifecycle.complete(
                owner(found), answer, retention_s=2030.0, resource_id=resource
            ),
        )

    @rule(target=reads, read=reads, how=HOW, no_effect=st.booleans())
    def release(self, read: Read, how: str, no_effect: bool) -> Any:
        return self.swap(
            read,
            how,
            lambda found: lifecycle.release(owner(found), no_effect=no_effect, retention_s=1030.0),
        )

    @rule(
        target=reads,
        read=reads,
        how=HOW,
        lease_s=st.sampled_from(LEASES_S),
        recovery=RECOVERIES,
        request=REQUESTS,
        believe=st.booleans(),
    )
    def take(
        self,
        read: Read,
        how: str,
        lease_s: float,
        recovery: str,
        request: bytes | None,
        believe: bool,
    ) -> Any:
        """Also what was not free when it was read: the store, not the reader, must refuse it."""
        claim = self.claim(read[0].id, lease_s, 1030.0, recovery, request)
        return self.swap(read, how, lambda found: lifecycle.take(takeable(found, believe), claim))

    @rule(target=reads, read=reads, how=HOW)
    def doubt(self, read: Read, how: str) -> Any:
        token = new_token()
        return self.swap(
            read,
            how,
            lambda found: lifecycle.doubt(
                as_if(found, "doubt"), new_token=token, retention_s=2030.0
            ),
        )

    @rule(target=reads, read=reads, how=HOW, answer=st.one_of(st.none(), ANSWERS))
    def resolve(self, read: Read, how: str, answer: Answer | None) -> Any:
        token = new_token()
        return self.swap(
            read,
            how,
            lambda found: lifecycle.resolve(
                as_if(found, "resolve as released"),
                new_token=token,
                answer=answer,
                retention_s=1030.0,
            ),
        )

    @rule(target=reads, read=reads, how=HOW)
    def shorten(self, read: Read, how: str) -> Any:
        return self.swap(read, how, lambda found: lifecycle.shorten(as_if(found, "shorten")))

    @rule(read=reads, wrong=st.sampled_from(["fence", "token"]))
    def renew_with_a_wrong_proof(self, read: Read, wrong: str) -> None:
        token = new_token()

        def build(found: Record) -> Swap:
            right = lifecycle.renew(owner(found), lease_s=150.0, retention_s=1030.0)
            if wrong == "token":
                return dataclasses.replace(right, token=token)
            return dataclasses.replace(right, fence=right.fence + 1_000_000)

        self.swap(read, "at once", build)

    @rule(
        read=reads,
        name=st.sampled_from(["charge", "mail", "Charge"]),
        result=st.sampled_from([None, b"", b"\x00\xff"]),
    )
    def append_step(self, read: Read, name: str, result: bytes | None) -> None:
        step = Step(name, b"d", result)
        verbs = [AppendStep(found.id, found.fence, found.token, step) for found in read]
        self.ask(*verbs)
        self.ask(Steps(read[0].id))

    @rule(which=IDS)
    def look(self, which: int) -> None:
        self.ask(Peek(self.ids[which]))
        self.ask(Steps(self.ids[which]))
        self.ask(Requested(self.ids[which]))

    @rule(which=IDS, replays=st.integers(0, 3), conflicts=st.integers(0, 3))
    def tally(self, which: int, replays: int, conflicts: int) -> None:
        record_id = self.ids[which]
        self.ask(Tally({record_id: replays}, {record_id: conflicts, new_id(): 1}))

    @rule()
    def count(self) -> None:
        self.ask(Count())

    @rule()
    def due(self) -> None:
        for due in (Due(EVERYTHING), Due(EVERYTHING, abandoned=True)):
            assert set(self.store.ask(due)) == set(self.memory.ask(due))

    @rule()
    def sweep(self) -> None:
        self.ask(Sweep(EVERYTHING))

    @rule(tenant=TENANTS)
    def purge(self, tenant: str) -> None:
        self.ask(Purge(tenant, EVERYTHING))

    @rule(
        after=st.one_of(st.none(), IDS),
        limit=st.integers(1, 4),
        state=st.one_of(st.none(), st.sampled_from(State)),
        tenant=st.one_of(st.none(), TENANTS),
    )
    def scan(self, after: int | None, limit: int, state: State | None, tenant: str | None) -> None:
        scan = Scan(limit, b"" if after is None else self.ids[after], state, tenant)
        ours, theirs = self.store.ask(scan), self.memory.ask(scan)
        assert [record.id for record in ours] == [record.id for record in theirs]
        for one, other in zip(ours, theirs, strict=True):
            self.same_record(one, other)


def owner(found: Record) -> Held:
    return Held(found.id, found.fence, found.token)


def as_if(found: Record, move: str) -> Record:
    """The record in a state that allows the move, whatever it is: the store has to refuse."""
    sources = TRANSITIONS[move].sources
    return found if found.state in sources else dataclasses.replace(found, state=sources[0])


def takeable(found: Record, believe: bool) -> Record:
    """What was read, or, against better knowledge, an expired record."""
    if believe and (found.expired or found.state in (State.RUNNING, State.RELEASED)):
        return found
    return dataclasses.replace(found, expires_in_s=0.0)


_SLOW = {name: [pytest.mark.slow] for name in ("dynamodb", "mariadb", "mysql")}


@pytest.fixture(
    params=[pytest.param(name, marks=_SLOW.get(name, [])) for name in STORES if name != "memory"]
)
def subject(request: pytest.FixtureRequest) -> Subject:
    subject: Subject = request.getfixturevalue(request.param)
    return subject


def compare(subject: Subject, colour: str, examples: int) -> None:
    face = FACES[colour](subject.store)
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    machine: Any = partial(AgainstMemory, subject, face)
    try:
        run_state_machine_as_test(machine, settings=settings)
    finally:
        face.close()


@pytest.mark.parametrize("colour", FACES)
def test_it_behaves_like_memory(subject: Subject, colour: str, pytestconfig: pytest.Config) -> None:
    usual = 6 if subject.store.name == "dynamodb" else 25  # a question takes a driver a millisecond
    compare(subject, colour, examples=5 if pytestconfig.getoption("--fast") else usual)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("colour", FACES)
def test_it_behaves_like_memory_for_long(subject: Subject, colour: str) -> None:
    compare(subject, colour, examples=300)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("colour", FACES)
@pytest.mark.parametrize("name", MORE)
def test_more_ways_to_keep_records_behave_like_memory(
    request: pytest.FixtureRequest, name: str, colour: str
) -> None:
    compare(request.getfixturevalue(name), colour, examples=8)
