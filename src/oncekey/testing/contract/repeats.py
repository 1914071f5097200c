"""P9: repeating any write whose reply was lost gives the same outcome."""

from __future__ import annotations

import pytest

from oncekey._core.lifecycle import TRANSITIONS, took_effect
from oncekey._core.record import State, Step
from oncekey._core.verbs import AppendStep, Done, Found, Insert, Refused, Steps
from oncekey.testing.contract.subject import Case, Contract
from oncekey.testing.contract.swap import MOVES, ROWS, found_for, never


class RepeatContract(Contract):
    @pytest.mark.parametrize(("name", "source"), ROWS)
    def test_p9_a_repeated_swap_is_recognised(self, case: Case, name: str, source: State) -> None:
        found = found_for(case, name, source)
        swap = MOVES[name](case, found)
        if never(case, name):
            case.refused(swap, found)
            return
        after = case.done(swap)
        again = case.ask(swap)
        if name in ("renew", "lapse"):  # a second renewal is just a renewal
            assert again == Done(after.fence)
            return
        assert isinstance(again, Refused)
        assert took_effect(swap, again.record)
        case.same(case.find(swap.id), after)

    @pytest.mark.parametrize(("name", "source"), ROWS)
    def test_p9_what_never_landed_is_not_taken_for_a_repetition(
        self, case: Case, name: str, source: State
    ) -> None:
        found = found_for(case, name, source)
        late = MOVES[name](case, found)
        if name in ("renew", "shorten", "lapse"):
            case.done(case.release(found))
        elif TRANSITIONS[name].raise_fence:
            case.done(MOVES[name](case, found))  # the same move with another token
        else:
            case.lapse()
            case.done(case.take(found))
        outcome = case.ask(late)
        assert isinstance(outcome, Refused)
        assert not took_effect(late, outcome.record)

    def test_p9_a_repeated_insert_finds_what_it_wrote(self, case: Case) -> None:
        claim = case.claim()
        before = case.begin(claim)
        outcome = case.ask(Insert(claim))
        assert isinstance(outcome, Found)
        case.same(outcome.record, before)

    def test_p9_a_repeated_step_is_one_step(self, case: Case) -> None:
        record = case.begin()
        verb = AppendStep(record.id, record.fence, record.token, Step("charge", b"d", b"ok"))
        assert case.ask(verb) == case.ask(verb) == Done(record.fence)
        assert case.ask(Steps(record.id)) == [verb.step]

    def test_p9_two_takers_with_one_token_are_one_attempt(self, case: Case) -> None:
        """A repeated insert that found a lapsed record of its own takes nothing over twice."""
        record = case.begin()
        case.lapse()
        swap = case.take(case.find(record.id))
        outcomes = case.together([swap, swap], gatherers=2)
        done = [outcome for outcome in outcomes if isinstance(outcome, Done)]
        refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
        assert len(done) == len(refused) == 1
        assert took_effect(swap, refused[0].record)
