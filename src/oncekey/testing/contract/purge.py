"""Purge: a tenant's content goes, the facts stay, and nothing runs a second time."""

from __future__ import annotations

import pytest

from oncekey._core import lifecycle
from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import Action
from oncekey._core.policy import DEFAULTS
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import AppendStep, Count, Found, Insert, Purge, Scan, Steps
from oncekey.testing.contract.subject import ANSWER, Case, Contract

ENDED = [State.COMPLETED, State.RELEASED, State.UNKNOWN]


def stage(case: Case, state: State, tenant: str = "leaving") -> Record:
    return case.stage(state, case.claim(tenant=tenant, field_digests={"card": "ab"}))


class PurgeContract(Contract):
    @pytest.mark.parametrize("state", ENDED)
    def test_the_content_is_blanked_and_the_fact_kept(self, case: Case, state: State) -> None:
        before = stage(case, state)
        assert case.ask(Purge("leaving", 10)) == 1
        after = case.find(before.id)
        assert (after.key, after.resource_id, dict(after.field_digests)) == ("", None, {})
        blanked = None if before.answer is None else Answer(before.answer.status, (), None)
        assert after.answer == blanked
        assert (after.state, after.fence, after.token) == (state, before.fence, before.token)
        assert (after.fingerprint, after.fingerprint_version) == (
            before.fingerprint,
            before.fingerprint_version,
        )
        assert after.expires_in_s == case.about(before.expires_in_s)

    def test_steps_are_blanked_too_and_none_is_taken_again(self, case: Case) -> None:
        """They still say that they were begun: a retry repeats none of them."""
        record = case.begin(case.claim(tenant="leaving"))
        for step in (Step("charge", b"d" * 300, b"card"), Step("mail", b"", None)):
            case.ask(AppendStep(record.id, record.fence, record.token, step))
        case.done(case.release(record))
        assert case.ask(Purge("leaving", 10)) == 1
        kept = [Step("charge", b"d" * 300, None), Step("mail", b"", None)]
        assert case.ask(Steps(record.id)) == kept
        again = case.done(case.take(case.find(record.id), tenant="leaving", key="order-17"))
        assert case.ask(Steps(again.id)) == kept

    def test_a_purge_never_causes_a_second_run(self, case: Case) -> None:
        record = stage(case, State.COMPLETED)
        case.ask(Purge("leaving", 10))
        outcome = case.ask(Insert(case.rival(record, tenant="leaving")))
        assert isinstance(outcome, Found)
        same, other = Comparison.SAME, Comparison.DIFFERENT
        assert lifecycle.decide(outcome.record, same, DEFAULTS) is Action.FACT_ONLY
        assert lifecycle.decide(outcome.record, other, DEFAULTS) is Action.MISMATCH

    def test_what_runs_is_left_alone(self, case: Case) -> None:
        record = stage(case, State.RUNNING)
        assert case.ask(Purge("leaving", 10)) == 0
        case.same(case.find(record.id), record)
        assert case.done(case.complete(record)).answer == ANSWER

    def test_other_tenants_are_left_alone(self, case: Case) -> None:
        stage(case, State.COMPLETED)
        others = [stage(case, State.COMPLETED, tenant) for tenant in ("leavin", "leaving ", "%")]
        assert case.ask(Purge("leaving", 10)) == 1
        for other in others:
            case.same(case.find(other.id), other)

    def test_a_purge_has_a_limit_and_ends(self, case: Case) -> None:
        ids = {stage(case, State.COMPLETED).id for _ in range(5)}
        assert [case.ask(Purge("leaving", 2)) for _ in range(4)] == [2, 2, 1, 0]
        assert {record.id for record in case.ask(Scan(10, tenant="leaving"))} == ids
        assert case.ask(Count())[State.COMPLETED] == 5

    @pytest.mark.parametrize("way", ["run again", "start over"])
    def test_what_runs_again_after_a_purge_can_be_purged_again(self, case: Case, way: str) -> None:
        """It has a new response, as private as the first."""
        record = stage(case, State.RELEASED)
        assert case.ask(Purge("leaving", 10)) == 1
        if way == "start over":
            case.expire()
        again = case.done(case.take(case.find(record.id), tenant="leaving", key="order-17"))
        assert again.key == "order-17"
        case.done(case.complete(again))
        assert case.ask(Purge("leaving", 10)) == 1
        assert case.find(record.id).answer == Answer(ANSWER.status, (), None)

    def test_an_unknown_can_still_be_resolved(self, case: Case) -> None:
        record = stage(case, State.UNKNOWN)
        case.ask(Purge("leaving", 10))
        after = case.done(case.resolve(case.find(record.id)))
        assert (after.state, after.answer) == (State.COMPLETED, ANSWER)
