"""Time: every deadline is measured by the store's own clock, during the operation that uses it."""

from __future__ import annotations

import dataclasses

import pytest

from oncekey._core import lifecycle
from oncekey._core.policy import SECONDS_MAX
from oncekey._core.record import State
from oncekey._core.verbs import Due, Found, Insert, Peek, Sweep
from oncekey._system.clock import SystemClock
from oncekey.testing.contract.subject import Case, Contract, new_token, owner

CLOCKS_S = 0.002
"""How far two even clocks may drift apart while a test reads both."""


class TimeContract(Contract):
    def test_a_new_record_has_one_lease_and_then_its_retention(self, case: Case) -> None:
        record = case.begin()
        assert record.age_s == case.about(0)
        assert record.lease_left_s == case.about(case.lease_s)
        assert record.expires_in_s == case.about(case.lease_s + case.retention_s)

    def test_time_left_runs_down_and_age_runs_up(self, case: Case) -> None:
        record = case.begin()
        passed = case.lease_s / 2
        case.elapse(passed)
        later = case.find(record.id)
        assert later.age_s == case.about(passed)
        assert later.lease_left_s == case.about(case.lease_s - passed)
        assert later.expires_in_s == case.about(case.lease_s + case.retention_s - passed)
        found = case.ask(Insert(case.rival(record)))
        assert isinstance(found, Found)
        case.same(found.record, later)
        assert case.ask(Peek(record.id)).lease_left_s == case.about(later.lease_left_s)

    def test_a_lease_is_over_at_its_deadline(self, case: Case) -> None:
        record = case.begin()
        assert not record.lapsed
        case.elapse(case.lease_s)
        assert case.find(record.id).lapsed
        assert not case.find(record.id).expired

    def test_lapsed_too_early_to_be_taken_over(self, case: Case) -> None:
        record = case.begin()
        case.elapse(case.lease_s / 2)
        case.refused(case.take(record), case.find(record.id))

    def test_a_renewal_starts_a_new_lease_from_now(self, case: Case) -> None:
        record = case.begin()
        case.elapse(case.lease_s / 2)
        after = case.done(case.renew(record))
        assert after.lease_left_s == case.about(case.lease_s)
        assert after.expires_in_s == case.about(case.lease_s + case.retention_s)

    def test_whose_owner_ends_its_lease_it_is_lapsed_at_once(self, case: Case) -> None:
        record = case.begin()
        after = case.done(case.end_lease(record))
        assert after.lapsed
        assert after.expires_in_s == case.about(case.retention_s)
        assert record.id in case.ask(Due(100))
        taken = case.done(case.take(after))
        assert (taken.attempt, taken.lapses) == (2, 1)

    def test_a_renewal_may_be_longer_than_the_first_lease(self, case: Case) -> None:
        record = case.begin()
        longer = lifecycle.renew(
            owner(record), lease_s=case.lease_s * 3, retention_s=case.retention_s
        )
        after = case.done(longer)
        assert after.lease_left_s == case.about(case.lease_s * 3)
        assert after.lease_s == case.lease_s

    def test_a_renewal_saves_a_lapsed_lease_that_nobody_took(self, case: Case) -> None:
        record = case.begin()
        case.lapse()
        after = case.done(case.renew(record))
        assert not after.lapsed
        case.refused(case.take(record), after)

    @pytest.mark.parametrize("state", [State.COMPLETED, State.RELEASED, State.UNKNOWN])
    def test_retention_counts_from_the_end_not_from_the_beginning(
        self, case: Case, state: State
    ) -> None:
        """A handler that runs longer than its retention does not lose its answer."""
        record = case.begin()
        for _ in range(3):
            case.elapse(case.retention_s / 2)
            record = case.done(case.renew(record))
        match state:
            case State.COMPLETED:
                ended = case.done(case.complete(record))
            case State.RELEASED:
                ended = case.done(case.release(record))
            case _:
                case.lapse()
                ended = case.done(case.doubt(record))
        assert ended.expires_in_s == case.about(case.retention_s)
        assert case.ask(Sweep(10)) == 0

    def test_each_write_brings_its_own_retention(self, case: Case) -> None:
        longer = case.retention_s * 4
        after = case.done(case.complete(case.begin(), retention_s=longer))
        assert after.expires_in_s == case.about(longer)

    def test_what_has_ended_has_no_lease(self, case: Case) -> None:
        record = case.done(case.complete(case.begin()))
        case.elapse(case.lease_s * 1.2)
        later = case.find(record.id)
        assert later.state is State.COMPLETED
        assert not later.lapsed
        assert not later.expired

    @pytest.mark.parametrize("state", State)
    def test_a_record_expires_at_its_expiry(self, case: Case, state: State) -> None:
        record = case.stage(state)
        case.elapse(record.expires_in_s - case.tolerance_s)
        assert not case.find(record.id).expired
        case.elapse(case.tolerance_s)
        assert case.find(record.id).expired

    def test_a_take_over_starts_a_lease_of_its_own(self, case: Case) -> None:
        record = case.begin()
        case.lapse()
        lease_s, retention_s = case.lease_s * 2, case.retention_s * 2
        after = case.done(case.take(record, lease_s=lease_s, retention_s=retention_s))
        assert after.lease_left_s == case.about(lease_s)
        assert after.expires_in_s == case.about(lease_s + retention_s)
        assert (after.lease_s, after.retention_s) == (lease_s, retention_s)

    def test_leases_shorter_than_a_second_are_leases(self, case: Case) -> None:
        lease_s = 0.25
        record = case.begin(case.claim(lease_s=lease_s, retention_s=case.retention_s))
        assert record.lease_s == lease_s
        case.elapse(lease_s)
        assert case.find(record.id).lapsed
        assert case.find(record.id).expires_in_s == case.about(case.retention_s)

    @pytest.mark.parametrize("years_s", [10 * 365 * 86_400.0, 2 * SECONDS_MAX])
    def test_a_retention_of_years_is_kept_exactly(self, case: Case, years_s: float) -> None:
        """At most the sum of an answer's retention and its tombstone's: the time left tells which
        of them is over.
        """
        after = case.done(case.complete(case.begin(), retention_s=years_s))
        assert after.expires_in_s == case.about(years_s)

    @pytest.mark.parametrize("state", State)
    def test_p3_nothing_expires_before_its_time(self, case: Case, state: State) -> None:
        """Whatever the resolution of the store's clock."""
        for fraction_s in (0.0, 0.01, 0.049, 0.051, 0.099, 0.25, 0.777):
            self._expires_in_time(case, state, fraction_s)

    def _expires_in_time(self, case: Case, state: State, fraction_s: float) -> None:
        retention_s = case.retention_s + fraction_s
        lease_s = case.lease_s + fraction_s if state is State.RUNNING else 0.0
        record = case.begin(case.claim(lease_s=lease_s or case.lease_s, retention_s=retention_s))
        began_s = SystemClock.monotonic()
        match state:
            case State.RUNNING:
                held = owner(record)
                ended = lifecycle.renew(held, lease_s=lease_s, retention_s=retention_s)
            case State.COMPLETED:
                ended = case.complete(record, retention_s=retention_s)
            case State.RELEASED:
                held = owner(record)
                ended = lifecycle.release(held, no_effect=False, retention_s=retention_s)
            case State.UNKNOWN:
                case.lapse()
                began_s = SystemClock.monotonic()
                token = new_token()
                ended = lifecycle.doubt(record, new_token=token, retention_s=retention_s)
        after = case.done(ended)
        passed_s = SystemClock.monotonic() - began_s
        assert after.expires_in_s >= lease_s + retention_s - passed_s - CLOCKS_S

    def test_p3_a_claim_does_not_expire_before_its_time(self, case: Case) -> None:
        for fraction_s in (0.0, 0.049, 0.051, 0.777):
            lease_s, retention_s = case.lease_s + fraction_s, case.retention_s + fraction_s
            began_s = SystemClock.monotonic()
            record = case.begin(case.claim(lease_s=lease_s, retention_s=retention_s))
            passed_s = SystemClock.monotonic() - began_s
            assert record.expires_in_s >= lease_s + retention_s - passed_s - CLOCKS_S
            if not case.observed:
                assert record.lease_left_s >= lease_s - passed_s - CLOCKS_S
            assert record.expires_in_s >= record.lease_left_s

    # ---------------------------------------------------------------- a clock that was set back

    def test_p8_a_deadline_further_away_than_one_lease_is_cut_to_one(self, case: Case) -> None:
        record = case.begin()
        case.set_back(3600)
        found = case.find(record.id)
        if case.observed:  # it never was further away
            case.refused(lifecycle.shorten(found), found)
        else:
            assert found.overlong
            assert found.lease_left_s == case.about(case.lease_s + 3600)
            found = case.done(lifecycle.shorten(found))
        assert not found.overlong
        assert found.lease_left_s == case.about(case.lease_s)
        case.lapse()
        assert case.done(case.take(case.find(record.id))).attempt == 2

    def test_p8_a_lease_of_the_right_length_is_not_cut(self, case: Case) -> None:
        """The process that saw it overlong may be late: the owner has renewed meanwhile."""
        record = case.begin()
        case.set_back(3600)
        seen = case.find(record.id)
        renewed = case.done(case.renew(record))
        case.refused(lifecycle.shorten(seen), renewed)

    def test_p8_only_what_runs_is_overlong(self, case: Case) -> None:
        completed = case.stage(State.COMPLETED)
        case.set_back(3600)
        found = case.find(completed.id)
        assert not found.overlong
        pretended = dataclasses.replace(found, state=State.RUNNING)
        case.refused(lifecycle.shorten(pretended), found)

    def test_p8_the_owner_of_a_cut_lease_still_owns_it(self, case: Case) -> None:
        record = case.begin()
        case.set_back(3600)
        if not case.observed:
            case.done(lifecycle.shorten(case.find(record.id)))
        assert case.done(case.complete(record)).state is State.COMPLETED

    def test_p8_a_clock_that_was_set_back_ends_no_lease_early(self, case: Case) -> None:
        record = case.begin()
        case.set_back(3600)
        assert not case.find(record.id).lapsed
        case.refused(case.take(record), case.find(record.id))
