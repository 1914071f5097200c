"""One guarded ASGI request, from decision to the last byte.

The handler runs in a task of its own: a client that hangs up does not stop it. Not one byte of its
answer is sent before the answer is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from oncekey._core.endings import End
from oncekey._core.record import Answer, Claim
from oncekey._engine import ask_policy
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
    Stored,
    Unstored,
)
from oncekey._engine.keyless import PLAIN, Plain, keyless
from oncekey._engine.registry import Orphan
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


class Run:
    """One guarded request, from decision to the last byte."""

    __slots__ = (
        "_answered",
        "_attempt",
        "_body",
        "_call",
        "_caller",
        "_capture",
        "_cut_off",
        "_drive",
        "_edge",
        "_flowing",
        "_guard",
        "_middleware",
        "_receive_from_client",
        "_route",
        "_scope",
        "_send",
        "_silenced",
        "_supply",
        "_unit",
    )

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        call: Call,
        body: Body,
    ) -> None:
        self._middleware = middleware
        self._edge = middleware.edge
        self._guard: Guard | Plain = middleware.edge.guard
        self._unit = middleware.edge.async_unit(route.policy)
        self._drive = (self._unit or middleware.edge.runtime).drive
        self._scope = scope
        self._receive_from_client = receive
        self._send = send
        self._route = route
        self._call = call
        self._body = body
        self._supply = messages.Supply(body)
        self._caller: asyncio.Future[None] | None = None
        """What whoever called waits for, once the handler runs; done before its end if they left.
        """
        self._cut_off: tuple[End, Answer | None] | None = None
        """What was being recorded when the application cut that off."""
        self._answered = False
        self._flowing: asyncio.Event | None = None
        self._silenced = False

    async def decide(self) -> None:
        """Ask the engine, then run, replay or refuse."""
        guard, policy = self._edge.guard, self._route.policy
        claim = guard.claim(self._call, policy)
        check_guarded_once(self._scope.get(GUARDED), self._edge.runtime.registry, claim)
        try:
            decision = await self._drive(guard.begin(self._call, policy, claim))
        except asyncio.CancelledError:  # the insert may be under way, and nobody would own it
            if self._unit is None:
                self._middleware.forget(claim)
            raise
        if isinstance(decision, Execute):
            await self._execute(decision.attempt)
            return
        try:
            await self._decline(decision, claim)
        finally:
            self._body.close()

    async def _decline(self, decision: Replay | Refuse | Bypass, claim: Claim) -> None:
        match decision:
            case Replay():
                await messages.send(self._send, self._edge.replay(decision, self._call))
            case Refuse(problem, lost_claim):
                if lost_claim is not None:
                    self._middleware.forget(lost_claim)
                check_refused_once(self._scope.get(GUARDED), claim, problem)
                await messages.send(self._send, self._edge.refusal(problem))
            case Bypass():
                scope = messages.inner(self._scope)
                receive = messages.resupply(self._body, self._receive_from_client)
                await self._middleware.serve(scope, receive, self._send_unprotected, claim)

    async def take_up(self, orphan: Orphan) -> bool:
        """Run what no client comes back for; False if there is nothing to run."""
        op = self._edge.guard.take_up(
            orphan.record, self._call, self._route.policy, orphan.looked_at
        )
        taken = await self._drive(op)
        if taken is not None:
            await self._execute(taken.attempt)
        return taken is not None

    async def _begin_plain(self) -> Decision:
        """It brought no key, and is atomic all the same: a transaction, and no record."""
        route = self._route
        self._guard, self._call = PLAIN, keyless(route.operation)
        self._unit = self._edge.async_unit(route.policy, plain=True)
        self._drive = (self._unit or self._edge.runtime).drive
        decision: Decision = await self._drive(PLAIN.begin(route.operation, route.policy))
        return decision

    def _execute(self, attempt: Attempt) -> asyncio.Future[None]:
        """Start the handler. Whoever awaits its end may be cancelled: the handler goes on."""
        by = self._edge.runtime.registry, attempt.held.id
        self._scope = messages.inner(self._scope, by)
        self._hold(attempt)
        return self._apart(self._run_app(attempt))

    def _hold(self, attempt: Attempt) -> None:
        """From here on the record is this request's, and what the application says is held back."""
        self._attempt = attempt
        self._capture = Capture(self._route.policy.answer_bytes_max)
        if self._unit is None:
            attempt.ports = self._edge.runtime.ports()
            self._edge.heartbeat.add(attempt)

    def _apart(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        self._caller = self._edge.runtime.background.apart(work)
        return self._caller

    async def _run_app(self, attempt: Attempt) -> None:
        attempts.enter(attempt)
        try:
            if attempt.asks and await self._settle(attempt):
                return
            await self._middleware.app(self._scope, self._receive, self._captured)
            await self._check_answered(attempt)
        except BaseException as error:
            if not await self._survived(attempt, error):
                raise
        finally:
            await self._let_go(attempt)

    async def _let_go(self, attempt: Attempt) -> None:
        """The handler is over, and so is whatever it still holds."""
        self._body.close()
        if self._unit is None:
            self._edge.heartbeat.drop(attempt)
        else:
            await self._unit.close()

    async def _check_answered(self, attempt: Attempt) -> None:
        if self._cut_off is not None:
            await self._record(*self._cut_off)
        elif not self._capture.complete and not attempt.finished:
            raise RuntimeError("the application returned without a complete answer")

    async def _survived(self, attempt: Attempt, error: BaseException) -> bool:
        """The handler raised. Whether its client was answered all the same."""
        goes_on = self._cut_off is not None and isinstance(error, Exception)
        if not goes_on and attempt.finished:
            return False
        if not await self._conclude_failed(attempt, error):
            return False
        log.error("%r failed after its outcome was decided", attempt, exc_info=error)
        return True

    async def _settle(self, attempt: Attempt) -> bool:
        """Ask what became of the attempt that died. False: nothing, the handler is to run."""
        learned = await ask_policy.ask(attempt)
        kept = self._edge.learned(attempt, learned)
        finished = await self._drive(self._edge.guard.learned(attempt, kept, self._call))
        if finished is None:
            return False
        if isinstance(learned, Answer):
            self._capture.replace(learned)
        await self._answer(finished)
        return True

    async def _conclude_failed(self, attempt: Attempt, error: BaseException) -> bool:
        """The handler raised. Whether there is something to answer all the same."""
        if self._cut_off is not None:
            await self._record(*self._cut_off)
            return True
        op = self._guard.conclude_failed(attempt, error, self._call)
        finished = await self._drive(op)
        if isinstance(finished, Given):
            return False
        if isinstance(finished, GivenUp):  # its client hears of it here, whoever logs it by raising
            if not _is_being_cancelled():
                await self._answer_instead(self._edge.broken())
            return False
        await self._answer(finished)
        return True

    async def _receive(self) -> Message:
        """The body, which was read already; then nothing until the client is answered, since one
        that hangs up stops nothing but an endless stream, once that flows.
        """
        if not self._supply.is_over:
            return await self._next_part()
        if not self._answered:
            self._flowing = self._flowing or asyncio.Event()
            await self._flowing.wait()
        return await self._receive_from_client()

    async def _next_part(self) -> Message:
        """From here on the application has it."""
        part = await self._supply.next()
        if self._supply.is_over:
            self._body.close()
        return part

    async def _captured(self, message: Message) -> None:
        """Stands where the application believes the client to be."""
        capture = self._capture
        if self._cut_off is not None or (self._attempt.finished and not capture.flowing):
            return  # what was answered is not this
        if message["type"] == "http.response.start":
            if capture.flowing:  # as servers say: a beginning was sent
                raise RuntimeError("the application begins another answer within its first one")
            capture.start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            if capture.flowing:
                await self._flow(message)
            elif capture.add(message.get("body", b""), last=not message.get("more_body", False)):
                await self._conclude()
        # Anything else (early hints, trailers, debug information) belongs to a client that is not
        # here.

    async def _conclude(self) -> None:
        """The answer is known as far as it will be kept: record it, then let it go out."""
        probe("after_handler")
        self._capture.matched = messages.matched(self._scope)
        self._capture.has_static_route = messages.has_static_route(self._scope)
        await self._record(*self._edge.judged(self._attempt, self._capture))

    async def _record(self, end: End, kept: Answer | None) -> None:
        """Repeated, where the application cut it off by a limit on time of its own: what was
        answered within that limit counts, however slow the store is. A transaction is over by then.
        """
        op = self._guard.conclude(self._attempt, end, kept, self._call)
        try:
            finished = await self._drive(op)
        except asyncio.CancelledError:
            self._cut_off = None if self._unit else (end, kept)
            raise
        self._cut_off = None
        await self._answer(finished)

    async def _answer(self, finished: Finished) -> None:
        """Tell the client how it ended: `Edge.answer`, sent."""
        capture, edge = self._capture, self._edge
        match finished:
            case Stored(_, recorded):
                if recorded is not None:
                    capture.replace(recorded)
                await self._release(edge.first(capture, self._call.key, finished))
            case Given():
                await self._release(capture.headers)
            case GivenUp():
                await self._release(edge.marked_unknown(capture.headers))
            case Unstored():
                await self._release([*capture.headers, UNSTORED])
            case Replay():
                await self._answer_instead(edge.replayed(finished, self._call.key))
            case Refuse(problem):
                await self._answer_instead(edge.refusal(problem))

    async def _answer_instead(self, answer: Answer) -> None:
        """Send this, and nothing of what the application says."""
        self._silenced = True
        await messages.send(self._tell, answer)
        self._hear_client()

    async def _tell(self, message: Message) -> None:
        """Send to the client. Raises `OSError` if it is gone, or whoever called: they may have
        answered it themselves, as a limit on time does, and a server takes only one answer.
        """
        if self._left:
            raise OSError("whoever called has left")
        try:
            await self._send(message)
        except Exception as error:
            if self._left:
                raise OSError("whoever called has left") from error
            raise

    @property
    def _left(self) -> bool:
        return self._caller is not None and self._caller.done()

    async def _release(self, headers: Any) -> None:
        """Send what was held back."""
        capture, more = self._capture, not self._capture.complete
        start = {"type": "http.response.start", "status": capture.status, "headers": headers}
        try:
            await self._tell(start)
            await self._tell(
                {"type": "http.response.body", "body": capture.taken(), "more_body": more}
            )
        except OSError:
            self._silenced = True  # the client is gone; its answer is safe
        if capture.complete or capture.endless:
            self._hear_client()
        probe("after_send")

    def _hear_client(self) -> None:
        """Nothing is owed any more to a client that hangs up: the application may learn of it."""
        self._answered = True
        if self._flowing is not None:
            self._flowing.set()

    async def _flow(self, message: Message) -> None:
        """The rest of an answer that is too large to keep."""
        if not message.get("more_body", False):
            self._capture.complete = True
        if self._capture.endless:  # whoever streams learns that nobody reads any more
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
    """Whether somebody stops this very task. What it awaited may be cancelled, and it is not."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class PlainRun(Run):
    """A request without a key on an atomic route. Its handler reads what the client sends."""

    __slots__ = ()

    async def decide(self) -> None:
        decision = await self._begin_plain()
        if isinstance(decision, Execute):
            self._hold(decision.attempt)
            await self._apart(self._run_app(decision.attempt))
        elif isinstance(decision, Refuse):
            await messages.send(self._send, self._edge.refusal(decision.problem))

    async def _receive(self) -> Message:
        return await self._receive_from_client()
