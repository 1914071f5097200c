"""Opening: connecting, preparing and migrating, and what the gatherers rely on."""

from __future__ import annotations

import asyncio
from typing import Any

from oncekey._core.record import State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Due,
    Find,
    Insert,
    Inserted,
    Peek,
    Purge,
    Requested,
    Scan,
    Steps,
    Sweep,
    Tally,
    Verb,
)
from oncekey.stores.base import AGAIN, Durability
from oncekey.stores.batching import AsyncGatherer
from oncekey.testing.contract.subject import Case, Contract, new_id


def one_of_each(case: Case) -> list[Verb]:
    """Return one verb of every kind; none affects another."""
    records = [case.begin() for _ in range(4)]
    step = Step("charge", b"d", b"r")
    return [
        Insert(case.claim()),
        case.renew(records[0]),
        case.complete(records[1]),
        case.release(records[2]),
        AppendStep(records[3].id, records[3].fence, records[3].token, step),
        Find(new_id()),
        Peek(new_id()),
        Steps(new_id()),
        Requested(new_id()),
        Tally({}, {}),
        Due(10),
        Due(10, abandoned=True),
        Sweep(10),
        Scan(10),
        Count(),
        Purge("nobody", 10),
    ]


class OpeningContract(Contract):
    def test_a_store_says_what_it_is_and_what_it_survives(self, case: Case) -> None:
        store = case.subject.store
        assert store.name
        assert isinstance(store.durability, Durability)
        assert store.durability.note

    def test_a_store_that_is_ready_is_found_fit(self, case: Case) -> None:
        for _ in range(3):
            assert case.drive(case.subject.store.prepare()) is None

    def test_migrating_again_applies_nothing_and_loses_nothing(self, case: Case) -> None:
        """Also beside running code: its records and its connections stay."""
        record = case.begin()
        case.drive(case.subject.store.migrate())
        assert case.drive(case.subject.store.migrate()) == []
        case.same(case.find(record.id), record)
        assert case.done(case.complete(record)).state is State.COMPLETED

    def test_every_verb_has_a_group_that_does_not_change(self, case: Case) -> None:
        group = case.subject.store.group
        for verb in one_of_each(case):
            assert hash(group(verb)) == hash(group(verb))
            assert group(verb) == group(verb)

    def test_a_verb_alone_is_never_asked_again(self, case: Case) -> None:
        for verb in one_of_each(case):
            [outcome] = case.drive(case.subject.store.perform([verb]))
            assert outcome is not AGAIN, verb

    def test_outcomes_come_in_the_order_of_the_verbs(self, case: Case) -> None:
        """Verbs of one group, however they are mixed."""
        store = case.subject.store
        verbs = one_of_each(case)
        alone = [type(case.ask(verb)) for verb in verbs[5:]]
        for group in {store.group(verb) for verb in verbs[5:]}:
            members = [at for at, verb in enumerate(verbs[5:]) if store.group(verb) == group]
            together = case.drive(store.perform([verbs[5:][at] for at in members]))
            assert [type(outcome) for outcome in together] == [alone[at] for at in members]

    def test_what_one_connection_wrote_another_reads(self, case: Case) -> None:
        claim = case.claim()
        [written] = case.drive(case.subject.store.perform([Insert(claim)]))
        [read] = case.drive(case.subject.store.perform([Find(claim.id)]))
        assert isinstance(written, Inserted)
        assert (read.token, read.fence) == (claim.token, written.fence)

    def test_an_event_loop_that_ends_in_the_middle_leaves_the_store_usable(
        self, case: Case
    ) -> None:
        """As when a program stops: the round trip may have happened, or not."""
        gatherer = AsyncGatherer(case.subject.store)
        claims = [case.claim() for _ in range(3)]

        async def begin_and_leave(turns: int) -> None:
            asked = asyncio.ensure_future(gatherer.ask(Insert(claims[turns])))
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()

        async def find_all() -> list[Any]:
            found = [await gatherer.ask(Find(claim.id)) for claim in claims]
            await gatherer.close()
            return found

        for turns in range(3):
            asyncio.run(begin_and_leave(turns))
        for record, claim in zip(asyncio.run(find_all()), claims, strict=True):
            assert record is None or record.token == claim.token
