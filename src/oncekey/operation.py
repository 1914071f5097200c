"""An operation that is not a request: run once per key, for functions and messages alike.

The edge of everything that has no HTTP around it. Its answer is the result of a function, as JSON.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from oncekey import attempt as attempts
from oncekey import learning
from oncekey.atomic import AsyncUnit, Unit
from oncekey.atomic.callers import AsyncCallers, Callers
from oncekey.attempt import Attempt, failed_honestly
from oncekey.core import result as results
from oncekey.core.op import Op
from oncekey.core.policy import Policy, Verdict, as_policy
from oncekey.core.problem import Kind, Problem
from oncekey.core.record import Answer
from oncekey.core.scope import OPERATION_CHARS_MAX, is_kept
from oncekey.core.value import value
from oncekey.decision import (
    Bypass,
    Call,
    Execute,
    Finished,
    Given,
    Refuse,
    Replay,
    Stored,
    Unstored,
)
from oncekey.errors import (
    InFlight,
    LeaseLost,
    Mismatch,
    Misuse,
    NotKept,
    OncekeyError,
    Refusal,
    StoreUnavailable,
    Unknown,
)
from oncekey.guard import Guard
from oncekey.handed import not_awaitable
from oncekey.probes import probe
from oncekey.registry import Orphan
from oncekey.runtime import Runtime

_log = logging.getLogger("oncekey")

_JSON = ((b"content-type", b"application/json"),)


@value
class Ran:
    """It ran now."""

    result: Any
    stored: bool = True
    """False where the result could not be recorded, or the policy let it run unprotected."""


@value
class Replayed:
    """It ran before: what it gave then."""

    result: Any


@value
class Released:
    """It ran now and said that this is not final: another try runs again."""

    result: Any


@value
class Declined:
    """It was refused, or ran and must not say what it gave."""

    problem: Problem
    sent: bool
    """Whether the store may have heard of this call."""

    def error(self) -> OncekeyError:
        """The same as an exception."""
        if self.problem.kind is Kind.STORE_UNAVAILABLE:
            return StoreUnavailable(self.problem.detail, sent=self.sent)
        return _RAISED.get(self.problem.kind, Refusal)(self.problem.detail, self.problem)


Outcome = Ran | Replayed | Released | Declined

_RAISED: dict[Kind, type[Refusal]] = {
    Kind.IN_FLIGHT: InFlight,
    Kind.MISMATCH: Mismatch,
    Kind.OUTCOME_UNKNOWN: Unknown,
    Kind.ANSWER_NOT_KEPT: NotKept,
    Kind.STALE_ANSWER: NotKept,
    Kind.KEY_EXPIRED: NotKept,
}


def must_be_runtime(whose: str, given: object) -> None:
    """`Misuse` for anything else, such as the URL of a store, which is not shown."""
    if not isinstance(given, Runtime):
        raise Misuse(
            f"{whose} was given a {type(given).__name__} as its runtime: make one for all "
            "operations on a store, runtime = oncekey.Runtime('sqlite:///keys.db'), and pass that"
        )


class Operation:
    """One operation on one runtime, by its name and its rules."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        policy: Policy | None = None,
        *,
        kind: str = "a function",
        redelivered: bool = False,
    ) -> None:
        """`kind`: what it is, in words. `redelivered`: whoever calls comes back by itself, as a
        broker does.
        """
        must_be_runtime(name, runtime)
        if not is_kept(name, OPERATION_CHARS_MAX):
            raise Misuse(
                f"an operation's name is a text of at most {OPERATION_CHARS_MAX} characters, which "
                f"a store can keep, not {name!r:.80}"
            )
        self.runtime = runtime
        self.name = name
        self.policy = as_policy(policy).settled()
        if self.policy.atomic:
            raise Misuse(
                f"{name}: Policy(atomic=True) is for requests. Here the transaction is yours: "
                "complete_in(…) in a function, handle_in(…) of an inbox"
            )
        if self.policy.scope == "tenant":
            raise Misuse(
                f"{name}: Policy(scope='tenant') is for requests, whose fingerprints tell which "
                "operation they are. Here one operation would be given another's result: leave it "
                "out"
            )
        runtime.reserve(name, kind)
        runtime.expect(self.policy)
        self._warns = self.policy.recovery == "rerun"
        if redelivered and self.policy.recovery == "resume":
            # A later delivery continues either way; the recoverer would only give it up too early.
            self.policy = replace(self.policy, recovery="rerun")

    # ------------------------------------------------------------------------------- to run one

    async def run(self, call: Call, work: Callable[[], Any]) -> Outcome:
        """Run `work` unless it ran before. What it raises is raised, after the record was given
        back.

        It runs in a task of its own: cancelling the caller does not stop it.
        """
        self._begin_using()
        runtime, guard = self.runtime, self.runtime.guard
        claim = guard.claim(call, self.policy)
        try:
            decision = await runtime.drive(guard.begin(call, self.policy, claim))
        except asyncio.CancelledError:  # the insert may be under way, and nobody would own it
            runtime.background.forget(claim)
            raise
        match decision:
            case Execute(attempt):
                return await runtime.background.apart(self._execute(attempt, call, work))
            case Replay(answer):
                return _replayed(answer)
            case Refuse(problem, lost_claim):
                if lost_claim is not None:
                    runtime.background.forget(lost_claim)
                return Declined(problem, sent=lost_claim is not None)
            case Bypass():
                return self._unprotected(await _awaited(work()))

    def run_sync(self, call: Call, work: Callable[[], Any]) -> Outcome:
        """`run` for callers that block; `work` runs in their thread."""
        self._begin_using()
        runtime, guard = self.runtime, self.runtime.guard
        claim = guard.claim(call, self.policy)
        try:
            decision = runtime.drive_sync(guard.begin(call, self.policy, claim))
        except BaseException:  # a signal's: the insert may have happened, and nobody would own it
            runtime.background.forget_sync(claim)
            raise
        match decision:
            case Execute(attempt):
                return self._execute_sync(attempt, call, work)
            case Replay(answer):
                return _replayed(answer)
            case Refuse(problem, lost_claim):
                if lost_claim is not None:
                    runtime.background.forget_sync(lost_claim)
                return Declined(problem, sent=lost_claim is not None)
            case Bypass():
                return self._unprotected(not_awaitable(work()))

    async def _execute(self, attempt: Attempt, call: Call, work: Callable[[], Any]) -> Outcome:
        runtime = self.runtime
        attempt.ports = runtime.ports()
        try:
            runtime.heartbeat.add(attempt)
            with attempts.within(attempt):
                if attempt.asks:
                    learned = await learning.ask(attempt)
                    settled = await runtime.drive(runtime.guard.learned(attempt, learned, call))
                    if settled is not None:
                        return _outcome(settled, learned)
                result = await _awaited(work())
            probe("after_handler")
            return await runtime.drive(self._end(attempt, call, result))
        except BaseException as error:
            if attempt.finished or not failed_honestly(attempt, error):
                raise
            ended = await runtime.drive(self._end_failed(attempt, call))
            if ended is None:
                raise
            _log.exception("%r failed after its outcome was decided", attempt)
            return ended
        finally:
            runtime.heartbeat.drop(attempt)

    def _execute_sync(self, attempt: Attempt, call: Call, work: Callable[[], Any]) -> Outcome:
        runtime = self.runtime
        attempt.ports = runtime.ports_sync()
        try:
            runtime.heartbeat.add(attempt)  # a signal may come at once, and must end it too
            with attempts.within(attempt):
                if attempt.asks:
                    learned = learning.ask_sync(attempt)
                    settled = runtime.drive_sync(runtime.guard.learned(attempt, learned, call))
                    if settled is not None:
                        return _outcome(settled, learned)
                result = not_awaitable(work())
            probe("after_handler")
            return runtime.drive_sync(self._end(attempt, call, result))
        except BaseException as error:
            if attempt.finished or not failed_honestly(attempt, error):
                raise
            ended = runtime.drive_sync(self._end_failed(attempt, call))
            if ended is None:
                raise
            _log.exception("%r failed after its outcome was decided", attempt)
            return ended
        finally:
            runtime.heartbeat.drop(attempt)

    # ------------------------------------------------------------------ the caller's transaction

    async def run_in(self, transaction: Any, call: Call, work: Callable[[], Any]) -> Outcome:
        """Run `work`, and record that in a transaction of the caller's: it counts if and only if
        the caller commits. Whatever must not be committed is raised.
        """
        guard, policy = self._joining()
        ask = self.runtime.async_gatherer.ask
        unit = AsyncUnit(AsyncCallers(transaction), self.runtime.store, policy.atomic_s_max, ask)
        decision = await unit.drive(guard.begin(call, policy))
        if not isinstance(decision, Execute):
            return _outcome(decision, None)
        with attempts.within(decision.attempt):
            result = await _awaited(work())
        answer = self._answer_in(decision.attempt, result)
        ended = await unit.drive(guard.conclude(decision.attempt, Verdict.KEEP, answer, call))
        return _committable(ended, answer)

    def run_in_sync(self, transaction: Any, call: Call, work: Callable[[], Any]) -> Outcome:
        """`run_in` for callers that block."""
        guard, policy = self._joining()
        ask = self.runtime.gatherer.ask
        unit = Unit(Callers(transaction), self.runtime.store, policy.atomic_s_max, ask)
        decision = unit.drive_sync(guard.begin(call, policy))
        if not isinstance(decision, Execute):
            return _outcome(decision, None)
        with attempts.within(decision.attempt):
            result = not_awaitable(work())
        answer = self._answer_in(decision.attempt, result)
        ended = unit.drive_sync(guard.conclude(decision.attempt, Verdict.KEEP, answer, call))
        return _committable(ended, answer)

    def _joining(self) -> tuple[Guard, Policy]:
        if self.policy.recovery == "ask":
            raise Misuse(
                f"{self.name}: Policy(recovery='ask') is for what can be left half done; a "
                "transaction cannot"
            )
        if self.runtime.start():
            atexit.register(self.runtime.close)
        # Nobody waits with a transaction open.
        return self.runtime.guard, replace(self.policy, in_flight="refuse")

    def _answer_in(self, attempt: Attempt, result: Any) -> Answer:
        probe("after_handler")
        if attempt.verdict not in (None, Verdict.KEEP):
            raise Misuse(
                f"{self.name} called transient() or no_effect() in its caller's transaction, whose "
                "rows would be committed all the same: raise an exception instead"
            )
        return Answer(200, _JSON, self._encode(result))

    # ----------------------------------------------------------------------- without a caller

    async def take_up(self, orphan: Orphan, call: Call, work: Callable[[], Any]) -> bool:
        """Run what no caller comes back for; False if there is nothing to run."""
        runtime = self.runtime
        if runtime.belongs_elsewhere():
            raise Misuse(
                f"{self.name} is async and is called in another event loop: run its recoverer "
                "there, or in a process of its own (`oncekey recover`)"
            )
        self._begin_using()
        taken = await runtime.drive(self._taking_up(orphan, call))
        if taken is None:
            return False
        await runtime.background.apart(self._execute(taken.attempt, call, work))
        return True

    def take_up_sync(self, orphan: Orphan, call: Call, work: Callable[[], Any]) -> bool:
        """`take_up` for work that blocks."""
        self._begin_using()
        taken = self.runtime.drive_sync(self._taking_up(orphan, call))
        if taken is None:
            return False
        self._execute_sync(taken.attempt, call, work)
        return True

    def _taking_up(self, orphan: Orphan, call: Call) -> Op[Execute | None]:
        return self.runtime.guard.take_up(orphan.record, call, self.policy, orphan.looked_at)

    # ----------------------------------------------------------------------------- how it ends

    def _end(self, attempt: Attempt, call: Call, result: Any) -> Op[Outcome]:
        """Record what `work` gave."""
        verdict = attempt.verdict or Verdict.KEEP
        guard = self.runtime.guard
        try:
            answer = Answer(200, _JSON, self._encode(result))
        except Misuse:  # it was done all the same: a retry must not do it again
            ended = yield from guard.conclude(attempt, verdict, Answer(200, (), None), call)
            if isinstance(ended, Stored) and ended.answer is not None:
                return _outcome(ended, None)  # what `complete_in` wrote is the result
            raise
        return _outcome((yield from guard.conclude(attempt, verdict, answer, call)), answer)

    def _end_failed(self, attempt: Attempt, call: Call) -> Op[Outcome | None]:
        """`work` raised. None: nothing counts but that."""
        finished = yield from self.runtime.guard.conclude_failed(attempt, call)
        return None if isinstance(finished, Given) else _outcome(finished, None)

    def _encode(self, result: Any) -> bytes:
        return results.encode(self.name, result, self.policy.answer_bytes_max)

    def _unprotected(self, result: Any) -> Ran:
        return Ran(json.loads(self._encode(result)), stored=False)

    def _begin_using(self) -> None:
        """Start housekeeping, and say once if this operation runs again after a crash."""
        if self.runtime.start():
            atexit.register(self.runtime.close)
        if self._warns:
            self._warns = False
            _log.warning(
                "if a process dies while it runs %s, the next call runs it again. Where that could "
                "repeat an effect outside the database, take steps, or set "
                "Policy(recovery='block')",
                self.name,
            )


