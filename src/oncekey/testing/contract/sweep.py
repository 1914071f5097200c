"""Due and sweep: a hint at what needs work, and the removal of expired records."""

from __future__ import annotations

import pytest

from oncekey._core.record import State
from oncekey._core.verbs import Count, Due, Find, Found, Insert, Inserted, Sweep
from oncekey.errors import StoreUnavailable
from oncekey.testing.contract.subject import Case, Contract


class SweepContract(Contract):
    @pytest.mark.parametrize("state", State)
    def test_p10_nothing_is_swept_before_it_expires(self, case: Case, state: State) -> None:
        record = case.stage(state)
        assert case.ask(Sweep(10)) == 0
        case.elapse(record.expires_in_s - case.tolerance_s)
        assert case.ask(Sweep(10)) == 0
        assert case.find(record.id).state is state

    @pytest.mark.parametrize("state", State)
    def test_what_is_expired_is_swept(self, case: Case, state: State) -> None:
        record = case.stage(state)
        case.expire()
        assert case.ask(Sweep(10)) == 1
        assert case.ask(Find(record.id)) is None
        assert case.ask(Sweep(10)) == 0

    def test_p10_a_lease_that_is_renewed_is_never_swept(self, case: Case) -> None:
        record = case.begin()
        for _ in range(4):
            case.elapse(case.retention_s * 0.8)
            case.done(case.renew(record))
            assert case.ask(Sweep(10)) == 0
        assert case.find(record.id).state is State.RUNNING

    def test_p10_a_record_that_started_over_is_not_swept(self, case: Case) -> None:
        """Checked at the removal: it was expired a moment ago."""
        record = case.begin()
        case.expire()
        case.done(case.take(case.find(record.id)))
        assert case.ask(Sweep(10)) == 0

    def test_p10_a_lapsed_record_is_left_for_whoever_takes_it_over(self, case: Case) -> None:
        record = case.begin()
        case.lapse()
        assert case.ask(Sweep(10)) == 0
        assert case.done(case.take(record)).attempt == 2

    def test_p10_the_living_survive_among_the_expired(self, case: Case) -> None:
        expired = [case.stage(state).id for state in State]
        case.expire()
        living = [case.stage(state).id for state in State]
        assert case.ask(Sweep(100)) == len(expired)
        assert [case.ask(Find(record_id)) for record_id in expired] == [None] * len(expired)
        assert [case.find(record_id).state for record_id in living] == list(State)

    def test_a_sweep_has_a_limit(self, case: Case) -> None:
        for _ in range(5):
            case.begin()
        case.expire()
        assert [case.ask(Sweep(2)) for _ in range(4)] == [2, 2, 1, 0]
        assert case.ask(Count())[State.RUNNING] == 0

    # ----------------------------------------------------------------------------------- due

    def test_nothing_is_due_at_first(self, case: Case) -> None:
        for state in (State.RUNNING, State.COMPLETED, State.RELEASED):
            case.stage(state)
        assert case.ask(Due(10)) == []

    def test_what_lapsed_or_expired_is_due(self, case: Case) -> None:
        completed = case.stage(State.COMPLETED)
        running = case.begin()
        case.lapse()
        assert case.ask(Due(10)) == [running.id]
        case.expire()
        assert set(case.ask(Due(10))) == {running.id, completed.id}

    def test_what_waits_longest_is_due_first(self, case: Case) -> None:
        ids = []
        for _ in range(4):
            ids.append(case.begin().id)
            case.elapse(case.lease_s)
        assert case.ask(Due(10)) == ids
        assert case.ask(Due(2)) == ids[:2]

    def test_what_was_taken_over_or_ended_is_not_due(self, case: Case) -> None:
        records = [case.begin() for _ in range(3)]
        case.lapse()
        assert len(case.ask(Due(10))) == 3
        case.done(case.take(records[0]))
        case.done(case.complete(records[1]))
        case.done(case.renew(records[2]))
        assert case.ask(Due(10)) == []

    def test_an_unknown_is_not_due_until_it_expires(self, case: Case) -> None:
        record = case.stage(State.UNKNOWN)
        assert case.ask(Due(10)) == []
        case.expire()
        assert case.ask(Due(10)) == [record.id]

    def test_asking_what_is_due_removes_nothing(self, case: Case) -> None:
        record = case.begin()
        case.expire()
        assert case.ask(Due(10)) == case.ask(Due(10)) == [record.id]

    # ----------------------------------------------------------------------------- abandoned

    @pytest.mark.parametrize("recovery", ["resume", "block", "ask"])
    def test_what_no_retry_runs_again_is_abandoned_once_it_lapsed(
        self, case: Case, recovery: str
    ) -> None:
        record = case.begin(case.claim(recovery=recovery))
        assert case.ask(Due(10, abandoned=True)) == []
        case.lapse()
        assert case.ask(Due(10, abandoned=True)) == [record.id]

    def test_only_what_is_lapsed_is_abandoned(self, case: Case) -> None:
        """Neither what a retry runs again, nor what has ended, however long ago."""
        for state in (State.COMPLETED, State.RELEASED, State.UNKNOWN):
            case.stage(state, case.claim(recovery="resume"))
        case.begin()
        case.expire()
        assert len(case.ask(Due(10))) == 4
        assert case.ask(Due(10, abandoned=True)) == []

    def test_what_lapsed_first_was_abandoned_first(self, case: Case) -> None:
        ids = []
        for _ in range(4):
            ids.append(case.begin(case.claim(recovery="resume")).id)
            case.begin()
            case.elapse(case.lease_s)
        assert case.ask(Due(10, abandoned=True)) == ids
        assert case.ask(Due(2, abandoned=True)) == ids[:2]

    def test_what_is_taken_care_of_is_not_abandoned(self, case: Case) -> None:
        records = [case.begin(case.claim(recovery="resume")) for _ in range(4)]
        case.lapse()
        assert len(case.ask(Due(10, abandoned=True))) == 4
        case.done(case.take(records[0], recovery="resume"))
        case.done(case.complete(records[1]))
        case.done(case.renew(records[2]))
        case.done(case.doubt(records[3]))
        assert case.ask(Due(10, abandoned=True)) == []
        case.lapse()
        assert set(case.ask(Due(10, abandoned=True))) == {records[0].id, records[2].id}

    def test_the_claim_that_runs_says_whether_it_can_be_abandoned(self, case: Case) -> None:
        """A deployment may change an operation's recovery between two attempts."""
        records = [case.begin(case.claim(recovery=name)) for name in ("rerun", "resume")]
        case.lapse()
        case.done(case.take(records[0], recovery="resume"))
        case.done(case.take(records[1], recovery="rerun"))
        case.lapse()
        assert case.ask(Due(10, abandoned=True)) == [records[0].id]

    def test_a_crowd_that_only_retries_run_again_hides_nothing(self, case: Case) -> None:
        crowd = [Insert(case.claim()) for _ in range(2000)]
        for at in range(0, len(crowd), 250):
            together = crowd[at : at + 250]
            for insert, outcome in zip(together, case.together(together), strict=True):
                if isinstance(outcome, StoreUnavailable):  # any verb may be asked again
                    outcome = case.ask(insert)
                ours = isinstance(outcome, Found) and outcome.record.token == insert.claim.token
                assert ours or isinstance(outcome, Inserted)
        case.lapse()
        record = case.begin(case.claim(recovery="ask"))
        case.lapse()
        assert case.ask(Due(10, abandoned=True)) == [record.id]
