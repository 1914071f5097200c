"""One guarded ASGI request, from the engine's decision to the last byte.

The handler runs in its own task: a client that hangs up does not stop it. No byte of its response
is sent before the response is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from oncekey._core.endings import End
from oncekey._core.record import Answer
from oncekey._engine import attempt as attempts
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import (
    Bypass,
    Call,
    Decision,
    Execute,
    Finished,
    Given,
    GivenUp,
    Guard,
    Refuse,
    Replay,
)
from oncekey._engine.keyless import PLAIN, Plain, keyless
from oncekey._engine.lease import CONCLUDED, Phase
from oncekey._engine.registry import Orphan
from oncekey._engine.session import Session
from oncekey._system.probes import probe
from oncekey.web import _asgi_messages as messages
from oncekey.web._asgi_messages import Message, Receive, Scope, Send
from oncekey.web._body import Body
from oncekey.web._capture import Capture
from oncekey.web._edge import UNSTORED, log
from oncekey.web._request import GUARDED, check_guarded_once, check_refused_once
from oncekey.web._routes import Route

if TYPE_CHECKING:
    from oncekey.web.asgi import IdempotencyMiddleware


_LEFT = "whoever called has left"


class RequestRun:
    """Handles one guarded request: asks the engine, runs the handler, records its response."""

    __slots__ = (
        "_answered",
        "_attempt",
        "_body",
        "_caller",
        "_capture",
        "_cut_off",
        "_drive",
        "_edge",
        "_flowing",
        "_middleware",
        "_receive_from_client",
        "_route",
        "_scope",
        "_send",
        "_session",
        "_silenced",
        "_supply",
        "_unit",
    )

    _closes_body = True
    """Whether the body is closed once the application has all of it."""

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        body: Body,
    ) -> None:
        self._middleware = middleware
        self._edge = middleware.edge
        self._session: Session
        """Set when the key is claimed."""
        self._attempt: Attempt
        """Set when the handler may run."""
        self._unit = middleware.edge.async_unit(route.policy) if route.policy.atomic else None
        self._drive = (self._unit or middleware.edge.runtime).drive
        self._scope = scope
        self._receive_from_client = receive
        self._send = send
        self._route = route
        self._body = body
        self._supply = messages.Supply(body, closes=self._closes_body)
        self._caller: asyncio.Future[None] | None = None
        """What the server waits for while the handler runs; done early if it stopped waiting."""
        self._cut_off: tuple[End, Answer | None] | None = None
        """What was being recorded when a timeout of the application cut that off."""
        self._answered = False
        self._flowing: asyncio.Event | None = None
        self._silenced = False

    async def decide(self, call: Call) -> None:
        """Ask the engine, then run, replay or refuse."""
        session = self._claim(call)
        if (around := self._scope.get(GUARDED)) is not None:
            check_guarded_once(around, self._edge.runtime.registry, session.claim)
        decision = await self._drive(session.open())
        if isinstance(decision, Execute):
            await self._execute(decision.attempt)
            return
        try:
            await self._decline(decision)
        finally:
            self._body.close()

    def _claim(self, call: Call, engine: Guard | Plain | None = None) -> Session:
        """Make the session of this request."""
        edge = self._edge
        ports = None if self._unit is not None else edge.runtime.ports()
        self._session = Session(engine or edge.guard, call, self._route.policy, ports)
        return self._session

    async def _decline(self, decision: Replay | Refuse | Bypass) -> None:
        session = self._session
        match decision:
            case Replay():
                call = session.call
                await messages.send(self._send, self._edge.replay(decision, call.key, call.asked))
            case Refuse(problem):
                check_refused_once(self._scope.get(GUARDED), session.claim, problem)
                await messages.send(self._send, self._edge.refusal(problem))
            case Bypass():
                scope = messages.inner(self._scope)
                receive = messages.resupply(self._body, self._receive_from_client)
                send, claim = self._send_unprotected, session.claim
                await self._middleware.serve(scope, receive, send, claim)

    async def take_up(self, call: Call, orphan: Orphan) -> bool:
        """Run an abandoned request for the recoverer; False if there is nothing to run."""
        session = self._claim(call)
        taken = await self._drive(session.take_up(orphan.record, orphan.looked_at))
        if taken is not None:
            await self._execute(taken.attempt)
        return taken is not None

    async def _begin_plain(self) -> Decision:
        """Begin an atomic request without a key: a transaction, and no record."""
        route = self._route
        self._unit = self._edge.async_unit(route.policy, plain=True)
        self._drive = (self._unit or self._edge.runtime).drive
        session = self._claim(keyless(route.operation), PLAIN)
        decision: Decision = await self._drive(session.open())
        return decision

    def _execute(self, attempt: Attempt) -> asyncio.Future[None]:
        """Start the handler. If the task that awaits it is cancelled, the handler continues."""
        try:
            by = self._edge.runtime.registry, self._session.claim.id
            self._scope = messages.inner(self._scope, by)
            self._hold_back(attempt)
            self._caller = self._edge.runtime.background.apart(self._run_app())
            return self._caller
        except BaseException:
            self._session.close()
            raise

    def _hold_back(self, attempt: Attempt) -> None:
        """Collect the response from here on: nothing is sent before it is recorded."""
        self._attempt = attempt
        self._capture = Capture(self._route.policy.answer_bytes_max)

    async def _run_app(self) -> None:
        attempts.enter(self._attempt)
        try:
            if self._attempt.lease.phase is Phase.ASKING and await self._settle():
                return
            await self._middleware.app(self._scope, self._receive, self._collect)
            await self._check_answered()
        except BaseException as error:
            if not await self._answer_failure(error):
                raise
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        """Release what the handler held."""
        if not self._body.is_closed:
            self._body.close()
        self._session.close()
        if self._unit is not None:
            await self._unit.close()

    async def _check_answered(self) -> None:
        if self._cut_off is not None:
            await self._record(*self._cut_off)
        elif not self._capture.complete and not self._attempt.finished:
            raise RuntimeError("the application returned without a complete answer")

    async def _answer_failure(self, error: BaseException) -> bool:
        """Handle an exception of the handler. True if its client was answered all the same."""
        if self._cut_off is not None and (
            isinstance(error, Exception) or not self._attempt.finished
        ):
            await self._record(*self._cut_off)
        elif not await self._conclude_failed(error):
            return False
        log.error("%r failed after its outcome was decided", self._attempt, exc_info=error)
        return True

    async def _settle(self) -> bool:
        """Ask the application about the attempt that died. False: run the handler."""
        session = self._session
        learned = await session.ask()
        kept = self._edge.storable_finding(self._attempt, learned)
        finished = await self._drive(session.learned(kept))
        if finished is None:
            return False
        if isinstance(learned, Answer):
            self._capture.replace(learned)
        await self._answer(finished)
        return True

    async def _conclude_failed(self, error: BaseException) -> bool:
        """Record that the handler raised. True if there is a response all the same."""
        finished = await self._drive(self._session.failed(error))
        if finished is None or isinstance(finished, Given):
            return False
        if isinstance(finished, GivenUp):  # its client hears of it here, whoever logs it by raising
            if not _is_being_cancelled():
                await self._answer_instead(self._edge.render_broken())
            return False
        await self._answer(finished)
        return True

    async def _receive(self) -> Message:
        """Give the application the body, which was read already; then wait until the client is
        answered. A client that hangs up stops only an endless stream that has begun.
        """
        if not self._supply.is_over:
            return await self._supply.next()
        if not self._answered:
            self._flowing = self._flowing or asyncio.Event()
            await self._flowing.wait()
        return await self._receive_from_client()

    async def _collect(self, message: Message) -> None:
        """Collect a message that the application sends to its client."""
        capture = self._capture
        is_over = not capture.flowing and self._attempt.lease.phase in CONCLUDED
        if self._cut_off is not None or is_over:
            return  # the client got another response
        if message["type"] == "http.response.start":
            if capture.flowing:  # as servers say: a beginning was sent
                raise RuntimeError("the application begins another answer within its first one")
            capture.start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            if capture.flowing:
                await self._flow(message)
            elif capture.add(message.get("body", b""), last=not message.get("more_body", False)):
                probe("after_handler")
                await self._record(*self._classify())
        # Anything else (early hints, trailers, debug information) is not stored.

    def _classify(self) -> tuple[End, Answer | None]:
        """Tell what the response means for its record."""
        capture, scope = self._capture, self._scope
        route = scope.get("route")
        found = route or scope.get("endpoint")
        # A mount is no route yet: it only leads to more routes.
        capture.matched = found is not None and not hasattr(found, "routes")
        is_static = "{" not in getattr(route, "path", "{") and not scope.get("path_params")
        capture.has_static_route = is_static and capture.matched
        return self._edge.classify(self._attempt, capture)

    async def _record(self, end: End, kept: Answer | None) -> None:
        """Record the answer, then send it. If a timeout of the application cuts that off, it is
        repeated: what was answered in time counts, however slow the store is. A transaction is over
        by then.
        """
        try:
            finished = await self._drive(self._session.answered(end, kept))
        except asyncio.CancelledError:
            self._cut_off = None if self._unit else (end, kept)
            raise
        self._cut_off = None
        await self._answer(finished)

    async def _answer(self, finished: Finished) -> None:
        """Send the response that the end of the attempt calls for."""
        instead = self._edge.answer(finished, self._capture, self._session.call.key)
        if instead is None:
            await self._release()
        else:
            await self._answer_instead(instead)

    async def _answer_instead(self, answer: Answer) -> None:
        """Send this response, and nothing of the application's."""
        self._silenced = True
        await messages.send(self._tell, answer)
        self._hear_client()

    async def _tell(self, *said: Message) -> None:
        """Send to the client. Raises `OSError` if the client is gone, or if a middleware outside,
        such as a timeout, has stopped waiting: it may have sent a response of its own.
        """
        caller = self._caller
        for message in said:
            if caller is not None and caller.done():
                raise OSError(_LEFT)
            try:
                await self._send(message)
            except Exception as error:
                if caller is not None and caller.done():
                    raise OSError(_LEFT) from error
                raise

    async def _release(self) -> None:
        """Send the response that was collected."""
        capture, more = self._capture, not self._capture.complete
        status, headers = capture.status, capture.headers
        try:
            await self._tell(
                {"type": "http.response.start", "status": status, "headers": headers},
                {"type": "http.response.body", "body": capture.take(), "more_body": more},
            )
        except OSError:
            self._silenced = True  # the client is gone; its response is stored
        if capture.complete or capture.endless:
            self._hear_client()
        probe("after_send")

    def _hear_client(self) -> None:
        """Let the application see from here on that its client hangs up."""
        self._answered = True
        if self._flowing is not None:
            self._flowing.set()

    async def _flow(self, message: Message) -> None:
        """Send on the rest of a response that is too large to store."""
        if not message.get("more_body", False):
            self._capture.complete = True
        if self._capture.endless:  # tell the handler that no client reads any more
            if self._silenced:
                raise OSError("the client of an endless stream is gone")
            await self._tell(message)
        elif not self._silenced:
            with contextlib.suppress(OSError):
                await self._tell(message)
        if self._capture.complete:
            self._hear_client()

    async def _send_unprotected(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), UNSTORED]}
        await self._send(message)


def _is_being_cancelled() -> bool:
    """Return whether this task is being cancelled, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class KeylessRun(RequestRun):
    """Handles a request without a key on an atomic route. Its handler reads from the client."""

    __slots__ = ()

    async def serve(self) -> None:
        decision = await self._begin_plain()
        if isinstance(decision, Execute):
            self._hold_back(decision.attempt)
            self._caller = self._edge.runtime.background.apart(self._run_app())
            await self._caller
        elif isinstance(decision, Refuse):
            await messages.send(self._send, self._edge.refusal(decision.problem))

    async def _receive(self) -> Message:
        return await self._receive_from_client()
