"""Insert: write a new running record, or find the existing one and write nothing."""

from __future__ import annotations

import pytest

from oncekey._core.record import State
from oncekey._core.verbs import Find, Found, Insert, Inserted, Requested, Sweep
from oncekey.testing.contract.subject import ANSWER, Case, Contract


class InsertContract(Contract):
    def test_a_new_record_runs_its_first_attempt(self, case: Case) -> None:
        claim = case.claim()
        outcome = case.ask(Insert(claim))
        assert isinstance(outcome, Inserted)
        record = case.find(claim.id)
        assert (record.state, record.fence) == (State.RUNNING, outcome.fence)
        assert (record.attempt, record.lapses, record.beat) == (1, 0, 0)
        assert (record.replays, record.conflicts) == (0, 0)
        assert (record.answer, record.resource_id, record.no_effect) == (None, None, False)

    def test_the_claim_is_written_down(self, case: Case) -> None:
        claim = case.claim(
            recovery="block",
            schema_version=7,
            fingerprint_version=3,
            field_digests={"amount": "ab12", "währung": "cd34"},
            request=b"POST /orders",
        )
        record = case.begin(claim)
        assert case.ask(Requested(claim.id)) == claim.request
        for name in claim.__dataclass_fields__.keys() - {"request"}:
            assert getattr(record, name) == getattr(claim, name), name

    def test_a_fence_is_positive(self, case: Case) -> None:
        assert case.begin().fence > 0

    @pytest.mark.parametrize("state", State)
    def test_what_is_there_is_found_and_nothing_is_written(self, case: Case, state: State) -> None:
        """In particular not the beat and the deadlines: a retry is not a renewal."""
        there = case.stage(state)
        case.elapse(case.lease_s / 2)
        before = case.find(there.id)
        other = case.rival(
            there,
            tenant="acct_2",
            operation="POST /refunds",
            key="another",
            fingerprint=b"\x02" * 32,
            fingerprint_version=2,
            lease_s=case.lease_s * 10,
            retention_s=case.retention_s * 10,
            recovery="block",
            schema_version=9,
            field_digests={"amount": "ff"},
        )
        outcome = case.ask(Insert(other))
        assert isinstance(outcome, Found)
        case.same(outcome.record, before)
        case.same(case.find(there.id), before)

    @pytest.mark.parametrize("state", State)
    def test_an_expired_record_is_found_as_it_is(self, case: Case, state: State) -> None:
        there = case.stage(state)
        case.expire()
        outcome = case.ask(Insert(case.rival(there)))
        assert isinstance(outcome, Found)
        assert outcome.record.expired
        assert outcome.record.token == there.token
        assert outcome.record.answer == there.answer

    def test_a_completed_record_is_found_with_its_answer(self, case: Case) -> None:
        """A replay costs only one round trip."""
        there = case.stage(State.COMPLETED)
        outcome = case.ask(Insert(case.rival(there)))
        assert isinstance(outcome, Found)
        assert outcome.record.answer == ANSWER
        assert outcome.record.resource_id == "order_1"

    def test_p9_repeating_an_insert_finds_its_own_token(self, case: Case) -> None:
        claim = case.claim()
        first = case.ask(Insert(claim))
        again = case.ask(Insert(claim))
        assert isinstance(again, Found)
        assert again.record.token == claim.token
        assert again.record.fence == first.fence

    def test_ids_that_share_all_but_their_last_byte_are_two_records(self, case: Case) -> None:
        one = case.claim(id=b"\x00" * 31 + b"\x01")
        two = case.claim(id=b"\x00" * 31 + b"\x02")
        assert case.begin(one).token == one.token
        assert case.begin(two).token == two.token

    def test_after_a_sweep_the_id_is_as_new(self, case: Case) -> None:
        swept = case.stage(State.COMPLETED)
        case.expire()
        assert case.ask(Sweep(10)) == 1
        assert case.ask(Find(swept.id)) is None
        again = case.begin(case.rival(swept))
        assert (again.attempt, again.beat, again.answer) == (1, 0, None)
        assert again.age_s == case.about(0)
