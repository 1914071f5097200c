"""Atomic mode's generators, query by query: the test answers as the database."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import Op, Pause, run
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind
from oncekey._core.record import Answer, Record, State
from oncekey._core.verbs import Done, Find, Inserted, Peek, Refused, Swap
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call, Execute, Given, GivenUp, Guard, Refuse, Replay, Stored
from oncekey._engine.notices import LOOK, LOOK_EVERY_S, Notices
from oncekey._system.clock import FakeClock
from oncekey.atomic._transaction import (
    AtomicOperation,
    Begin,
    Commit,
    Flush,
    Outside,
    Rollback,
    _in_flight,
)
from oncekey.errors import StoreUnavailable
from oncekey.stores.postgres import transactions
from oncekey.stores.postgres.verbs import Question
from simulator.statements import _columns
from simulator.transaction import JOINED, Asked
from tests.clocks import set_clock, set_notices

CALL = Call("acme", "POST /orders", "k1", Fingerprint(1, b"f" * 32))
POLICY = Policy(atomic=True).settled()
ANSWER = Answer(201, (), b"made")
NO_REPLY = StoreUnavailable("no reply", sent=True)


class Script:
    """Answers what is asked, in this order."""

    def __init__(self) -> None:
        self.guard = Guard(clock=FakeClock(), token=lambda: b"t" * 16)
        self.claim = self.guard.claim(CALL, POLICY)
        self.work = AtomicOperation(JOINED, 5.0)
        self.asked: list[Any] = []
        self._replies: Iterator[Any] = iter(())

    def drive(self, op: Op[Any], *replies: Any) -> Any:
        self.asked, self._replies = [], iter(replies)
        decided = run(self.work.drive(op), self._answer)
        assert list(self._replies) == []
        return decided

    def _answer(self, question: Any) -> Any:
        self.asked.append(question)
        reply = next(self._replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def begun(self) -> Attempt:
        decision = self.drive(
            self.guard.begin(CALL, POLICY, self.claim),
            *(True, [(self.claim.token.hex(), True)]),
        )
        assert isinstance(decision, Execute)
        return decision.attempt

    def conclude(self, attempt: Attempt, end: End, *replies: Any) -> Any:
        answer = ANSWER if end is End.KEPT else None
        return self.drive(self.guard.ownership.conclude(attempt, end, answer, CALL), *replies)

    def orphan(self) -> Record:
        running = _in_flight(self.claim)
        return dataclasses.replace(
            running, token=b"o" * 16, fence=3, recovery="resume", lease_left_s=-1.0
        )

    def take_up(self, *replies: Any) -> Any:
        op = self.guard.take_up(self.orphan(), CALL, POLICY, 0.0, self.claim)
        return self.drive(op, *replies)


def _row(record: Record, *, ours: bool) -> list[tuple[Any, ...]]:
    return [(ours, *_columns(record))]


@pytest.fixture
def script() -> Script:
    return Script()


def _kinds(asked: list[Any]) -> list[type]:
    return [type(question) for question in asked]


def test_p9_what_was_refused_is_not_written_again_without_a_transaction(script: Script) -> None:
    """The write was refused and rolled back; what stands there instead was asked in vain."""
    other = dataclasses.replace(script.orphan(), token=b"x" * 16)
    attempt = script.begun()
    finished = script.conclude(
        attempt,
        End.KEPT,
        *(None, [], [(script.claim.token.hex(),)], None),  # flush, settle, mark, rollback
        *(NO_REPLY, None, other),  # find, pause, find
    )

    assert isinstance(finished, Refuse)
    assert _kinds(script.asked) == [Flush, Question, Question, Rollback, *[Outside] * 3]
    assert script.asked[4] == script.asked[6] == Outside(Find(script.claim.id))
    assert isinstance(script.asked[5].question, Pause)


def test_an_orphan_is_taken_up_within_a_transaction(script: Script) -> None:
    mark = script.claim.token.hex()
    taken = script.take_up(True, [(mark, None)], _row(script.orphan(), ours=True))

    assert isinstance(taken, Execute)
    assert taken.attempt.recovering
    assert _kinds(script.asked) == [Begin, Question, Question]

    script.conclude(
        taken.attempt,
        End.KEPT,
        *(None, [(mark,)], [Done(4)], [Done(4)], None),  # flush, mark, take over, complete, commit
    )
    assert _kinds(script.asked) == [Flush, Question, Asked, Asked, Commit]
    assert script.asked[1] is transactions._MARK


def test_an_orphan_that_another_took_up_leaves_no_transaction_open(script: Script) -> None:
    taken_up = dataclasses.replace(script.orphan(), fence=4, token=b"x" * 16)
    replies = (True, [(script.claim.token.hex(), None)], _row(taken_up, ours=True), None)

    assert script.take_up(*replies) is None
    assert _kinds(script.asked) == [Begin, Question, Question, Rollback]


def test_an_orphan_that_lapsed_too_often_is_doubted_outside(script: Script) -> None:
    policy = dataclasses.replace(POLICY, lapses_max=1)
    op = script.guard.take_up(script.orphan(), CALL, policy, 0.0, script.claim)

    assert script.drive(op, Done(4)) is None
    [outside] = script.asked
    assert isinstance(outside, Outside)
    assert isinstance(outside.question, Swap)
    assert outside.question.to is State.UNKNOWN


def test_what_an_orphan_wrote_does_not_go_with_an_unknown_outcome(script: Script) -> None:
    """It was refused, and would be for ever: given up, and rolled back like any refusal."""
    mark = script.claim.token.hex()
    taken = script.take_up(True, [(mark, None)], _row(script.orphan(), ours=True))
    ours = dataclasses.replace(script.orphan(), fence=4, token=script.claim.token)
    finished = script.conclude(
        taken.attempt,
        End.NO_EFFECT,
        *(None, NO_REPLY, None),  # rollback, take over, pause
        *(Refused(ours), Done(5)),  # take over, give up
    )

    assert isinstance(finished, GivenUp)
    assert _kinds(script.asked) == [Rollback, *[Outside] * 4]
    assert script.asked[4].question.fence == 4


def test_what_a_handler_wrote_that_cannot_tell_does_not_go_with_the_end_of_its_lease(
    script: Script,
) -> None:
    """Under `ask` the application is asked at once; it must not find half of the rows."""
    policy = Policy(atomic=True, recovery="ask", ask=lambda attempt: None).settled()
    begun = script.drive(
        script.guard.begin(CALL, policy, script.claim),
        *(True, [(script.claim.token.hex(), True)]),
    )
    ended = script.conclude(begun.attempt, End.UNKNOWN, None, Inserted(4), Done(4))

    assert isinstance(ended, Given)
    assert _kinds(script.asked) == [Rollback, Outside, Outside]
    lapse = script.asked[2].question
    assert (lapse.to, lapse.fence, lapse.lease_s) == (State.RUNNING, 4, 0.0)


def test_p9_a_commit_that_happened_unheard_is_found(script: Script) -> None:
    kept = dataclasses.replace(
        script.orphan(), state=State.COMPLETED, token=script.claim.token, answer=ANSWER
    )
    mark = script.claim.token.hex()
    finished = script.conclude(
        script.begun(),
        End.KEPT,
        *(None, [(True,)], NO_REPLY, None),  # flush, settle, commit, pause
        *(True, [(mark, None)], _row(kept, ours=False), None),  # begin, claim, hold, rollback
    )

    assert isinstance(finished, Stored)


def test_p9_a_commit_that_did_not_happen_is_not_mistaken_for_anothers(script: Script) -> None:
    """Whoever looks what became of it finds a record that is not its own: that one is answered."""
    others = Answer(202, (), b"made by another")
    kept = dataclasses.replace(
        script.orphan(), state=State.COMPLETED, token=b"x" * 16, answer=others
    )
    mark = script.claim.token.hex()
    finished = script.conclude(
        script.begun(),
        End.KEPT,
        *(None, [(True,)], NO_REPLY, None),  # flush, settle, commit, pause
        *(True, [(mark, None)], _row(kept, ours=False), None),  # begin, claim, hold, rollback
    )

    assert isinstance(finished, Replay)
    assert finished.answer == others


def test_rows_that_cannot_be_written_fail_their_handler_at_once(script: Script) -> None:
    attempt = script.begun()
    with pytest.raises(LookupError, match="no such customer"):
        script.conclude(attempt, End.KEPT, LookupError("no such customer"))
    assert _kinds(script.asked) == [Flush]


def test_whoever_is_cancelled_while_it_waits_makes_room_for_others(script: Script) -> None:
    policy = dataclasses.replace(POLICY, in_flight="wait", waiters_per_key_max=1)
    begin = script.guard.begin(CALL, policy, script.claim)  # held here: it is not collected
    op = script.work.drive(begin)
    assert isinstance(next(op), Begin)
    assert isinstance(op.send(True), Question)
    assert isinstance(op.send([(script.claim.token.hex(), False)]), Rollback)
    waits = op.send(None)
    assert isinstance(waits, Outside)
    assert isinstance(waits.question, Pause)
    assert script.guard._waiters.total == 1

    op.close()
    assert script.guard._waiters.total == 0


def test_who_may_only_look_waits_outside_of_any_transaction(script: Script) -> None:
    """A key older than memory is not claimed; what is found of it may still be running."""
    limits = {"key_age_s_max": 60.0, "in_flight": "wait", "wait_s": 1.0}
    policy = Policy(atomic=True, **limits).settled()  # type: ignore[arg-type]
    call = dataclasses.replace(CALL, first_sent=0.0)
    running = dataclasses.replace(script.orphan(), lease_left_s=9.0)
    decided = script.drive(
        script.guard.begin(call, policy, script.claim),
        *(running, None, None, None),  # find, pause, peek, find
    )
    assert isinstance(decided, Refuse)
    assert decided.problem.kind is Kind.TOO_OLD
    assert [type(question.question) for question in script.asked] == [Find, Pause, Peek, Find]


OLD = Policy(atomic=True, key_age_s_max=60.0).settled()
OLD_CALL = dataclasses.replace(CALL, first_sent=0.0)


@pytest.mark.parametrize("shown", [False, True], ids=["record not seen", "record seen"])
def test_p1_who_may_only_look_takes_over_nothing_whose_id_another_holds(
    script: Script, shown: bool
) -> None:
    """Whoever holds it is about to have it."""
    mark, lapsed = script.claim.token.hex(), script.orphan()
    seen = ([(mark, None)], _row(lapsed, ours=False)) if shown else ([(mark, False)],)
    decided = script.drive(
        script.guard.begin(OLD_CALL, OLD, script.claim),
        *(lapsed, True, *seen, None),  # find, begin, hold, rollback
    )
    assert isinstance(decided, Refuse)
    assert decided.problem.kind is Kind.IN_FLIGHT
    assert isinstance(script.asked[-1], Rollback)


def test_p3_who_may_only_look_is_answered_from_what_another_has_completed_since(
    script: Script,
) -> None:
    mark, lapsed = script.claim.token.hex(), script.orphan()
    kept = dataclasses.replace(lapsed, state=State.COMPLETED, token=b"x" * 16, answer=ANSWER)
    decided = script.drive(
        script.guard.begin(OLD_CALL, OLD, script.claim),
        *(lapsed, True, [(mark, None)], _row(kept, ours=False), None),
    )
    assert isinstance(decided, Replay)
    assert decided.answer == ANSWER


@pytest.mark.parametrize("taken_over", [[], [Done(4)]], ids=["take over", "give up"])
def test_who_gives_up_what_another_has_finished_answers_from_that(
    script: Script, taken_over: list[Done]
) -> None:
    mark = script.claim.token.hex()
    taken = script.take_up(True, [(mark, None)], _row(script.orphan(), ours=True))
    kept = dataclasses.replace(
        script.orphan(), state=State.COMPLETED, token=b"x" * 16, answer=ANSWER
    )
    finished = script.conclude(taken.attempt, End.NO_EFFECT, None, *taken_over, Refused(kept))
    assert isinstance(finished, Replay)
    assert finished.answer == ANSWER
    assert _kinds(script.asked) == [Rollback, Outside, *[Outside for _ in taken_over]]


def test_p1_who_looks_at_the_notice_before_it_runs_keeps_its_transaction(script: Script) -> None:
    """A claim may take longer than a look at the notice lasts: it is looked at once more then."""
    clock = FakeClock()
    set_notices(script.guard, Notices(clock))
    set_clock(script.guard, clock)
    op = script.work.drive(script.guard.begin(CALL, POLICY, script.claim))
    assert next(op) == Outside(LOOK)
    assert isinstance(op.send(None), Begin)
    clock.advance(LOOK_EVERY_S)
    assert isinstance(op.send(True), Question)
    looks = op.send([(script.claim.token.hex(), True)])
    assert looks == Asked((LOOK,))
    with pytest.raises(StopIteration) as stop:
        op.send([None])
    assert isinstance(stop.value.value, Execute)
