"""Helpers for the tests of sealed stores."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from oncekey._core.op import Op, run
from oncekey._core.record import Record
from oncekey._core.verbs import Due, Find, Insert, Scan, Verb
from oncekey.stores.base import AsyncConnection, Connection
from oncekey.stores.sealed.store import SealedStore
from oncekey.testing.contract import Subject

SECRET = "the first secret of more than thirty-two characters"
SECOND = "the second secret of more than thirty-two characters"
EVERYTHING = 10_000
KEYRING_RENEWED_AFTER_S = 1e8


class RealIdStore:
    """A sealed store for callers that know every real id, as the contract's tests do.

    `Due` and `Scan` of a sealed store return hashed ids, in their order, and a purge removes the
    tenant's name; this class translates both back. Everything else is the sealed store's own work.
    """

    def __init__(self, store: SealedStore) -> None:
        self.sealed = store
        self.name, self.durability = store.name, store.durability
        self._claimed: dict[bytes, str] = {}
        """Real ids, and whose they are."""
        self._real: dict[bytes, bytes] = {}

    def group(self, verb: Verb) -> Hashable:
        return self.sealed.group(verb)

    def connect(self) -> Connection:
        return self.sealed.connect()

    async def aconnect(self) -> AsyncConnection:
        return await self.sealed.aconnect()

    def prepare(self) -> Op[None]:
        return self.sealed.prepare()

    def migrate(self) -> Op[list[str]]:
        return self.sealed.migrate()

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        seal = yield from self.sealed.load_seal()
        for verb in verbs:
            if isinstance(verb, Insert):
                self._claimed[verb.id] = verb.claim.tenant
                self._real[seal.hashed_id(verb.id)] = verb.id
        if any(isinstance(verb, Scan) for verb in verbs):
            outcomes = []
            for verb in verbs:
                outcomes.append((yield from self._perform_one(verb)))
            return outcomes
        outcomes = yield from self.sealed.perform(verbs)
        return [
            self._with_real_ids(verb, outcome)
            for verb, outcome in zip(verbs, outcomes, strict=True)
        ]

    def _perform_one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Scan):
            return (yield from self._scan(verb))
        [outcome] = yield from self.sealed.perform([verb])
        return self._with_real_ids(verb, outcome)

    def _with_real_ids(self, verb: Verb, outcome: Any) -> Any:
        if isinstance(verb, Due):
            return [self._real[record_id] for record_id in outcome]
        if isinstance(outcome, Record):
            return self._with_tenant(outcome)
        record = getattr(outcome, "record", None)
        return outcome if record is None else replace(outcome, record=self._with_tenant(record))

    def _with_tenant(self, record: Record) -> Record:
        return record if record.key else replace(record, tenant=self._claimed[record.id])

    def _scan(self, verb: Scan) -> Op[list[Record]]:
        [shown] = yield from self.sealed.perform([replace(verb, limit=EVERYTHING, after=b"")])
        found = []
        for each in shown:
            assert each.answer is None or each.answer.body is None
            [record] = yield from self.sealed.perform([Find(self._real[each.id])])
            if record.answer is not None:
                record = replace(record, answer=replace(record.answer, body=None))
            found.append(self._with_tenant(record))
        after = [record for record in found if record.id > verb.after]
        return sorted(after, key=lambda record: record.id)[: max(verb.limit, 0)]


def sealed_subject(subject: Subject, *secrets: str) -> Subject:
    """Seal a store under test."""
    store = SealedStore(subject.store, secrets or (SECRET,))

    def elapse(seconds: float) -> None:
        subject.elapse(seconds)
        if seconds > KEYRING_RENEWED_AFTER_S:
            prepare(store)

    prepare(store)
    return Subject(RealIdStore(store), elapse=elapse, observed=subject.observed)


def prepare(store: SealedStore) -> None:
    """Connect and run the store's checks, as every connection does."""
    with closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)


def ask(store: Any, *verbs: Verb) -> list[Any]:
    """Perform verbs one by one on a new, checked connection."""
    with closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)
        return [run(store.perform([verb]), connection.ask)[0] for verb in verbs]
