"""The life of one attempt, from its claim until its lease is let go.

    decision = yield from session.open()          # run, replay, refuse, or serve unprotected
    finished = yield from session.learned(found)  # only where the application is asked first
    finished = yield from session.answered(…)     # or session.failed(error)
    session.close()

Every form drives this object: ASGI, WSGI, views, functions, messages and the recoverer; so do the
simulator and the crash tests. What a form adds is how to read a request, run a handler and send a
response. The rules that must hold in all of them are here:

- the heartbeat starts before the handler does, and stops after its end was recorded;
- a claim whose caller is interrupted is forgotten: nobody would own it;
- nothing may be sent before `answered` or `failed` has returned;
- an attempt that has ended is not ended again.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from oncekey._core.endings import End
from oncekey._core.op import Op
from oncekey._core.policy import Policy
from oncekey._core.record import Answer, Record
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import Call, Decision, Execute, Finished, Refuse
from oncekey.errors import Misuse

if TYPE_CHECKING:
    from oncekey._engine.guard import Guard
    from oncekey._engine.handler_calls import Ports
    from oncekey._engine.keyless import Plain


class Session:
    """One attempt at one request. `engine` decides; `ports` renews its lease and forgets its claim.

    In a transaction there are no ports: its record is nobody's before the commit, so there is no
    lease to renew and no claim to forget.
    """

    __slots__ = (
        *("_engine", "_is_held", "_ownership", "_ports"),
        *("attempt", "call", "claim", "policy"),
    )

    attempt: Attempt
    """The attempt that is to run, once `open` or `take_up` has said so."""

    def __init__(
        self, engine: Guard | Plain, call: Call, policy: Policy, ports: Ports | None
    ) -> None:
        self._engine = engine
        self._ownership = engine.ownership
        self._ports = ports
        self._is_held = False
        self.call = call
        self.policy = policy
        self.claim = engine.claim(call, policy)

    # ------------------------------------------------------------------------------- the start

    def open(self) -> Op[Decision]:
        """Claim the key: what to do with the request."""
        try:
            decision = yield from self._engine.begin(self.call, self.policy, self.claim)
            if isinstance(decision, Execute):
                self._own(decision.attempt)
        except BaseException:  # a cancellation, a signal: the claim may be on its way to the store
            self.close()
            self._forget()
            raise
        if isinstance(decision, Refuse) and decision.lost_claim is not None:
            self._forget()
        return decision

    def take_up(self, abandoned: Record, looked_at: float) -> Op[Execute | None]:
        """Own a record that no client comes back for. None: there is nothing to run."""
        op = self._engine.take_up(abandoned, self.call, self.policy, looked_at, self.claim)
        taken = yield from op
        if taken is not None:
            self._own(taken.attempt)
        return taken

    def _own(self, attempt: Attempt) -> None:
        """From here on the lease is renewed."""
        self.attempt, self._is_held = attempt, True
        if self._ports is not None:
            attempt.ports = self._ports
            self._ports.heartbeat.add(attempt)

    def _forget(self) -> None:
        """Release, in the background, a claim that may have been granted unheard."""
        if self._ports is not None:
            self._ports.forget(self.claim)

    # ---------------------------------------------------------------- the application is asked

    async def ask(self) -> object:
        """Call the policy's `ask`: it knows what became of an attempt that died.

        Its `Answer`, its `Learned`, or the exception that it raised. It runs as the handler would,
        under the heartbeat; a function that blocks does so in a thread.
        """
        find_out, attempt = self.attempt.policy.ask, self.attempt
        if find_out is None:
            return None
        try:
            if inspect.iscoroutinefunction(find_out):
                return await find_out(attempt)
            found = await asyncio.to_thread(find_out, attempt)
            return await found if inspect.isawaitable(found) else found
        except Exception as error:  # it is the application's
            return error

    def ask_sync(self) -> object:
        """`ask` for callers that block."""
        find_out, attempt = self.attempt.policy.ask, self.attempt
        if find_out is None:
            return None
        try:
            found = find_out(attempt)
            if inspect.iscoroutine(found):
                found.close()
                return Misuse(
                    "Policy(ask=…) is async, and this application is not: write it with def"
                )
            return found
        except Exception as error:
            return error

    def learned(self, found: object) -> Op[Finished | None]:
        """What the application said. None: it was not done, run the handler now."""
        return self._ownership.learned(self.attempt, found, self.call)

    # --------------------------------------------------------------------------------- the end

    def answered(self, end: End, answer: Answer | None) -> Op[Finished]:
        """The handler has answered: store, release or give up. Only then may anything be sent.

        May be driven again after it was cut off: the store recognises what it has done.
        """
        return self._ownership.conclude(self.attempt, end, answer, self.call)

    def failed(self, error: BaseException) -> Op[Finished | None]:
        """The handler raised, or was cut off. None: the attempt had ended before, so nothing counts
        but the error.
        """
        if self.attempt.finished:
            return None
        return (yield from self._ownership.conclude_failed(self.attempt, error, self.call))

    def close(self) -> None:
        """Let go: nothing renews the lease any more. A transaction is closed by its owner."""
        if self._ports is not None and self._is_held:
            self._ports.heartbeat.drop(self.attempt)
