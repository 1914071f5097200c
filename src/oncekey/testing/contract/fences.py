"""Fences and tokens: an attempt that has lost its record can no longer write to it."""

from __future__ import annotations

import dataclasses

import pytest

from oncekey._core.lifecycle import took_effect
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import AppendStep, Find, Refused, Sweep, Verb
from oncekey.testing.contract.subject import ANSWER, Case, Contract

ZOMBIE = Answer(200, (), b"too late")


def late_writes(case: Case, owned: Record) -> list[Verb]:
    """Return everything that an attempt may still try after it lost its record."""
    return [
        case.renew(owned),
        case.complete(owned, ZOMBIE),
        case.release(owned, no_effect=True),
        AppendStep(owned.id, owned.fence, owned.token, Step("charge", b"d", b"late")),
    ]


class FenceContract(Contract):
    def test_fences_rise_with_every_owner_for_ever(self, case: Case) -> None:
        """Over take-over, doubt, resolution, release, expiry and removal."""
        record = case.begin()
        fences = [record.fence]

        def follows(after: Record) -> Record:
            fences.append(after.fence)
            return after

        case.lapse()
        record = follows(case.done(case.take(record)))
        case.lapse()
        record = follows(case.done(case.doubt(record)))
        record = follows(case.done(case.resolve(record, None)))
        record = follows(case.done(case.take(record)))
        case.done(case.complete(record))
        case.expire()
        record = follows(case.done(case.take(case.find(record.id))))
        case.expire()
        assert case.ask(Sweep(10)) == 1
        record = follows(case.begin(case.rival(record)))
        assert fences == sorted(set(fences))

    def test_a_removed_record_leaves_no_fence_to_be_used_again(self, case: Case) -> None:
        """Not even the fence of an owner that came long after the record's first."""
        record = case.begin()
        for _ in range(5):
            case.lapse()
            record = case.done(case.take(case.find(record.id)))
        case.expire()
        case.ask(Sweep(10))
        assert case.begin(case.rival(record)).fence > record.fence

    def test_p2_after_a_take_over_the_old_owner_writes_nothing(self, case: Case) -> None:
        old = case.begin()
        case.lapse()
        new = case.done(case.take(old))
        for verb in late_writes(case, old):
            case.refused(verb, new)

    def test_p2_after_doubt_the_old_owner_writes_nothing(self, case: Case) -> None:
        """An unknown outcome is for the operator to resolve, not for a zombie to complete."""
        old = case.begin()
        case.lapse()
        unknown = case.done(case.doubt(old))
        for verb in late_writes(case, old):
            case.refused(verb, unknown)

    def test_p2_after_a_release_its_owner_writes_nothing(self, case: Case) -> None:
        old = case.begin()
        released = case.done(case.release(old))
        for verb in late_writes(case, old):
            case.refused(verb, released)

    def test_p3_after_completion_nothing_changes_the_answer(self, case: Case) -> None:
        """Neither a late renewal, which would revive it, nor a second completion."""
        old = case.begin()
        completed = case.done(case.complete(old))
        for verb in late_writes(case, old):
            case.refused(verb, completed)
        assert case.find(old.id).answer == ANSWER

    def test_p2_after_a_sweep_nothing_is_brought_back(self, case: Case) -> None:
        old = case.begin()
        case.expire()
        case.ask(Sweep(10))
        for verb in late_writes(case, old):
            assert case.ask(verb) == Refused(None)
        assert case.ask(Find(old.id)) is None

    def test_p2_after_a_sweep_the_next_record_is_safe(self, case: Case) -> None:
        old = case.begin()
        case.expire()
        case.ask(Sweep(10))
        new = case.begin(case.rival(old))
        for verb in late_writes(case, old):
            case.refused(verb, new)

    def test_p2_after_starting_over_the_next_record_is_safe(self, case: Case) -> None:
        old = case.begin()
        case.expire()
        new = case.done(case.take(case.find(old.id)))
        for verb in late_writes(case, old):
            case.refused(verb, new)

    def test_the_token_alone_tells_two_owners_of_one_fence(self, case: Case) -> None:
        """A store restored from a backup may reuse a fence; the token is random."""
        new = case.begin()
        old = dataclasses.replace(new, token=bytes(len(new.token)))
        for verb in late_writes(case, old):
            case.refused(verb, new)

    @pytest.mark.parametrize("passed", ["lapsed", "expired"])
    def test_p2_an_attempt_whose_lease_is_over_may_still_complete(
        self, case: Case, passed: str
    ) -> None:
        """If nobody took it over, its response is the only one."""
        record = case.begin()
        case.lapse() if passed == "lapsed" else case.expire()
        after = case.done(case.complete(record))
        assert (after.state, after.answer) == (State.COMPLETED, ANSWER)

    def test_p1_a_take_over_loses_to_a_renewal_that_landed_after_the_read(self, case: Case) -> None:
        owned = case.begin()
        case.lapse()
        read = case.find(owned.id)
        assert read.lapsed
        renewed = case.done(case.renew(owned))
        case.refused(case.take(read), renewed)
        case.refused(case.doubt(read), renewed)

    def test_p1_a_take_over_loses_to_a_completion_that_landed_after_the_read(
        self, case: Case
    ) -> None:
        owned = case.begin()
        case.lapse()
        read = case.find(owned.id)
        completed = case.done(case.complete(owned))
        case.refused(case.take(read), completed)
        case.refused(case.doubt(read), completed)

    def test_p1_starting_over_loses_to_a_renewal_that_landed_after_the_read(
        self, case: Case
    ) -> None:
        owned = case.begin()
        case.expire()
        read = case.find(owned.id)
        renewed = case.done(case.renew(owned))
        case.refused(case.take(read), renewed)

    def test_p1_of_two_that_read_the_same_the_second_is_refused(self, case: Case) -> None:
        owned = case.begin()
        case.lapse()
        read = case.find(owned.id)
        winner, loser = case.take(read), case.take(read)
        taken = case.done(winner)
        case.refused(loser, taken)
        assert took_effect(winner, taken)
        assert not took_effect(loser, taken)

    def test_a_refusal_tells_what_stands_there_instead(self, case: Case) -> None:
        """The loser of a race uses it as its answer, without a second round trip."""
        owned = case.begin()
        case.done(case.complete(owned))
        outcome = case.ask(case.complete(owned, ZOMBIE))
        assert isinstance(outcome, Refused)
        assert outcome.record is not None
        assert outcome.record.answer == ANSWER
