"""Kept requests: what it takes to finish an attempt without its client, stored while it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncekey._core import lifecycle
from oncekey._core.record import Record, State
from oncekey._core.verbs import Done, Found, Insert, Inserted, Purge, Requested, Swap, Sweep
from oncekey.stores.batching import BATCH_BYTES_MAX
from oncekey.testing.contract.subject import Case, Contract, new_id, new_token

FIRST, SECOND = b"POST /orders one", b"POST /orders two"


def begin(case: Case, request: bytes | None = FIRST) -> Record:
    return case.begin(case.claim(request=request))


ENDS: dict[str, Callable[[Case, Record], Swap]] = {
    "complete": Case.complete,
    "release": Case.release,
    "release without effect": lambda case, record: case.release(record, no_effect=True),
    "give up": Case.give_up,
}


class RequestContract(Contract):
    def test_of_nothing_nothing_was_requested(self, case: Case) -> None:
        assert case.ask(Requested(new_id())) is None

    def test_a_claim_without_a_request_keeps_none(self, case: Case) -> None:
        assert case.ask(Requested(case.begin().id)) is None

    @pytest.mark.parametrize(
        "request_bytes", [b"", b"\x00", bytes(range(256)), b"x" * 100_000], ids=len
    )
    def test_it_is_kept_byte_for_byte_while_it_runs(self, case: Case, request_bytes: bytes) -> None:
        record = begin(case, request_bytes)
        assert case.ask(Requested(record.id)) == request_bytes
        case.done(case.renew(record))
        case.lapse()
        assert case.ask(Requested(record.id)) == request_bytes

    def test_who_finds_the_record_keeps_nothing(self, case: Case) -> None:
        record = begin(case)
        without = case.begin()
        assert isinstance(case.ask(Insert(case.rival(record, request=SECOND))), Found)
        assert isinstance(case.ask(Insert(case.rival(without, request=SECOND))), Found)
        assert case.ask(Requested(record.id)) == FIRST
        assert case.ask(Requested(without.id)) is None

    # ------------------------------------------------------------------------------ forgotten

    @pytest.mark.parametrize("how", ENDS)
    def test_what_its_owner_ends_is_forgotten(self, case: Case, how: str) -> None:
        record = begin(case)
        case.done(ENDS[how](case, record))
        assert case.ask(Requested(record.id)) is None

    def test_ending_many_at_once_forgets_each(self, case: Case) -> None:
        records = [begin(case) for _ in range(12)]
        lasting = begin(case)
        ways = [ENDS[how] for how in ("complete", "complete", "release", "give up")] * 3
        swaps = [end(case, record) for end, record in zip(ways, records, strict=True)]
        outcomes = case.together([*swaps, case.renew(lasting)])
        assert {type(outcome) for outcome in outcomes} == {Done}
        asked = case.together([Requested(record.id) for record in records])
        assert asked == [None] * len(records)
        assert case.ask(Requested(lasting.id)) == FIRST

    def test_doubt_and_its_resolution_forget_it(self, case: Case) -> None:
        record = begin(case)
        case.lapse()
        unknown = case.done(case.doubt(record))
        assert case.ask(Requested(record.id)) is None
        case.done(case.resolve(unknown, None))
        assert case.ask(Requested(record.id)) is None

    def test_it_does_not_come_back_when_the_record_runs_again(self, case: Case) -> None:
        record = begin(case)
        case.done(case.release(record))
        case.done(case.take(case.find(record.id)))
        assert case.ask(Requested(record.id)) is None

    def test_what_is_refused_forgets_nothing(self, case: Case) -> None:
        record = begin(case)
        stranger = lifecycle.Held(record.id, record.fence, new_token())
        for held in (stranger, lifecycle.Held(record.id, record.fence + 1, record.token)):
            case.refused(
                lifecycle.release(held, no_effect=False, retention_s=case.retention_s), record
            )
        case.refused(case.take(record, request=SECOND), record)
        assert case.ask(Requested(record.id)) == FIRST

    def test_a_sweep_removes_it(self, case: Case) -> None:
        record = begin(case)
        case.expire()
        assert case.ask(Sweep(10)) == 1
        assert case.ask(Requested(record.id)) is None
        case.begin(case.rival(record))
        assert case.ask(Requested(record.id)) is None

    def test_a_purge_leaves_that_of_a_running_one_to_its_end(self, case: Case) -> None:
        record = case.begin(case.claim(tenant="leaving", request=FIRST))
        assert case.ask(Purge("leaving", 10)) == 0
        assert case.ask(Requested(record.id)) == FIRST
        case.done(case.release(record))
        assert case.ask(Purge("leaving", 10)) == 1
        assert case.ask(Requested(record.id)) is None

    # ------------------------------------------------------------------------------- replaced

    @pytest.mark.parametrize("request_bytes", [SECOND, FIRST, None])
    @pytest.mark.parametrize("way", ["take over", "run again", "start over"])
    def test_the_next_claim_brings_its_own(
        self, case: Case, way: str, request_bytes: bytes | None
    ) -> None:
        """If it brings none, there is none: another claim's request would be wrong."""
        record = begin(case)
        match way:
            case "take over":
                case.lapse()
            case "run again":
                case.done(case.release(record))
            case "start over":
                case.expire()
        again = case.done(case.take(case.find(record.id), request=request_bytes))
        assert again.state is State.RUNNING
        assert case.ask(Requested(record.id)) == request_bytes
        case.done(case.complete(again))
        assert case.ask(Requested(record.id)) is None

    def test_a_record_that_had_none_gets_one(self, case: Case) -> None:
        record = case.begin()
        case.lapse()
        case.done(case.take(record, request=SECOND))
        assert case.ask(Requested(record.id)) == SECOND

    # -------------------------------------------------------------------------------- batches

    def test_each_of_a_crowd_has_its_own(self, case: Case) -> None:
        """With and without a request, beyond what one batch may hold."""
        sizes = [None, 0, 10, BATCH_BYTES_MAX // 4] * 6
        claims = [
            case.claim(request=None if size is None else bytes((number,)) * size)
            for number, size in enumerate(sizes)
        ]
        outcomes = case.together([Insert(claim) for claim in claims])
        assert {type(outcome) for outcome in outcomes} == {Inserted}
        asked = case.together([Requested(claim.id) for claim in claims])
        # Compare outside the assertion: showing where long bytes differ can take minutes.
        same = [one == claim.request for one, claim in zip(asked, claims, strict=True)]
        assert all(same), same
        found = case.together([Insert(case.claim(id=claim.id)) for claim in claims])
        assert {type(outcome) for outcome in found} == {Found}
