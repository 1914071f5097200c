"""The ASGI middleware: one line makes an application's state-changing requests safe to retry.

    app.add_middleware(IdempotencyMiddleware, store="sqlite:///keys.db", tenant=account_of)

It is pure ASGI. A guarded handler runs in a task of its own: a client that hangs up does not stop
it, and shutting down waits for it. Not one byte of its answer is sent before the answer is
recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from oncekey import attempt as attempts
from oncekey.attempt import Attempt
from oncekey.core.op import Op, arun
from oncekey.core.policy import Policy, Verdict
from oncekey.core.problem import Problem
from oncekey.core.profiles import Profile
from oncekey.core.record import Claim
from oncekey.core.verbs import Find
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.events import Hook
from oncekey.guard import Bypass, Call, Execute, Refuse, Replay, Stored, Unstored
from oncekey.probes import probe
from oncekey.recent import RECENT_S
from oncekey.stores.base import Store
from oncekey.stores.gather import AsyncGatherer
from oncekey.web import messages
from oncekey.web.capture import Capture
from oncekey.web.edge import Edge, Tenant, log
from oncekey.web.messages import App, Message, Receive, Scope, Send
from oncekey.web.request import Request, within
from oncekey.web.routes import Route
from oncekey.web.status import status, status_answer

DRAIN_S_MAX = 30.0
UNSTORED = (b"idempotency-stored", b"false")


class IdempotencyMiddleware:
    """Guards an ASGI application. `tenant` gives the stable account of a request, never a token."""

    def __init__(
        self,
        app: App,
        *,
        store: str | Store,
        tenant: Tenant,
        policy: Policy | None = None,
        routes: Mapping[str, Policy] | None = None,
        profile: str | Profile = "oncekey",
        hooks: Iterable[Hook] = (),
        status_path: str | None = None,
        recent_s: float = RECENT_S,
        drain_s_max: float = DRAIN_S_MAX,
    ) -> None:
        self.app = app
        self.edge = Edge(
            store=store,
            tenant=tenant,
            policy=policy,
            routes=routes,
            profile=profile,
            hooks=hooks,
            status_path=status_path,
            recent_s=recent_s,
        )
        self.gatherer = AsyncGatherer(self.edge.store)
        self._running: set[asyncio.Task[None]] = set()
        self._drain_s_max = drain_s_max
        self._unfit = False
        self._methods = self.edge.routes.methods
        self._key_header = self.edge.key_header
        self._always = self.edge.routes.required or self._key_header is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["method"] in self._methods:
                if self._always or self._brings_key(scope):
                    await self._guard(scope, receive, send)
                    return
            elif self.edge.status_path is not None and self._asks_status(scope):
                await self._tell_status(scope, send)
                return
        elif scope["type"] == "lifespan":
            await self.app(scope, self._draining(receive), self._starting(send))
            return
        await self.app(scope, receive, send)

    def _brings_key(self, scope: Scope) -> bool:
        header = self._key_header
        for name, _ in scope["headers"]:  # noqa: SIM110  (`any` costs a generator, on every request)
            if name == header:
                return True
        return False

    def _asks_status(self, scope: Scope) -> bool:
        return within(scope.get("root_path", ""), scope["path"]) == self.edge.status_path

    # ------------------------------------------------------------------------- one request

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        edge = self.edge
        request = messages.request(scope)
        route = edge.routes.match(request.method, request.path, request.root)
        if request.method not in route.policy.methods:
            await self.app(scope, receive, send)
            return
        key = None if edge.key_in_body else edge.key(request, route)
        if key is None and not edge.key_in_body:
            await self.app(scope, receive, send)
            return
        if isinstance(key, Problem):
            await messages.send(send, edge.refusal(key))
            return
        body = await messages.read(receive, request, route.policy.request_bytes_max)
        if body is None:  # the client left before it had said what it wants
            return
        if isinstance(body, Problem):
            await messages.send(send, edge.refusal(body))
            return
        call = await self._call(request, route, key, body)
        if isinstance(call, Problem):
            await messages.send(send, edge.refusal(call))
        elif call is None:
            await self.app(scope, messages.resupply(body, receive), send)
        else:
            edge.start()
            run = _Run(self, scope, receive, send, route, call, body)
            await run.decide()

    async def _call(
        self, request: Request, route: Route, key: str | None, body: bytes
    ) -> Call | Problem | None:
        """The request as the engine sees it; None if it brings no key and needs none."""
        edge = self.edge
        found = edge.key(request, route, body) if key is None else key
        if found is None or isinstance(found, Problem):
            return found
        if (old := edge.check_age(request, route)) is not None:
            return old
        tenant = edge.tenant(request)
        if type(tenant) is not str or not tenant:
            tenant = edge.check_tenant(await tenant if inspect.isawaitable(tenant) else tenant)
            if isinstance(tenant, Problem):
                return tenant
        return edge.call(request, route, tenant, found, body)

    async def _tell_status(self, scope: Scope, send: Send) -> None:
        request = messages.request(scope)
        tenant = self.edge.tenant(request)
        if inspect.isawaitable(tenant):
            tenant = await tenant
        found = await self.ask(status(self.edge, request, tenant))
        await messages.send(send, status_answer(self.edge, found))

    async def ask(self, op: Op[Any]) -> Any:
        """Drive an operation of the engine."""
        return await arun(op, self.gatherer.ask)

    def spawn(
        self, work: Coroutine[Any, Any, None], end: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Run beside the request that asked for it: hanging up does not stop it, draining waits
        for it. `end` is called when it is over.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            end(task)

        task.add_done_callback(over)

    def forget(self, claim: Claim) -> None:
        """Release, in the background, an insert that may have happened unheard."""
        self.spawn(self.ask(self.edge.guard.forget(claim)), _log_failure)

    # ------------------------------------------------------------------------ start and end

    def _starting(self, send: Send) -> Send:
        async def starting(message: Message) -> None:
            if self._unfit:  # the server was told that the start failed, and hears no more
                return
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self.start()
                except StoreUnfit as error:
                    self._unfit = True
                    message = {"type": "lifespan.startup.failed", "message": str(error)}
            elif message["type"].startswith("lifespan.shutdown."):
                await self.close()
            await send(message)

        return starting

    def _draining(self, receive: Receive) -> Receive:
        async def draining() -> Message:
            if self._unfit:  # the server asks no more, but the application may have started much
                return {"type": "lifespan.shutdown"}
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.drain()
            return message

        return draining

    async def start(self) -> None:
        """Check the store before the first request. One that is only down may come up later."""
        with contextlib.suppress(StoreUnavailable):  # the log has been told
            await self.gatherer.ask(Find(bytes(32)))
        self.edge.start()

    async def drain(self) -> None:
        """Wait for the handlers that still run, at most `drain_s_max`."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self._drain_s_max)
            if late:
                log.warning("%d handlers did not end within %g s", len(late), self._drain_s_max)

    async def close(self) -> None:
        """Stop what runs beside the requests and give the connections back."""
        await asyncio.to_thread(self.edge.stop)
        await self.gatherer.close()


