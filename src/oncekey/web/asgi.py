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
from collections.abc import Iterable, Mapping
from typing import Any

from oncekey.atomic import Adapter, AsyncUnit, check_loop
from oncekey.core.limits import must_be_seconds
from oncekey.core.op import Op, arun
from oncekey.core.policy import Policy
from oncekey.core.problem import Problem
from oncekey.core.profiles import Profile
from oncekey.core.quota import Quota
from oncekey.core.record import Answer, Claim
from oncekey.core.verbs import Find
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.events import Hook
from oncekey.guard import Call
from oncekey.stores.base import Store
from oncekey.web import messages
from oncekey.web.application import check_asgi
from oncekey.web.asgi_run import Run
from oncekey.web.edge import Edge, log
from oncekey.web.messages import App, Message, Receive, Scope, Send
from oncekey.web.recent import RECENT_S
from oncekey.web.recover import AsgiRunner
from oncekey.web.request import Request, within
from oncekey.web.routed import check_marks, check_threads, warn_unfound
from oncekey.web.routes import Route
from oncekey.web.status import METHODS as STATUS_METHODS
from oncekey.web.status import state_of, status, status_answer
from oncekey.web.tenant import Tenant

DRAIN_S_MAX = 30.0


class IdempotencyMiddleware:
    """Guards an ASGI application. `tenant` gives the stable account of a request, never a token."""

    runner = AsgiRunner
    """What finishes its requests when their clients do not come back."""

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
        atomic: Adapter | None = None,
        quota: Quota | None = None,
        drain_s_max: float = DRAIN_S_MAX,
    ) -> None:
        check_asgi(app)
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
            atomic=atomic,
            quota=quota,
        )
        check_loop(atomic)
        must_be_seconds({"drain_s_max": drain_s_max})
        self.gatherer = self.edge.runtime.async_gatherer
        self._drain_s_max = drain_s_max
        self._unfit: StoreUnfit | Misuse | None = None
        self._methods = self.edge.routes.methods
        self._key_header = self.edge.key_header
        self._always = self.edge.reads_all
        self.lifespan: Scope = {}
        """What the application was started with: recovered requests get its `app` and `state`."""
        self.edge.runtime.registry.add(self.runner(self))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self.edge.status_path is not None and self._asks_status(scope):
                await self._tell_status(scope, send)
                return
            if scope["method"] in self._methods and (self._always or self._brings_key(scope)):
                await self._guard(scope, receive, send)
                return
        elif scope["type"] == "lifespan":
            self.lifespan, self._unfit = scope, None
            await self.app(scope, self._draining(receive), self._starting(send))
            if self._unfit:  # test clients go by this, and would wait for ever without it
                raise self._unfit
            return
        await self.app(scope, receive, send)

    def _brings_key(self, scope: Scope) -> bool:
        header = self._key_header
        for name, _ in scope["headers"]:  # noqa: SIM110  (`any` costs a generator, on every request)
            if name == header:
                return True
        return False

    def _asks_status(self, scope: Scope) -> bool:
        path = within(scope.get("root_path", ""), scope["path"])
        return path == self.edge.status_path and scope["method"] in STATUS_METHODS

    # ------------------------------------------------------------------------- one request

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        edge = self.edge
        request = messages.request(scope)
        route = edge.routes.match(request.method, request.path, request.root)
        if request.method not in route.policy.methods:
            await self.app(scope, receive, send)
            return
        in_body = edge.key_in_body and edge.may_bring_key(request)
        key = None if in_body else edge.key(request, route)
        if key is None and not in_body:
            await self.app(scope, receive, send)
            return
        if isinstance(key, Problem):
            await messages.send(send, edge.decline(key, route))
            return
        body = await messages.read(receive, request, route.policy.request_bytes_max)
        if body is None:  # the client left before it had said what it wants
            return
        if isinstance(body, Problem):
            await messages.send(send, edge.decline(body, route))
            return
        call = await self.call(request, route, key, body)
        if isinstance(call, Answer):
            await messages.send(send, call)
        elif isinstance(call, Problem):
            await messages.send(send, edge.decline(call, route))
        elif call is None:
            await self.app(scope, messages.resupply(body, receive), send)
        else:
            edge.start()
            run = Run(self, scope, receive, send, route, call, body)
            await run.decide()

    async def call(
        self, request: Request, route: Route, key: str | None, body: bytes
    ) -> Call | Problem | Answer | None:
        """The request as the engine sees it, or its answer where that was sent a moment ago; None
        if it brings no key and needs none.
        """
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
        found = await self.ask(status(self.edge, request, await self._tenant_of(request)))
        await messages.send(send, status_answer(self.edge, found))

    async def state_of(self, scope: Scope) -> str | None:
        """What became of the key that a request brings: "running", "lapsed", "completed",
        "released" or "unknown". None if nothing is known, or it brings no key in a header or query.

        Claims nothing and reads no body. For middleware that stands outside of this one, such as a
        rate limiter that lets replays pass. Raises `StoreUnavailable`.
        """
        request = messages.request(scope)
        tenant = await self._tenant_of(request)
        state: str | None = await self.ask(state_of(self.edge, request, tenant))
        return state

    async def _tenant_of(self, request: Request) -> Any:
        tenant = self.edge.tenant(request)
        return await tenant if inspect.isawaitable(tenant) else tenant

    async def ask(self, op: Op[Any]) -> Any:
        """Drive an operation of the engine."""
        return await arun(op, self.gatherer.ask)

    def forget(self, claim: Claim) -> None:
        """Release, in the background, an insert that may have happened unheard."""
        self.edge.runtime.background.forget(claim)

    # ------------------------------------------------------------------------ start and end

    def _starting(self, send: Send) -> Send:
        async def starting(message: Message) -> None:
            if self._unfit:  # the server was told that the start failed, and hears no more
                return
            if message["type"] == "lifespan.startup.complete":
                try:
                    self._check_routes(self.lifespan.get("app"))
                    await self.start()
                except (StoreUnfit, Misuse) as error:
                    self._unfit = error
                    message = {"type": "lifespan.startup.failed", "message": str(error)}
            elif message["type"].startswith("lifespan.shutdown."):
                await self.close()
            await send(message)

        return starting

    def _check_routes(self, app: Any) -> None:
        check_marks(app)
        check_threads(app, self.edge.routes, self.edge.adapter)
        warn_unfound(app, self.edge.routes)

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
            if self.edge.adapter is not None:
                await AsyncUnit(self.edge.adapter, self.edge.store, 1.0, self.gatherer.ask).prove()
        self.edge.start()

    async def drain(self) -> None:
        """Wait for the handlers that still run, at most `drain_s_max`."""
        late = await self.edge.runtime.background.drain(self._drain_s_max)
        if late:
            log.warning("%d handlers did not end within %g s", late, self._drain_s_max)

    async def close(self) -> None:
        """Stop what runs beside the requests and give the connections back."""
        await asyncio.to_thread(self.edge.stop)
        await self.gatherer.close()
