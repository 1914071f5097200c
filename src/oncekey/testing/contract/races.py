"""Races: of writes at the same time exactly one wins, and the losers learn which."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from oncekey._core.record import Record, State
from oncekey._core.verbs import Count, Done, Found, Insert, Inserted, Refused, Swap, Sweep, Verb
from oncekey.testing.contract.subject import AsyncFace, Case, Contract, Face, SyncFace

RIVALS = 8
RECORDS = 12

Move = Callable[[Case, Record], Swap]


def one_wins(outcomes: Sequence[Any]) -> bool:
    assert all(isinstance(outcome, Done | Refused) for outcome in outcomes), outcomes
    return sum(isinstance(outcome, Done) for outcome in outcomes) == 1


def duel(case: Case, records: Sequence[Record], one: Move, other: Move) -> list[tuple[Any, Any]]:
    """Both moves on every record, each from a gatherer of its own, all at once."""
    verbs: list[Verb] = []
    for record in records:
        verbs += (one(case, record), other(case, record))
    outcomes = case.together(verbs, gatherers=2)
    return list(zip(outcomes[::2], outcomes[1::2], strict=True))


class RaceContract(Contract):
    @pytest.mark.parametrize("gatherers", [1, 2, 4])
    def test_p1_of_many_inserts_one_wins(self, case: Case, gatherers: int) -> None:
        first = case.claim()
        claims = [case.claim(id=first.id) for _ in range(RIVALS * 2)]
        outcomes = case.together([Insert(claim) for claim in claims], gatherers)
        assert {type(outcome) for outcome in outcomes} <= {Inserted, Found}, outcomes
        winners = [
            claim
            for claim, outcome in zip(claims, outcomes, strict=True)
            if isinstance(outcome, Inserted)
        ]
        assert len(winners) == 1
        found = [outcome.record for outcome in outcomes if isinstance(outcome, Found)]
        assert {record.token for record in found} == {winners[0].token}

    def test_p1_many_inserts_of_many_ids_have_one_winner_each(self, case: Case) -> None:
        """Two processes that bring the same ids in opposite order must not block each other."""
        ids = [case.claim().id for _ in range(RECORDS)]
        verbs: list[Verb] = []
        for one, other in zip(ids, reversed(ids), strict=True):
            verbs += (Insert(case.claim(id=one)), Insert(case.claim(id=other)))
        outcomes = case.together(verbs, gatherers=2)
        assert {type(outcome) for outcome in outcomes} <= {Inserted, Found}, outcomes
        assert sum(isinstance(outcome, Inserted) for outcome in outcomes) == RECORDS

    def test_p1_threads_and_tasks_compete_for_one_record(self, case: Case) -> None:
        store, claim = case.subject.store, case.claim()
        faces: list[Face] = [SyncFace(store), AsyncFace(store)]
        verbs = [[Insert(case.claim(id=claim.id)) for _ in range(RIVALS)] for _ in faces]
        outcomes: list[Any] = []

        def ask(number: int) -> None:
            outcomes.extend(faces[number].together(verbs[number]))
            faces[number].close()

        threads = [threading.Thread(target=ask, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == RIVALS * 2
        assert {type(outcome) for outcome in outcomes} == {Inserted, Found}, outcomes
        assert sum(isinstance(outcome, Inserted) for outcome in outcomes) == 1

    @pytest.mark.parametrize("gatherers", [1, 2, 4])
    def test_p1_of_many_take_overs_one_wins(self, case: Case, gatherers: int) -> None:
        record = case.begin()
        case.lapse()
        swaps = [case.take(record) for _ in range(RIVALS)]
        outcomes = case.together(swaps, gatherers)
        assert one_wins(outcomes)
        winner = next(s for s, o in zip(swaps, outcomes, strict=True) if isinstance(o, Done))
        after = case.find(record.id)
        assert (after.token, after.attempt, after.lapses) == (winner.new_token, 2, 1)
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                assert outcome.record is not None
                assert outcome.record.token == winner.new_token

    def test_p1_of_many_that_run_a_released_record_again_one_wins(self, case: Case) -> None:
        record = case.stage(State.RELEASED)
        assert one_wins(case.together([case.take(record) for _ in range(RIVALS)], 2))

    def test_p1_of_many_that_start_over_one_wins(self, case: Case) -> None:
        record = case.stage(State.COMPLETED)
        case.expire()
        found = case.find(record.id)
        assert one_wins(case.together([case.take(found) for _ in range(RIVALS)], 2))

    @pytest.mark.parametrize(
        "move",
        [Case.renew, Case.complete, Case.release],
        ids=["renew", "complete", "release"],
    )
    def test_p1_a_take_over_and_what_the_owner_writes_never_both_happen(
        self, case: Case, move: Move
    ) -> None:
        records = [case.begin() for _ in range(RECORDS)]
        case.lapse()
        outcomes = duel(case, records, move, Case.take)
        assert all(one_wins(pair) for pair in outcomes)

    def test_p1_a_take_over_and_a_doubt_never_both_happen(self, case: Case) -> None:
        records = [case.begin() for _ in range(RECORDS)]
        case.lapse()
        assert all(one_wins(pair) for pair in duel(case, records, Case.doubt, Case.take))

    def test_a_completion_and_a_release_never_both_happen(self, case: Case) -> None:
        records = [case.begin() for _ in range(RECORDS)]
        assert all(one_wins(pair) for pair in duel(case, records, Case.complete, Case.release))

    def test_two_operators_resolve_an_unknown_once(self, case: Case) -> None:
        records = [case.stage(State.UNKNOWN) for _ in range(3)]
        outcomes = duel(case, records, Case.resolve, lambda c, found: c.resolve(found, None))
        assert all(one_wins(pair) for pair in outcomes)

    def test_crossing_swaps_of_two_gatherers_do_not_block_each_other(self, case: Case) -> None:
        """Both renew all records, in opposite order: batches must take rows in one order."""
        records = [case.begin() for _ in range(RECORDS)]
        verbs: list[Verb] = []
        for one, other in zip(records, reversed(records), strict=True):
            verbs += (case.renew(one), case.renew(other))
        outcomes = case.together(verbs, gatherers=2)
        assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes
        assert [case.find(record.id).beat for record in records] == [2] * RECORDS

    # ---------------------------------------------------------------------- against the sweep

    def test_p10_a_record_starts_over_or_is_swept_never_both(self, case: Case) -> None:
        records = [case.begin() for _ in range(RECORDS)]
        case.expire()
        found = [case.find(record.id) for record in records]
        swaps: list[Verb] = [case.take(record) for record in found]
        *outcomes, swept = case.together([*swaps, Sweep(RECORDS)], gatherers=2)
        started = sum(isinstance(outcome, Done) for outcome in outcomes)
        assert started + swept == RECORDS
        assert case.ask(Count())[State.RUNNING] == started
        assert sum(outcome == Refused(None) for outcome in outcomes) == swept

    def test_p10_a_record_is_renewed_or_swept_never_both(self, case: Case) -> None:
        records = [case.begin() for _ in range(RECORDS)]
        case.expire()
        swaps: list[Verb] = [case.renew(record) for record in records]
        *outcomes, swept = case.together([*swaps, Sweep(RECORDS)], gatherers=2)
        renewed = sum(isinstance(outcome, Done) for outcome in outcomes)
        assert renewed + swept == RECORDS
        assert case.ask(Count())[State.RUNNING] == renewed

    def test_inserts_beside_a_sweep_insert_or_find(self, case: Case) -> None:
        """A record removed between the conflict and the read is no reason to fail."""
        records = [case.begin() for _ in range(RECORDS)]
        case.expire()
        verbs: list[Verb] = []
        for record in records:
            verbs += (Insert(case.rival(record)), Sweep(3))
        outcomes = case.together(verbs, gatherers=2)
        assert {type(outcome) for outcome in outcomes[::2]} <= {Inserted, Found}, outcomes
        inserted = sum(isinstance(outcome, Inserted) for outcome in outcomes[::2])
        swept = sum(outcomes[1::2])
        assert case.ask(Count())[State.RUNNING] == RECORDS - swept + inserted

    def test_two_sweeps_at_once_count_each_record_once(self, case: Case) -> None:
        for _ in range(RECORDS):
            case.begin()
        case.expire()
        swept = case.together([Sweep(5)] * 6, gatherers=2)
        rest = case.ask(Sweep(RECORDS))  # a sweep may skip records that another sweep is removing
        assert sum(swept) + rest == RECORDS
        assert case.ask(Count())[State.RUNNING] == 0