class _Run:
    """One guarded request, from decision to the last byte."""

    __slots__ = (
        "_ask",
        "_attempt",
        "_body",
        "_call",
        "_capture",
        "_edge",
        "_ended",
        "_flowing",
        "_middleware",
        "_receive_from_client",
        "_route",
        "_scope",
        "_send",
        "_silenced",
    )

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        call: Call,
        body: bytes,
    ) -> None:
        self._middleware = middleware
        self._ask = middleware.gatherer.ask
        self._edge = middleware.edge
        self._scope = scope
        self._receive_from_client = receive
        self._send = send
        self._route = route
        self._call = call
        self._body: bytes | None = body
        self._flowing: asyncio.Event | None = None
        self._silenced = False

    async def decide(self) -> None:
        """Ask the engine, then run, replay or refuse."""
        guard, policy = self._edge.guard, self._route.policy
        claim = guard.claim(self._call, policy)
        try:
            decision = await arun(guard.begin(self._call, policy, claim), self._ask)
        except asyncio.CancelledError:  # the insert may be under way, and nobody would own it
            self._middleware.forget(claim)
            raise
        match decision:
            case Execute(attempt):
                await self._execute(attempt)
            case Replay():
                await self._replay(decision)
            case Refuse(problem, lost_claim):
                if lost_claim is not None:
                    self._middleware.forget(lost_claim)
                await messages.send(self._send, self._edge.refusal(problem))
            case Bypass():
                scope = messages.inner(self._scope)
                receive = messages.resupply(self._body or b"", self._receive_from_client)
                await self._middleware.app(scope, receive, self._send_unprotected)

    def _execute(self, attempt: Attempt) -> asyncio.Future[None]:
        """Start the handler. Whoever awaits its end may be cancelled: the handler goes on."""
        self._attempt = attempt
        self._capture = Capture(self._route.policy.answer_bytes_max)
        self._scope = messages.inner(self._scope)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._edge.heartbeat.add(attempt)
        self._middleware.spawn(self._run_app(attempt), self._end)
        return self._ended

    def _end(self, task: asyncio.Task[None]) -> None:
        ended = self._ended
        if ended.done():  # the client has left
            _log_failure(task)
        elif task.cancelled():
            ended.cancel()
        elif (error := task.exception()) is not None:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    async def _run_app(self, attempt: Attempt) -> None:
        attempts.enter(attempt)
        try:
            await self._middleware.app(self._scope, self._receive, self._captured)
            if not self._capture.complete and not attempt.finished:
                raise RuntimeError("the application returned without a complete answer")
        except BaseException as error:
            if not attempt.finished and self._edge.failed_honestly(attempt, error):
                no_effect = attempt.verdict is Verdict.NO_EFFECT
                await arun(self._edge.guard.abandon(attempt, no_effect=no_effect), self._ask)
            raise
        finally:
            self._edge.heartbeat.drop(attempt)

    async def _receive(self) -> Message:
        """The body, which was read already; then nothing, since a client that hangs up stops
        nothing but an endless stream, once that flows.
        """
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._flowing is None:
            self._flowing = asyncio.Event()
        await self._flowing.wait()
        return await self._receive_from_client()

    async def _captured(self, message: Message) -> None:
        """Stands where the application believes the client to be."""
        capture = self._capture
        if message["type"] == "http.response.start":
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
        attempt, capture, edge = self._attempt, self._capture, self._edge
        probe("after_handler")
        capture.matched = messages.matched(self._scope)
        verdict = edge.verdict(attempt, capture)
        if verdict is not Verdict.KEEP:
            no_effect = verdict is Verdict.NO_EFFECT
            await arun(edge.guard.abandon(attempt, no_effect=no_effect), self._ask)
            await self._release(capture.headers)
            return
        kept = edge.kept(attempt, capture)
        finished = await arun(edge.guard.finish(attempt, kept, self._call), self._ask)
        match finished:
            case Stored():
                await self._release(edge.first(capture, self._call.key, finished))
            case Unstored():
                await self._release([*capture.headers, UNSTORED])
            case Replay():
                self._silenced = True
                await self._replay(finished)
            case Refuse(problem):
                self._silenced = True
                await messages.send(self._send, edge.refusal(problem))

    async def _release(self, headers: Any) -> None:
        """Send what was held back."""
        capture, more = self._capture, not self._capture.complete
        start = {"type": "http.response.start", "status": capture.status, "headers": headers}
        try:
            await self._send(start)
            await self._send(
                {"type": "http.response.body", "body": capture.taken(), "more_body": more}
            )
        except OSError:
            self._silenced = True  # the client is gone; its answer is safe
        if capture.endless:
            self._flowing = self._flowing or asyncio.Event()
            self._flowing.set()
        probe("after_send")

    async def _flow(self, message: Message) -> None:
        """The rest of an answer that is too large to keep."""
        if not message.get("more_body", False):
            self._capture.complete = True
        if self._capture.endless:  # whoever streams learns that nobody reads any more
            if self._silenced:
                raise OSError("the client of an endless stream is gone")
            await self._send(message)
        elif not self._silenced:
            with contextlib.suppress(OSError):
                await self._send(message)

    async def _replay(self, replay: Replay) -> None:
        await messages.send(self._send, self._edge.replayed(replay, self._call.key))

    async def _send_unprotected(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), UNSTORED]}
        await self._send(message)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a handler failed after its client had left", exc_info=error)
