"""A guarded ASGI request that is claimed late: not at the door, but where its handler would run.

For frameworks that check a request inside the application. What is answered before the claim passes
through: nothing was spent. From the claim on it is a `Run` like any other.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from oncekey import attempt as attempts
from oncekey.attempt import Attempt
from oncekey.core.problem import Problem
from oncekey.core.record import Answer
from oncekey.guard import Bypass, Decision, Execute, Refuse, Replay
from oncekey.web import messages
from oncekey.web.asgi_run import Run
from oncekey.web.messages import Message, Receive, Scope, Send
from oncekey.web.routes import Route

if TYPE_CHECKING:
    from oncekey.web.asgi import IdempotencyMiddleware

_SETTLED = Answer(204, (), b"")
"""Says nothing: the client has been answered."""


class LateRun(Run):
    """One request, from its routing to its last byte."""

    __slots__ = ("_held", "_request_body", "_unprotected")

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        body: bytes,
    ) -> None:
        unread: Any = None  # what the request asks of the engine is known at its claim
        super().__init__(middleware, messages.inner(scope), receive, send, route, unread, body)
        self._held: Attempt | None = None
        self._unprotected = False
        self._request_body = body

    async def start(self) -> None:
        """Run the application. Whoever awaits its end may be cancelled: it goes on."""
        await self._apart(self._run_late())

    async def claim(self) -> Answer | None:
        """Called where the handler would be. None: it is to run; else this is the answer."""
        middleware, edge = self._middleware, self._edge
        call = await middleware.call(
            messages.request(self._scope), self._route, None, self._request_body
        )
        if call is None:  # it brings no key and needs none
            self._hear_client()
            return None
        if isinstance(call, Problem):
            return edge.decline(call, self._route)
        if isinstance(call, Answer):
            return call
        # Who sent it was checked inside: no recoverer could pass there without the client.
        call = self._call = dataclasses.replace(call, request=None)
        edge.start()
        guard, policy = edge.guard, self._route.policy
        claim = guard.claim(call, policy)
        try:
            decision: Decision = await self._drive(guard.begin(call, policy, claim))
        except asyncio.CancelledError:  # the insert may be under way, and nobody would own it
            if self._unit is None:
                middleware.forget(claim)
            raise
        match decision:
            case Execute(attempt):
                return await self._own(attempt)
            case Replay():
                return edge.replay(decision, call)
            case Refuse(problem, lost_claim):
                if lost_claim is not None:
                    middleware.forget(lost_claim)
                return edge.refusal(problem)
            case Bypass():
                self._unprotected = True
                self._hear_client()
                return None

    async def _own(self, attempt: Attempt) -> Answer | None:
        self._hold(attempt)
        self._held = attempt
        attempts.enter(attempt)
        if attempt.asks and await self._settle(attempt):
            return _SETTLED
        return None

    async def _run_late(self) -> None:
        try:
            await self._middleware.app(self._scope, self._receive, self._captured)
            if self._held is not None:
                await self._check_answered(self._held)
        except BaseException as error:
            if self._held is None or not await self._survived(self._held, error):
                raise
        finally:
            if self._held is not None:
                await self._let_go(self._held)

    async def _captured(self, message: Message) -> None:
        if self._held is not None:
            await super()._captured(message)
        elif self._unprotected:
            await self._send_unprotected(message)
        else:
            await self._send(message)
