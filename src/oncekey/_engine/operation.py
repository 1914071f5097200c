"""An operation that is not a request: run once per key, for functions and messages alike.

The edge of everything that has no HTTP around it. Its answer is the result of a function, as JSON.
"""

from __future__ import annotations

import atexit
import inspect
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from oncekey._core import endings
from oncekey._core.answer import encode_result
from oncekey._core.key import describe_call
from oncekey._core.op import Op
from oncekey._core.policy import INHERIT, Policy, Verdict, as_policy
from oncekey._core.record import Answer
from oncekey._core.validation import OPERATION_CHARS_MAX, is_storable
from oncekey._engine import attempt as attempts
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import Bypass, Call, Execute, Given, GivenUp, Refuse, Replay, Stored
from oncekey._engine.outcomes import Declined, Outcome, Ran, outcome_of, replayed
from oncekey._engine.registry import Orphan
from oncekey._engine.runtime import Runtime
from oncekey._engine.session import Session
from oncekey._engine.unawaited import not_awaitable
from oncekey._system.probes import probe
from oncekey._system.warn_once import warn
from oncekey.errors import (
    Misuse,
)

_log = logging.getLogger("oncekey")

_JSON = ((b"content-type", b"application/json"),)


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
        if not is_storable(name, OPERATION_CHARS_MAX):
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
        chosen = policy is not None and policy.recovery is not INHERIT
        self._is_undecided = not chosen and self.policy.recovery == "rerun"
        self._is_used = False
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
        runtime = self.runtime
        session = Session(runtime.guard, call, self.policy, runtime.ports())
        match await runtime.drive(session.open()):
            case Execute():
                return await runtime.background.apart(self._execute(session, work))
            case Replay(answer):
                return replayed(answer)
            case Refuse(problem, lost_claim):
                return Declined(problem, sent=lost_claim is not None, of=self.describe(call))
            case Bypass():
                return self._encode_unprotected(await await_if_needed(work()), call)

    def run_sync(self, call: Call, work: Callable[[], Any]) -> Outcome:
        """`run` for callers that block; `work` runs in their thread."""
        self._begin_using()
        runtime = self.runtime
        session = Session(runtime.guard, call, self.policy, runtime.ports_sync())
        try:
            match runtime.drive_sync(session.open()):
                case Execute():
                    return self._execute_sync(session, work)
                case Replay(answer):
                    return replayed(answer)
                case Refuse(problem, lost_claim):
                    return Declined(problem, sent=lost_claim is not None, of=self.describe(call))
                case Bypass():
                    return self._encode_unprotected(not_awaitable(work()), call)
        finally:
            session.close()

    async def _execute(self, session: Session, work: Callable[[], Any]) -> Outcome:
        drive, attempt, name = self.runtime.drive, session.attempt, self.describe(session.call)
        try:
            with attempts.within(attempt):
                if attempt.asks:
                    learned = await session.ask()
                    settled = await drive(session.learned(learned))
                    if settled is not None:
                        return outcome_of(settled, learned, name)
                result = await await_if_needed(work())
            probe("after_handler")
            return await drive(self._end(session, result))
        except BaseException as error:
            ended = await drive(self._end_failed(session, error))
            if ended is None:
                raise
            _log.exception("%r failed after its outcome was decided", attempt)
            return ended
        finally:
            session.close()

    def _execute_sync(self, session: Session, work: Callable[[], Any]) -> Outcome:
        drive, attempt, name = self.runtime.drive_sync, session.attempt, self.describe(session.call)
        try:
            with attempts.within(attempt):
                if attempt.asks:
                    learned = session.ask_sync()
                    settled = drive(session.learned(learned))
                    if settled is not None:
                        return outcome_of(settled, learned, name)
                result = not_awaitable(work())
            probe("after_handler")
            return drive(self._end(session, result))
        except BaseException as error:
            ended = drive(self._end_failed(session, error))
            if ended is None:
                raise
            _log.exception("%r failed after its outcome was decided", attempt)
            return ended

    # ------------------------------------------------------------------ the caller's transaction

    def join(self, call: Call) -> Session:
        """A session in a transaction of the caller's (`atomic._caller_transaction` drives it)."""
        if self.policy.recovery == "ask":
            raise Misuse(
                f"{self.name}: Policy(recovery='ask') is for what can be left half done; a "
                "transaction cannot"
            )
        if self.runtime.start():
            atexit.register(self.runtime.close)
        # Nobody waits with a transaction open.
        policy = replace(self.policy, in_flight="refuse")
        return Session(self.runtime.guard, call, policy, ports=None)

    def answer_in(self, attempt: Attempt, result: Any, call: Call) -> Answer:
        """The result as it is recorded there."""
        probe("after_handler")
        if attempt.verdict not in (None, Verdict.KEEP):
            raise Misuse(
                f"{self.describe(call)} called transient(), no_effect() or unknown() in its "
                "caller's transaction, whose rows would be committed all the same: raise an "
                "exception instead"
            )
        return Answer(200, _JSON, self._encode(result, call))

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
        session = Session(runtime.guard, call, self.policy, runtime.ports())
        if await runtime.drive(session.take_up(orphan.record, orphan.looked_at)) is None:
            return False
        await runtime.background.apart(self._execute(session, work))
        return True

    def take_up_sync(self, orphan: Orphan, call: Call, work: Callable[[], Any]) -> bool:
        """`take_up` for work that blocks."""
        self._begin_using()
        runtime = self.runtime
        session = Session(runtime.guard, call, self.policy, runtime.ports_sync())
        try:
            op = session.take_up(orphan.record, orphan.looked_at)
            if runtime.drive_sync(op) is None:
                return False
            self._execute_sync(session, work)
            return True
        finally:
            session.close()

    # ----------------------------------------------------------------------------- how it ends

    def _end(self, session: Session, result: Any) -> Op[Outcome]:
        """Record what `work` gave."""
        attempt, call = session.attempt, session.call
        end = endings.end_of_verdict(attempt.verdict or Verdict.KEEP)
        try:
            answer = Answer(200, _JSON, self._encode(result, call))
        except Misuse:  # it was done all the same: a retry must not do it again
            ended = yield from session.answered(end, Answer(200, (), None))
            if isinstance(ended, Stored) and ended.answer is not None:
                # What `complete_in` wrote is the result.
                return outcome_of(ended, None, self.describe(call))
            raise
        ended = yield from session.answered(end, answer)
        return outcome_of(ended, answer, self.describe(call))

    def _end_failed(self, session: Session, error: BaseException) -> Op[Outcome | None]:
        """`work` raised. None: nothing counts but that."""
        finished, name = (yield from session.failed(error)), self.describe(session.call)
        if isinstance(finished, GivenUp):
            error.add_note(
                f"oncekey: nobody knows what {name} did, so it is not run again: later tries with "
                "this key get Unknown, until an operator has found out (`oncekey list --unknown`)"
            )
            return None
        if finished is None or isinstance(finished, Given):
            return None
        return outcome_of(finished, None, name)

    def describe(self, call: Call) -> str:
        """Which call, for whoever reads an error: keys are not shown."""
        return describe_call(self.name, call.key)

    def _encode(self, result: Any, call: Call) -> bytes:
        return encode_result(self.describe(call), result, self.policy.answer_bytes_max)

    def _encode_unprotected(self, result: Any, call: Call) -> Ran:
        return Ran(json.loads(self._encode(result, call)), stored=False)

    def _begin_using(self) -> None:
        """Start housekeeping."""
        if self.runtime.start():
            atexit.register(self.runtime.close)
        if not self._is_used:
            self._is_used = True
            self.warn()

    def warn(self) -> None:
        """Say once what nobody has chosen: that this operation runs again after a crash."""
        self.runtime.warn_of_memory()
        if self._is_undecided:
            warn(
                "recovery",
                f"if a process dies while it runs {self.name}, the next call runs it again. Where "
                "that could repeat an effect outside the database, take steps, or set "
                "Policy(recovery='block'); Policy(recovery='rerun') says that it is right",
            )


async def await_if_needed(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
