"""The ASGI middleware: one line makes an application's state-changing requests safe to retry.

    app.add_middleware(IdempotencyMiddleware, store="sqlite:///keys.db", tenant=account_of)

It is pure ASGI. A guarded handler runs in its own task: a client that hangs up does not stop it,
and shutdown waits for it. No byte of its response is sent before the response is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from oncekey._core.op import Op, arun
from oncekey._core.policy import Policy
from oncekey._core.problems import Problem
from oncekey._core.profiles import Profile
from oncekey._core.quota import Quota
from oncekey._core.record import Answer, Claim
from oncekey._core.validation import must_be_seconds
from oncekey._core.verbs import Find
from oncekey._engine import attempt as attempts
from oncekey._engine.guard import Call
from oncekey._engine.keyless import passing
from oncekey._system.offload import cpu_thread
from oncekey.atomic import Adapter, AsyncUnit, check_loop
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.events import Hook
from oncekey.stores.base import Store
from oncekey.web import _asgi_messages as messages
from oncekey.web._app_checks import (
    Unreadable,
    called_by,
    check_marks,
    check_threads,
    undecided_of,
    warn_unfound,
)
from oncekey.web._application import check_asgi
from oncekey.web._asgi_messages import App, Message, Receive, Scope, Send
from oncekey.web._asgi_run import KeylessRun, RequestRun
from oncekey.web._body import Body
from oncekey.web._content import takes_long
from oncekey.web._edge import OVERRIDES, Edge, log
from oncekey.web._middleware_order import (
    check_dependencies,
    check_inside,
    check_meant,
    check_mounted,
    check_one_guard,
    warn_of_endpoints,
)
from oncekey.web._misconfigured import BuiltLate, fail_to_start, server
from oncekey.web._recovery import AsgiRunner
from oncekey.web._replay_cache import RECENT_S
from oncekey.web._request import Request, within
from oncekey.web._routers import root_of, rooted_by, spelled_by
from oncekey.web._routes import Route
from oncekey.web._status import METHODS as STATUS_METHODS
from oncekey.web._status import state_of, status, status_answer
from oncekey.web._tenant import Tenant

DRAIN_S_MAX = 30.0


class IdempotencyMiddleware(metaclass=BuiltLate):
    """Guards an ASGI application. `tenant` gives the stable account of a request, never a token."""

    runner: ClassVar[type[AsgiRunner]] = AsgiRunner
    """Finishes its abandoned requests."""

    lets_recoverer_in = True
    """Whether such a request can reach its handler."""

    def __init__(
        self,
        app: App,
        *,
        store: str | Store,
        tenant: Tenant,
        policy: Policy | None = None,
        routes: Mapping[str, Policy] | None = None,
        profile: str | Profile = "oncekey",
        docs_url: str | None = None,
        hooks: Iterable[Hook] = (),
        status_path: str | None = None,
        recent_s: float = RECENT_S,
        atomic: Adapter | None = None,
        quota: Quota | None = None,
        inside: Collection[str] = (),
        drain_s_max: float = DRAIN_S_MAX,
    ) -> None:
        check_asgi(app)
        check_one_guard(app, IdempotencyMiddleware)
        check_meant(inside)
        self._meant = frozenset(inside)
        self.app = app
        self.edge = Edge(
            store=store,
            tenant=tenant,
            policy=policy,
            routes=routes,
            profile=profile,
            docs_url=docs_url,
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
        self._looked = False
        self._methods = self.edge.routes.watched
        self._key_header = self.edge.key_header
        self._always = self.edge.reads_all or self.edge.adapter is not None
        self.edge.routes.spelled = spelled_by(app)
        self.edge.routes.rooted = rooted_by(app)
        self.edge.routes.declared_root = root_of(app)
        self.lifespan: Scope = {}
        """The scope of the application's lifespan: recovered requests get its `app` and `state`."""
        self.edge.runtime.registry.add(self.runner(self))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self.edge.status_path is not None and self._asks_status(scope):
                await self._tell_status(scope, send)
                return
            # By its method, or by another that a header names, there may be more to look at.
            brings_key, overrides = self._always, False
            for name, _ in scope["headers"]:
                if name == self._key_header:
                    brings_key = True
                elif name in OVERRIDES:
                    overrides = True
            if brings_key and (overrides or scope["method"].upper() in self._methods):
                handling = await self._read(scope, receive, send)
                if handling is not None:
                    await handling
            else:
                await self.serve(scope, receive, send)
            return
        elif scope["type"] == "lifespan":
            self.lifespan, self._unfit = scope, None
            await self.app(scope, self._drain_at_end(receive), self._check_at_start(send))
            self._tell_test_clients()
            return
        await self.app(scope, receive, send)

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, claim: Claim | None = None
    ) -> None:
        """Let the application answer a request that nothing protects."""
        with attempts.served(passing(partial(self._applies, scope), self.edge.store, claim)):
            await self.app(scope, receive, send)

    async def _serve_keyless(
        self, scope: Scope, receive: Receive, send: Send, route: Route
    ) -> None:
        """Let the application answer a request that has no key and needs none."""
        if route.policy.atomic and self.edge.adapter is not None:
            await KeylessRun(self, scope, receive, send, route, Body()).serve()
        else:
            await self.serve(scope, receive, send)

    def _applies(self, scope: Scope) -> tuple[str, Policy]:
        request = messages.request(scope)
        route = self.edge.routes.match(request.method, request.path, request.root)
        return route.operation, route.policy

    def _asks_status(self, scope: Scope) -> bool:
        path = within(scope.get("root_path", ""), scope["path"])
        return path == self.edge.status_path and scope["method"] in STATUS_METHODS

    # ------------------------------------------------------------------------- one request

    async def _read(
        self, scope: Scope, receive: Receive, send: Send
    ) -> Coroutine[Any, Any, None] | None:
        """Read a request that may be guarded; what is to be awaited to handle it, None if its
        client has left.
        """
        edge = self.edge
        if not self._looked:  # its server did not ask at the start
            self._check_order(scope.get("app"))
        request = messages.request(scope)
        route = edge.route(request)
        if route is None:
            return self.serve(scope, receive, send)
        if isinstance(route, Answer):
            return messages.send(send, route)
        in_body = edge.key_in_body and edge.may_bring_key(request)
        key = None if in_body else edge.key(request, route)
        if key is None and not in_body:
            return self._serve_keyless(scope, receive, send, route)
        if isinstance(key, Problem):
            return messages.send(send, edge.decline(key, route))
        body = await messages.read(receive, request, route.policy)
        if body is None:  # the client left before it had said what it wants
            return None
        if isinstance(body, Problem):
            return messages.send(send, edge.decline(body, route))
        try:
            call = await self.call(request, route, key, body)
        except BaseException:  # which may be kept for long, and with it all that was read
            body.close()
            raise
        if isinstance(call, Answer | Problem):
            body.close()
            answer = edge.decline(call, route) if isinstance(call, Problem) else call
            return messages.send(send, answer)
        if call is None:
            return self._serve_keyless(scope, messages.resupply(body, receive), send, route)
        if edge.runtime.started_in != os.getpid():
            edge.start()
        return RequestRun(self, scope, receive, send, route, body).decide(call)

    async def call(
        self, request: Request, route: Route, key: str | None, body: Body
    ) -> Call | Problem | Answer | None:
        """Make the engine's `Call` of a request, or return its response if that was sent a moment
        ago; None if it has no key and needs none.
        """
        edge = self.edge
        found: str | Problem | None = key
        if found is None:
            find = partial(edge.key, request, route, body)
            found = await cpu_thread.run(find) if takes_long(request, body) else find()
        if found is None or isinstance(found, Problem):
            return found
        if edge.is_stamped and (old := edge.check_age(request, route)) is not None:
            return old
        tenant = edge.tenant(request)
        if type(tenant) is not str or not tenant:
            tenant = edge.check_tenant(await tenant if inspect.isawaitable(tenant) else tenant)
            if isinstance(tenant, Problem):
                return tenant
        read = partial(edge.call, request, route, tenant, found, body)
        return await cpu_thread.run(read) if takes_long(request, body) else read()

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

    # ------------------------------------------------------------------------ start and end

    def _check_at_start(self, send: Send) -> Send:
        async def send_or_fail(message: Message) -> None:
            if self._unfit:  # the server was told that the start failed, and hears no more
                return
            if message["type"] == "lifespan.startup.complete":
                try:
                    self._check_routes(self.lifespan.get("app"))
                    await self.start()
                except (StoreUnfit, Misuse) as error:
                    self._unfit = error
                    await fail_to_start(send, str(error))
                    return
            elif message["type"].startswith("lifespan.shutdown."):
                await self.close()
            await send(message)

        return send_or_fail

    def _tell_test_clients(self) -> None:
        """Raise for test clients, which would wait for ever otherwise."""
        if self._unfit and not server():
            raise self._unfit

    def _check_routes(self, app: Any) -> None:
        self._check_order(app)
        check_marks(app)
        check_threads(app, self.edge.routes, self.edge.adapter)
        warn_unfound(app, self.edge.routes)

    def _check_order(self, app: Any) -> None:
        check_one_guard(self.app, IdempotencyMiddleware)
        check_inside(self.app, self.edge.tenant, self._meant)
        check_mounted(app, IdempotencyMiddleware, self._meant)
        guarded = self._guarded_routes(app)
        check_dependencies(guarded, self.edge.tenant)
        warn_of_endpoints(guarded)
        self.edge.undecided_routes = partial(undecided_of, app, self.edge.routes)
        self._looked = True

    def _guarded_routes(self, app: Any) -> list[tuple[Any, str]]:
        """List the guarded routes of an application, as far as they are visible."""
        with contextlib.suppress(Unreadable):
            return [
                (route, path)
                for route, path in called_by(app)
                for method in getattr(route, "methods", None) or ()
                if method in self.edge.routes.match(method, path).policy.methods
            ]
        return []

    def _drain_at_end(self, receive: Receive) -> Receive:
        async def receive_or_drain() -> Message:
            if self._unfit:  # the server asks no more, but the application may have started much
                return {"type": "lifespan.shutdown"}
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.drain()
            return message

        return receive_or_drain

    async def start(self) -> None:
        """Check the store before the first request. One that is only down may come up later."""
        with contextlib.suppress(StoreUnavailable):  # the log has been told
            await self.gatherer.ask(Find(bytes(32)))
            if self.edge.adapter is not None:
                await AsyncUnit(self.edge.adapter, self.edge.store, 1.0, self.gatherer.ask).prove()
        self.edge.start()

    async def drain(self) -> None:
        """Wait at most `drain_s_max` for handlers that still run."""
        late = await self.edge.runtime.background.drain(self._drain_s_max)
        if late:
            log.warning("%d handlers did not end within %g s", late, self._drain_s_max)

    async def close(self) -> None:
        """Stop the background work and return the connections."""
        await asyncio.to_thread(self.edge.stop)
        await self.gatherer.close()
