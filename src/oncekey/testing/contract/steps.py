"""Steps: stored under the fence, in the order in which they began, for the following attempts."""

from __future__ import annotations

import pytest

from oncekey._core import lifecycle
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import AppendStep, Done, Refused, Steps, Sweep
from oncekey._engine.steps import STEP_BYTES_MAX
from oncekey.testing.contract.subject import Case, Contract, new_id, new_token

STARTED = Step("charge", b"\x01" * 32, None)
CHARGED = Step("charge", b"\x01" * 32, b"ch_1")
MAILED = Step("mail", b"\x02" * 32, b"sent")
LONGEST = bytes(range(256)) * (STEP_BYTES_MAX // 256)


def append(record: Record, step: Step) -> AppendStep:
    return AppendStep(record.id, record.fence, record.token, step)


class StepContract(Contract):
    def test_a_record_has_no_steps_at_first(self, case: Case) -> None:
        assert case.ask(Steps(case.begin().id)) == []

    def test_a_record_that_is_not_there_has_no_steps(self, case: Case) -> None:
        assert case.ask(Steps(new_id())) == []
        nobody = AppendStep(new_id(), 1, new_token(), CHARGED)
        assert case.ask(nobody) == Refused(None)
        assert case.ask(Steps(nobody.id)) == []

    def test_steps_are_kept_in_the_order_in_which_they_came(self, case: Case) -> None:
        record = case.begin()
        steps = [Step(name, b"d", b"r") for name in ("mail", "charge", "archive", "Z", "a")]
        for step in steps:
            assert case.ask(append(record, step)) == Done(record.fence)
        assert case.ask(Steps(record.id)) == steps

    def test_p9_the_mark_of_a_start_that_comes_late_replaces_no_result(self, case: Case) -> None:
        record = case.begin()
        for step in (STARTED, CHARGED, STARTED):
            assert case.ask(append(record, step)) == Done(record.fence)
        assert case.ask(Steps(record.id)) == [CHARGED]

    @pytest.mark.parametrize("answer", [None, Answer(201, (), b"paid")])
    def test_an_operator_who_releases_forgets_what_was_only_begun(
        self, case: Case, answer: Answer | None
    ) -> None:
        record = case.begin()
        case.ask(append(record, MAILED))
        case.ask(append(record, STARTED))
        held = lifecycle.Held(record.id, record.fence, record.token)
        gives_up = lifecycle.give_up(held, new_token=new_token(), lapses=0, retention_s=60)
        assert isinstance(case.ask(gives_up), Done)
        unknown = case.find(record.id)
        assert unknown.state is State.UNKNOWN
        resolves = lifecycle.resolve(unknown, new_token=new_token(), answer=answer, retention_s=60)
        assert isinstance(case.ask(resolves), Done)
        assert case.ask(Steps(record.id)) == ([MAILED] if answer is None else [MAILED, STARTED])

    def test_a_step_of_the_same_name_is_replaced_in_its_place(self, case: Case) -> None:
        """First its start is marked, then its result kept."""
        record = case.begin()
        case.ask(append(record, STARTED))
        case.ask(append(record, MAILED))
        assert case.ask(Steps(record.id)) == [STARTED, MAILED]
        case.ask(append(record, CHARGED))
        assert case.ask(Steps(record.id)) == [CHARGED, MAILED]

    @pytest.mark.parametrize(
        "result",
        [None, b"", bytes(range(256)), b"x" * 100_000, LONGEST],
        ids=["none", "empty", "every byte", "long", "longest"],
    )
    def test_results_are_kept_byte_for_byte(self, case: Case, result: bytes | None) -> None:
        record = case.begin()
        step = Step("charge", bytes(range(32)), result)
        case.ask(append(record, step))
        assert case.ask(Steps(record.id)) == [step]

    def test_names_are_kept_as_they_are(self, case: Case) -> None:
        record = case.begin()
        names = ["a", "A", "a ", "über", "it's; DROP TABLE", "a:b/c", "{x}", "1"]
        for name in names:
            case.ask(append(record, Step(name, b"d", name.encode())))
        assert case.ask(Steps(record.id)) == [Step(name, b"d", name.encode()) for name in names]

    def test_p2_only_the_owner_keeps_steps(self, case: Case) -> None:
        record = case.begin()
        wrong = [
            AppendStep(record.id, record.fence + 1, record.token, CHARGED),
            AppendStep(record.id, record.fence - 1, record.token, CHARGED),
            AppendStep(record.id, record.fence, new_token(), CHARGED),
        ]
        for verb in wrong:
            case.refused(verb, record)
        assert case.ask(Steps(record.id)) == []

    @pytest.mark.parametrize("state", [State.COMPLETED, State.RELEASED, State.UNKNOWN])
    def test_p2_only_what_runs_keeps_steps(self, case: Case, state: State) -> None:
        record = case.stage(state)
        case.refused(append(record, CHARGED), record)
        assert case.ask(Steps(record.id)) == []

    def test_a_lapsed_attempt_that_nobody_took_over_may_keep_steps(self, case: Case) -> None:
        record = case.begin()
        case.lapse()
        assert case.ask(append(record, CHARGED)) == Done(record.fence)

    def test_keeping_a_step_is_no_renewal(self, case: Case) -> None:
        record = case.begin()
        case.elapse(case.lease_s / 2)
        before = case.find(record.id)
        case.ask(append(record, CHARGED))
        case.same(case.find(record.id), before)

    def test_the_next_attempt_finds_the_steps_of_the_last(self, case: Case) -> None:
        first = case.begin()
        case.ask(append(first, CHARGED))
        case.lapse()
        second = case.done(case.take(first))
        case.ask(append(second, MAILED))
        case.done(case.release(second))
        third = case.done(case.take(case.find(first.id)))
        assert case.ask(Steps(third.id)) == [CHARGED, MAILED]

    def test_an_unknown_outcome_keeps_its_steps_for_the_operator(self, case: Case) -> None:
        record = case.begin()
        case.ask(append(record, STARTED))
        case.lapse()
        case.done(case.doubt(record))
        assert case.ask(Steps(record.id)) == [STARTED]

    def test_starting_over_forgets_them(self, case: Case) -> None:
        record = case.begin()
        case.ask(append(record, CHARGED))
        case.expire()
        case.done(case.take(case.find(record.id)))
        assert case.ask(Steps(record.id)) == []

    def test_running_anew_forgets_them_and_the_answer(self, case: Case) -> None:
        record = case.begin()
        case.ask(append(record, CHARGED))
        completed = case.done(case.complete(record))
        anew = case.done(case.take(completed, schema_version=completed.schema_version + 1))
        assert (anew.answer, anew.resource_id) == (None, None)
        assert (anew.schema_version, anew.attempt) == (completed.schema_version + 1, 2)
        assert case.ask(Steps(record.id)) == []
        case.ask(append(anew, MAILED))
        other = Answer(200, (), b"in the new version")
        assert case.done(case.complete(anew, other)).answer == other
        assert case.ask(Steps(record.id)) == [MAILED]

    def test_a_sweep_removes_them(self, case: Case) -> None:
        record = case.begin()
        case.ask(append(record, CHARGED))
        case.expire()
        case.ask(Sweep(10))
        assert case.ask(Steps(record.id)) == []
        case.begin(case.rival(record))
        assert case.ask(Steps(record.id)) == []

    def test_records_do_not_share_steps(self, case: Case) -> None:
        one, two = case.begin(), case.begin()
        case.ask(append(one, CHARGED))
        case.ask(append(two, MAILED))
        assert case.ask(Steps(one.id)) == [CHARGED]
        assert case.ask(Steps(two.id)) == [MAILED]

    def test_steps_kept_at_the_same_time_are_all_kept(self, case: Case) -> None:
        record = case.begin()
        steps = [Step(f"step-{number}", b"d", b"r") for number in range(20)]
        outcomes = case.together([append(record, step) for step in steps])
        assert outcomes == [Done(record.fence)] * 20
        kept = case.ask(Steps(record.id))
        assert sorted(kept, key=lambda step: steps.index(step)) == steps
