"""What housekeeping keeps in a store beside the records of requests: on every engine."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import run
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind
from oncekey._core.quota import Quota
from oncekey._core.record import Answer, Record
from oncekey._core.verbs import Find
from oncekey._engine.decisions import Call, Execute, Refuse, Replay
from oncekey._engine.guard import Guard
from oncekey._engine.tombstones import MARGIN_S, SPAN_S, TOGETHER
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.connection import StoreConnection
from oncekey.testing.contract import Subject

pytestmark = pytest.mark.slow

RETENTION_S, TOMBSTONE_S = 600.0, 86_400.0
LONGER_S = 1.0
"""Stores that round when something ends keep it a little longer."""
SECRET = Answer(201, ((b"x-note", b"private"),), b"private" * 1000)


def go_on() -> bool:
    return False


class Process:
    """An application on the store under test; its clock moves with the store's."""

    def __init__(self, subject: Subject, clock: FakeClock, quota: Quota | None = None) -> None:
        self.clock, self.elapse = clock, subject.elapse
        self.guard = Guard(clock=clock, quota=quota)
        self.policy = Policy(retention_s=RETENTION_S, tombstone_s=TOMBSTONE_S).settled()
        self.gatherer = Gatherer(subject.store)
        self.line = StoreConnection(subject.store)

    def close(self) -> None:
        self.gatherer.close()
        self.line.close()

    def begin(self, key: str) -> Any:
        return run(self.guard.begin(call(key), self.policy), self.gatherer.ask)

    def done(self, key: str) -> None:
        attempt = self.begin(key).attempt
        run(self.guard.ownership.finish(attempt, SECRET, call(key)), self.gatherer.ask)

    def refused(self, key: str) -> Kind:
        decision = self.begin(key)
        assert isinstance(decision, Refuse), decision
        return decision.problem.kind

    def found(self, key: str) -> Record:
        record: Record = self.gatherer.ask(Find(self.guard.claim(call(key), self.policy).id))
        return record

    def pass_(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.elapse(seconds)


def call(key: str) -> Call:
    return Call("acme", "POST /orders", key, Fingerprint(1, bytes(32)))


def test_e67_content_goes_and_the_tombstone_stays(subject: Subject) -> None:
    with closing(Process(subject, FakeClock())) as process:
        keys = [f"key-{number}" for number in range(TOGETHER + 1)]
        for key in keys:
            process.done(key)
        process.guard.ownership.tombstones.work(process.line, go_on)
        replayed = process.begin(keys[0])
        assert isinstance(replayed, Replay)
        assert replayed.answer == SECRET
        process.pass_(RETENTION_S + LONGER_S)
        assert {process.refused(key) for key in keys} == {Kind.KEY_EXPIRED}
        process.pass_(SPAN_S + MARGIN_S)
        process.guard.ownership.tombstones.work(process.line, go_on)
        for key in keys:
            record = process.found(key)
            assert record.answer is not None
            assert (record.key, record.answer.body, len(record.answer.headers)) == ("", None, 1)
            assert process.refused(key) is Kind.KEY_EXPIRED
        process.pass_(TOMBSTONE_S)
        assert isinstance(process.begin(keys[0]), Execute)


def test_e49_processes_share_what_they_count(subject: Subject) -> None:
    clock, quota = FakeClock(), Quota(records_max=5)
    with (
        closing(Process(subject, clock, quota)) as first,
        closing(Process(subject, clock, quota)) as second,
    ):
        assert first.guard.quotas is not None
        assert second.guard.quotas is not None
        for number in range(4):
            first.done(f"first-{number}")
        first.guard.quotas.work(first.line, go_on)
        second.done("second")
        second.guard.quotas.work(second.line, go_on)
        assert second.refused("third") is Kind.OVER_QUOTA
        assert isinstance(second.begin("first-0"), Replay)
        first.clock.advance(60)
        first.guard.quotas.work(first.line, go_on)
        assert first.refused("third") is Kind.OVER_QUOTA