def _outcome(finished: Finished, own: object) -> Outcome:
    """`own` is what was to be recorded, where that was an answer."""
    match finished:
        case Stored(_, recorded):
            return Ran(_result(recorded or own))
        case Unstored():
            return Ran(_result(own), stored=False)
        case Given():
            return Released(_result(own))
        case Replay(answer):
            return _replayed(answer)
        case Refuse(problem):
            return Declined(problem, sent=True)


def _committable(finished: Finished, own: Answer) -> Outcome:
    """Nobody but the caller can undo what `work` wrote, so the caller must hear of it."""
    outcome = _outcome(finished, own)
    if isinstance(outcome, Declined):
        raise outcome.error()
    if not isinstance(outcome, Ran):
        raise LeaseLost("another call with this key was committed meanwhile: roll this one back")
    return outcome


def _replayed(answer: Answer) -> Replayed:
    """What an operator gave it may be plain text: nobody could call it any more if that failed."""
    try:
        return Replayed(_result(answer))
    except Misuse:
        return Replayed((answer.body or b"").decode(errors="replace"))


def _result(answer: object) -> Any:
    """What every caller gets: as JSON gives it back, the first one too."""
    body = answer.body if isinstance(answer, Answer) else None
    try:
        return json.loads(body or b"null")
    except ValueError as error:
        raise Misuse(
            f"the kept answer is not JSON ({error}): give complete_in a body that JSON can write"
        ) from error


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
