"""A guarded ASGI request whose key is claimed late: just before its handler would run.

For frameworks that check a request inside the application. A response before the claim passes
through, and its key stays unused. From the claim on it is a `RequestRun` like any other.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from oncekey._core.endings import End
from oncekey._core.policy import Verdict
from oncekey._core.problems import Problem
from oncekey._core.record import Answer, Claim
from oncekey._engine import attempt as attempts
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Bypass, Decision, Execute, Refuse, Replay
from oncekey._engine.keyless import passing
from oncekey.web import _asgi_messages as messages
from oncekey.web._asgi_messages import Message, Receive, Scope, Send
from oncekey.web._asgi_run import RequestRun
from oncekey.web._body import Body
from oncekey.web._routes import Route

if TYPE_CHECKING:
    from oncekey.web.asgi import IdempotencyMiddleware

_SETTLED = Answer(204, (), b"")
"""Says nothing: the client has been answered."""


class LateRun(RequestRun):
    """Handles one request whose key is claimed just before its handler would run."""

    __slots__ = ("_held", "_unprotected")

    _closes_body = False  # what it says is looked at again, at the claim

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        body: Body,
    ) -> None:
        super().__init__(middleware, messages.inner(scope), receive, send, route, body)
        self._held = False
        """Whether the key is claimed: the response is collected."""
        self._unprotected = False

    async def start(self) -> None:
        """Run the application. If the task that awaits it is cancelled, it continues."""
        self._caller = self._edge.runtime.background.apart(self._run_late())
        await self._caller

    async def claim(self) -> Answer | None:
        """Claim the key. None: run the handler; otherwise this is the response."""
        middleware, edge = self._middleware, self._edge
        request = messages.request(self._scope)
        call = await middleware.call(request, self._route, None, self._body)
        if call is None:  # it brings no key and needs none
            if self._unit is not None:
                return await self._own_plain()
            self._serve(None)
            return None
        if isinstance(call, Problem):
            return edge.decline(call, self._route)
        if isinstance(call, Answer):
            return call
        if not middleware.lets_recoverer_in:  # who sent it was checked inside: it could not pass
            call = dataclasses.replace(call, request=None)
        edge.start()
        session = self._claim(call)
        decision: Decision = await self._drive(session.open())
        match decision:
            case Execute(attempt):
                return await self._own(attempt)
            case Replay():
                return edge.replay(decision, call.key, call.asked)
            case Refuse(problem):
                return edge.refusal(problem)
            case Bypass():
                self._unprotected = True
                self._serve(session.claim)
                return None

    def _serve(self, claim: Claim | None) -> None:
        """Let the handler run unprotected."""
        route = self._route
        attempts.serve(passing(lambda: (route.operation, route.policy), self._edge.store, claim))
        self._hear_client()

    async def _own_plain(self) -> Answer | None:
        decision = await self._begin_plain()
        if isinstance(decision, Execute):
            return await self._own(decision.attempt)
        return self._edge.refusal(decision.problem) if isinstance(decision, Refuse) else None

    async def _own(self, attempt: Attempt) -> Answer | None:
        self._hold_back(attempt)
        self._held = True
        attempts.enter(attempt)
        if attempt.asks and await self._settle():
            return _SETTLED
        return None

    async def _run_late(self) -> None:
        try:
            await self._middleware.app(self._scope, self._receive, self._collect)
            if self._held:
                await self._check_answered()
        except BaseException as error:
            if not self._held or not await self._answer_failure(error):
                raise
        finally:
            self._body.close()
            if self._held:
                await self._let_go()

    async def _collect(self, message: Message) -> None:
        if self._held:
            await super()._collect(message)
        elif self._unprotected:
            await self._send_unprotected(message)
        else:
            await self._send(message)


class RecoveredRun(RequestRun):
    """Handles a request for the recoverer, which owns it before the application sees it."""

    __slots__ = ("reached",)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reached = False
        """Whether the endpoint was called."""

    @property
    def guard(self) -> IdempotencyMiddleware:
        return self._middleware

    def _classify(self) -> tuple[End, Answer | None]:
        """Count a response as transient if the endpoint was not called: it says nothing about what
        the endpoint had begun, and a later release may accept the request.
        """
        keeps = self._session.policy.keep(self._capture.status) is Verdict.KEEP
        if keeps and not self.reached:
            self._attempt.transient()
        return super()._classify()
