"""Swap: one atomic compare-and-set for every transition of the life cycle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from oncekey._core import lifecycle
from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import TRANSITIONS, Action
from oncekey._core.policy import DEFAULTS
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.retention import blank_answer, with_tombstone
from oncekey._core.verbs import AppendStep, Insert, Purge, Refused, Steps, Swap, When
from oncekey.testing.contract.subject import ANSWER, Case, Contract, new_id, new_token, timeless

MOVES: dict[str, Callable[[Case, Record], Swap]] = {
    "renew": Case.renew,
    "shorten": lambda case, found: lifecycle.shorten(found),
    "lapse": Case.end_lease,
    "complete": Case.complete,
    "release": Case.release,
    "take over": Case.take,
    "doubt": Case.doubt,
    "give up": Case.give_up,
    "run again": Case.take,
    "run anew": lambda case, found: case.take(found, schema_version=found.schema_version + 1),
    "start over": Case.take,
    "fade": lambda case, found: lifecycle.fade(found, new_token=new_token()),
    "resolve as completed": Case.resolve,
    "resolve as released": lambda case, found: case.resolve(found, None),
}

ROWS = [(name, source) for name, move in TRANSITIONS.items() for source in move.sources]
TIMED = [(name, source) for name, source in ROWS if TRANSITIONS[name].when is not When.ANY]


def found_for(case: Case, name: str, source: State) -> Record:
    """Return a record for which the transition is due."""
    record = case.stage(source)
    match TRANSITIONS[name].when:
        case When.ANY:
            case.elapse(case.lease_s / 2)  # so that a new deadline differs from the old one
        case When.LAPSED:
            case.lapse()
        case When.EXPIRED:
            case.expire()
        case When.OVERLONG:
            case.set_back(case.lease_s * 100)
    return case.find(record.id)


def never(case: Case, name: str) -> bool:
    """Return whether no clock can make the transition due: observed leases are never overlong."""
    return case.observed and TRANSITIONS[name].when is When.OVERLONG


class SwapContract(Contract):
    @pytest.mark.parametrize(("name", "source"), ROWS)
    def test_every_transition_writes_what_it_says(
        self, case: Case, name: str, source: State
    ) -> None:
        found = found_for(case, name, source)
        swap = MOVES[name](case, found)
        if never(case, name):
            case.refused(swap, found)
            return
        after = case.done(swap)
        assert after.state is TRANSITIONS[name].to
        assert after.beat == found.beat + 1
        assert after.token == (swap.new_token or found.token)
        if TRANSITIONS[name].raise_fence:
            assert after.fence > found.fence
        else:
            assert after.fence == found.fence
        if swap.attempt is not None:
            assert after.attempt == swap.attempt
        if swap.lapses is not None:
            assert after.lapses == swap.lapses

    @pytest.mark.parametrize(("name", "source"), ROWS)
    def test_p2_state_fence_and_token_must_all_be_right(
        self, case: Case, name: str, source: State
    ) -> None:
        found = found_for(case, name, source)
        right = MOVES[name](case, found)
        wrong = [
            *(dataclasses.replace(right, state=state) for state in State if state is not source),
            dataclasses.replace(right, fence=right.fence - 1),
            dataclasses.replace(right, fence=right.fence + 1),
            dataclasses.replace(right, token=new_token()),
            dataclasses.replace(right, token=right.token[:-1] + bytes((right.token[-1] ^ 1,))),
        ]
        for swap in wrong:
            case.refused(swap, found)
        if not never(case, name):
            case.done(right)

    @pytest.mark.parametrize(("name", "source"), TIMED)
    def test_p8_a_condition_on_time_is_judged_at_the_write(
        self, case: Case, name: str, source: State
    ) -> None:
        """A record that was lapsed, expired or overlong when it was read may not be when it is
        written.
        """
        record = case.stage(source)
        swap = MOVES[name](case, _pretend(record, TRANSITIONS[name].when))
        case.refused(swap, record)

    def test_of_a_record_that_is_not_there_nothing_is_found(self, case: Case) -> None:
        swap = case.renew(dataclasses.replace(case.begin(), id=new_id()))
        assert case.ask(swap) == Refused(None)

    def test_completing_keeps_the_answer_and_the_resource(self, case: Case) -> None:
        after = case.done(case.complete(case.begin()))
        assert (after.answer, after.resource_id) == (ANSWER, "order_1")

    def test_only_completing_touches_the_answer(self, case: Case) -> None:
        """A later write must not erase the stored response, and a careless one must not set it."""
        running = case.begin()
        careless = dataclasses.replace(case.renew(running), answer=ANSWER, resource_id="r")
        after = case.done(careless)
        assert (after.answer, after.resource_id) == (None, None)

    def test_a_renewal_touches_only_the_deadline_and_the_beat(self, case: Case) -> None:
        before = case.begin()
        after = case.done(case.renew(before))
        assert timeless(after) == timeless(dataclasses.replace(before, beat=before.beat + 1))

    @pytest.mark.parametrize("no_effect", [True, False])
    def test_a_release_says_whether_there_was_an_effect(self, case: Case, no_effect: bool) -> None:
        after = case.done(case.release(case.begin(), no_effect=no_effect))
        assert after.no_effect is no_effect

    def test_running_again_forgets_that_there_was_no_effect(self, case: Case) -> None:
        released = case.done(case.release(case.begin(), no_effect=True))
        assert case.done(case.take(released)).no_effect is False

    def test_whoever_takes_over_brings_its_own_request(self, case: Case) -> None:
        released = case.done(case.release(case.begin(), no_effect=True))
        brought = {
            "operation": "POST /refunds",
            "fingerprint": b"\x09" * 32,
            "fingerprint_version": 2,
            "recovery": "block",
            "schema_version": 5,
            "field_digests": {"amount": "77"},
            "lease_s": case.lease_s * 2,
            "retention_s": case.retention_s * 2,
        }
        after = case.done(case.take(released, **brought))
        assert {name: getattr(after, name) for name in brought} == brought

    def test_a_take_over_counts_attempts_and_lapses_and_keeps_the_age(self, case: Case) -> None:
        first = case.begin()
        case.lapse()
        after = case.done(case.take(case.find(first.id)))
        assert (after.attempt, after.lapses) == (2, 1)
        assert after.age_s == case.about(case.lease_s)

    def test_starting_over_forgets_everything_but_the_fence(self, case: Case) -> None:
        old = case.stage(State.COMPLETED)
        case.expire()
        after = case.done(case.take(case.find(old.id)))
        assert (after.answer, after.resource_id) == (None, None)
        assert (after.attempt, after.lapses, after.replays, after.conflicts) == (1, 0, 0, 0)
        assert after.age_s == case.about(0)
        assert after.fence > old.fence

    def test_fading_leaves_the_fact_and_the_time_and_no_content(self, case: Case) -> None:
        """A tombstone is left: no retry runs, and nothing of the request remains."""
        kept = with_tombstone(ANSWER, case.retention_s)
        running = case.begin(case.claim(field_digests={"card": "ab"}))
        step = Step("charge", b"d" * 32, b"card")
        case.ask(AppendStep(running.id, running.fence, running.token, step))
        completed = case.done(case.complete(running, kept))
        after = case.done(lifecycle.fade(completed, new_token=new_token()))
        assert (after.key, after.resource_id, dict(after.field_digests)) == ("", None, {})
        assert after.fingerprint == bytes(32)
        assert after.answer == blank_answer(kept)
        assert case.ask(Steps(after.id)) == []
        assert after.expires_in_s == case.about(completed.expires_in_s)
        assert case.ask(Purge(after.tenant, 10)) == 0
        found = case.ask(Insert(case.rival(after)))
        assert lifecycle.decide(found.record, Comparison.SAME, DEFAULTS) is Action.GONE

    def test_a_tombstone_starts_over_when_it_is_expired(self, case: Case) -> None:
        completed = case.done(case.complete(case.begin(), with_tombstone(ANSWER, 1.0)))
        faded = case.done(lifecycle.fade(completed, new_token=new_token()))
        case.expire()
        after = case.done(case.take(case.find(faded.id)))
        assert (after.state, after.key, after.answer) == (State.RUNNING, "order-17", None)
        again = case.done(case.complete(after))
        assert (again.answer, again.resource_id) == (ANSWER, "order_1")

    def test_an_answer_without_body_is_kept_as_such(self, case: Case) -> None:
        fact = Answer(200, ((b"location", b"/big"),), None)
        assert case.done(case.complete(case.begin(), fact)).answer == fact


def _pretend(record: Record, when: When) -> Record:
    """Return the record as read by a process whose reading is out of date by now."""
    expired = when is When.EXPIRED
    return dataclasses.replace(record, expires_in_s=-1.0 if expired else record.expires_in_s)
