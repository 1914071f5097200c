"""FastAPI, route by route: the key is claimed when the endpoint is about to be called.

    idempotency = Idempotency(store="sqlite:///keys.db", tenant=account_of)
    app = FastAPI(lifespan=idempotency.lifespan)
    router = APIRouter(route_class=idempotency.route_class)

By then the route's dependencies have run and its parameters are valid. So a request that they
refuse (401, 403, 422) leaves no trace, and a retry is checked by them like any other request before
it gets the first answer again. That answer is recorded when FastAPI has made it, exception handlers
included, before its first byte is sent.

The body is read at the door, because something may have parsed it by then. The endpoint is wrapped,
not the framework: a replay is a response that the endpoint returns, so dependencies with `yield`
are closed as always. The price: the recoverer has no login (`_fastapi_recovery`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Never

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.background import BackgroundTasks
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Match

from oncekey._core.policy import INHERIT, Policy
from oncekey._core.problems import Problem
from oncekey._core.profiles import Profile
from oncekey._core.quota import Quota
from oncekey._core.record import Answer
from oncekey._engine import attempt as attempts
from oncekey._engine.keyless import passing
from oncekey._system.warn_once import listed, warn
from oncekey.atomic import Adapter, check_blocking, check_loop
from oncekey.atomic._validation import UNUSED
from oncekey.errors import Misuse
from oncekey.events import Hook
from oncekey.stores.base import Store
from oncekey.web import _asgi_messages as messages
from oncekey.web import _openapi as openapi
from oncekey.web._app_checks import (
    HEEDS,
    Unreadable,
    check_marks,
    routes_of,
    served_by,
    warn_unfound,
)
from oncekey.web._asgi_late import LateRun
from oncekey.web._asgi_messages import Receive, Scope, Send
from oncekey.web._decorators import (
    SAFE,
    Marked,
    adapter_of_routes,
    check_kind,
    idempotent,
    is_async,
    mark_of,
    name_of,
    not_idempotent,
)
from oncekey.web._fastapi_recovery import (
    ENTERS,
    SOUGHT,
    RecoverAs,
    RouteGuard,
    check_recover_as,
    check_used,
    dependants_of,
    recovered,
    run_route,
)
from oncekey.web._middleware_order import layers, warn_of_endpoints
from oncekey.web._request import GUARDED, Request, guarded_twice, within
from oncekey.web._routes import Route, Routes
from oncekey.web._settings_check import Checked
from oncekey.web._tenant import check_callable
from oncekey.web.asgi import DRAIN_S_MAX, IdempotencyMiddleware

__all__ = ["Idempotency", "IdempotentRoute", "idempotent", "not_idempotent"]

Endpoint = Callable[..., Any]

_TWICE = (
    "{operation} is guarded twice, by IdempotencyMiddleware and by its route class; choose one of "
    "them for this route"
)
_CLAIMS = "__oncekey_claims__"

_run: ContextVar[LateRun | None] = ContextVar("oncekey_fastapi_run", default=None)


class Idempotency(metaclass=Checked):
    """The settings of the guarded routes of an application, and what they run on.

    `tenant` gets Starlette's request, with what the dependencies left in its `state`, and gives the
    stable account of it, never a token. It may be `async`.
    """

    def __init__(
        self,
        *,
        store: str | Store,
        tenant: Callable[[Any], Any],
        policy: Policy | None = None,
        routes: Mapping[str, Policy] | None = None,
        profile: str | Profile = "oncekey",
        docs_url: str | None = None,
        hooks: Iterable[Hook] = (),
        atomic: Adapter | None = None,
        quota: Quota | None = None,
        drain_s_max: float = DRAIN_S_MAX,
        recover_as: RecoverAs | None = None,
    ) -> None:
        check_callable(tenant)
        check_loop(atomic)
        check_recover_as(recover_as)

        def tenant_of(request: Request) -> Any:
            return tenant(StarletteRequest(dict(request.scope)))

        self.guard = RouteGuard(
            run_route,
            store=store,
            tenant=tenant_of,
            policy=policy,
            routes=routes,
            profile=profile,
            docs_url=docs_url,
            hooks=hooks,
            atomic=adapter_of_routes(atomic, policy, routes),
            quota=quota,
            drain_s_max=drain_s_max,
        )
        self.guard.recover_as, self.guard.lets_recoverer_in = recover_as, recover_as is not None
        self.edge = self.guard.edge
        self.edge.undecided_routes = self._undecided_routes
        self.marked = Marked(self.edge, policy, atomic)
        self._app: Any = None
        self.made: list[IdempotentRoute] = []
        """All routes of the class."""
        self.route_class: type[IdempotentRoute] = type(
            "IdempotentRoute", (IdempotentRoute,), {"idempotency": self}
        )
        """For `APIRouter(route_class=…)`, or `app.router.route_class = …` before its routes."""

    def __call__(self, *_: Any, **__: Any) -> Never:
        raise Misuse(
            "FastAPI was given the Idempotency itself: write route_class=idempotency.route_class "
            "for a router, and lifespan=idempotency.lifespan for the application"
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """`FastAPI(lifespan=idempotency.lifespan)`; in a lifespan of your own:
        `async with idempotency.lifespan(app): yield`.

        Checks the store and the marks at the start; waits at the end for endpoints that still run.
        """
        self._app = app
        if app is not None:
            self.guard.lifespan = {"app": app}
        check_marks(app)
        self._check_guards(app)
        self._check_one_guard(app)
        warn_unfound(app, self.edge.routes)
        warn_of_endpoints(ours for ours in self._ours() if ours[0].guards)
        self._check_recovery()
        await self.guard.start()
        try:
            yield
        finally:
            await self.guard.drain()
            await self.guard.close()

    def _ours(self) -> Iterator[tuple[IdempotentRoute, str]]:
        """Our routes, each with its whole path where the application tells it."""
        try:
            served = list(served_by(self._app))
        except Unreadable:
            served = [(each, each.path) for each in self.made]
        return ((each, path) for each, path in served if isinstance(each, self.route_class))

    def _undecided_routes(self) -> list[str]:
        return list(
            dict.fromkeys(
                name for route, path in self._ours() for name in route.undecided_methods(path)
            )
        )

    def _check_recovery(self) -> None:
        """Say which routes the recoverer is to finish and cannot get into."""
        if self.guard.recover_as is not None:
            check_used(self.guard.recover_as, dependants_of(self._app, self.made))
            return
        left_alone = [f"{method} {path}" for each, path in self._ours() for method in each.resumes]
        if left_alone:
            warn(
                "recovery",
                f"no recoverer finishes {listed(left_alone)}, only a retry of the client: write "
                "recover_as={signed_in: recovered}, with the dependency that asks who sends a "
                "request, and what is to stand in its place where the recoverer runs it",
            )

    def _check_one_guard(self, app: Any) -> None:
        """Raise `Misuse` for routes that a middleware guards too."""
        for layer in layers(getattr(app, "middleware_stack", None)):
            if not isinstance(layer, IdempotencyMiddleware):
                continue
            for route, path in self._ours():
                for method in route.guarded_by(layer.edge.routes, path):
                    raise Misuse(_TWICE.format(operation=f"{method} {path}"))

    def _check_guards(self, app: Any) -> None:
        """Raise `Misuse` where nothing is guarded, though something would have to be; or nothing is
        atomic.
        """
        if app is None and not any(each.is_judged for each in self.made):
            raise Misuse(
                "no route is guarded: APIRouter(route_class=idempotency.route_class); and tell the "
                "lifespan its application, idempotency.lifespan(app), which is checked then"
            )
        routes = list(routes_of(app))
        ours = [each for each in routes if isinstance(each, self.route_class)]
        if any(hasattr(each, "app") and not hasattr(each, "endpoint") for each in routes):
            ours = self.made  # nobody can look into that one: any of them may be there
        if ours and self.edge.adapter is not None and not any(each.is_atomic for each in ours):
            raise Misuse(UNUSED)
        if any(each.is_judged for each in ours):
            return
        for route in routes:
            methods = frozenset(getattr(route, "methods", None) or ()) - SAFE
            if not methods:
                continue
            named = route.path or route.name  # one that is included may have no path of its own
            what_to_do = (
                f"the policy's methods are {', '.join(sorted(self.edge.routes.methods))}. Name its "
                f"own, Policy(methods={(*sorted(methods),)}), or mark its endpoint @idempotent; or "
                "@not_idempotent, if that is meant"
                if isinstance(route, self.route_class)
                else "APIRouter(route_class=idempotency.route_class), or app.router.route_class = "
                "idempotency.route_class before the first route of the application itself"
            )
            raise Misuse(f"no route of this application is guarded, {named} neither: {what_to_do}")


class IdempotentRoute(APIRoute):
    """A route whose endpoint runs once per key: `Idempotency.route_class` is one."""

    idempotency: ClassVar[Idempotency]

    def __init__(self, path: str, endpoint: Endpoint, **settings: Any) -> None:
        if not hasattr(self, "idempotency"):
            raise Misuse(
                "IdempotentRoute guards nothing: write route_class=idempotency.route_class"
            )
        served = methods = frozenset(name.upper() for name in settings.get("methods") or ("GET",))
        mark = mark_of(endpoint)
        if mark is not None:
            check_kind(mark, endpoint, __name__, claims=False)
        setattr(self, HEEDS, mark is not None)
        self._policy = None if mark is None else self.idempotency.marked.policy(mark, methods)
        routes = self.idempotency.edge.routes
        # Where a router is included, the path of a route is longer: what it is guarded by is seen
        # when a request comes.
        methods &= frozenset(self._policy.methods if self._policy else routes.methods)
        self._guarded = frozenset() if mark is not None and mark.policy is None else methods
        if self._policy is not None and not self._guarded:
            raise Misuse(
                f"{path}: {name_of(endpoint)} is @idempotent, but none of its methods is guarded: "
                f"name them, @idempotent(Policy(methods={(*sorted(served),)}))"
            )
        super().__init__(path, _claim_first(endpoint) if self._guarded else endpoint, **settings)
        policies = [self._policy or routes.match(method, path).policy for method in self._guarded]
        self.is_atomic = any(policy.atomic for policy in policies)
        self.resumes = sorted(
            method
            for method, policy in zip(self._guarded, policies, strict=True)
            if policy.recovery in ("resume", "ask")
        )
        """Its methods that are to be finished also without a client."""
        if self.is_atomic and not is_async(endpoint):
            check_blocking(self.idempotency.edge.adapter, endpoint.__name__)
        for policy in policies[:1]:
            self._describe(policy)
        self.idempotency.made.append(self)

    @property
    def guards(self) -> bool:
        """Whether any of its methods is guarded."""
        return bool(self._guarded)

    @property
    def is_judged(self) -> bool:
        """Whether it is guarded, or was said to be none that is."""
        return self.guards or bool(getattr(self, HEEDS))

    def guarded_by(self, routes: Routes, path: str) -> list[str]:
        """Its methods that these rules guard, too."""
        named = sorted(self._guarded)
        return [each for each in named if each in routes.match(each, path).policy.methods]

    def undecided_methods(self, path: str) -> list[str]:
        """What of it runs again after a crash because nobody has chosen otherwise."""
        routes = self.idempotency.edge.routes
        named = [(method, path) for method in sorted(self._guarded)]
        if self._policy is None:
            return routes.undecided_routes(named)
        mark = mark_of(self.endpoint)
        own = mark is not None and mark.policy is not None and mark.policy.recovery is not INHERIT
        is_chosen = own or routes.chosen or self._policy.atomic
        return [] if is_chosen else [f"{method} {path}" for method, _ in named]

    def _describe(self, policy: Policy) -> None:
        """The key and the refusals, in the OpenAPI document."""
        own = self.openapi_extra or {}
        declared = {name.lower() for name in _parameters(self.dependant)}
        declared |= {each.get("name", "").lower() for each in own.get("parameters", ())}
        extra = openapi.describe(self.idempotency.edge.profile, policy, declared=declared)
        refusals = extra["responses"]
        for status, response in self.responses.items():
            if "description" in response and str(status) in refusals:
                del refusals[str(status)]["description"]
        described = {str(status): each for status, each in own.get("responses", {}).items()}
        self.openapi_extra = {
            **extra,
            **own,
            "responses": {**refusals, **described},
            "parameters": [*extra.get("parameters", ()), *own.get("parameters", ())],
        }

    def _applies(self, scope: Scope) -> tuple[str, Policy]:
        method, root, template = scope["method"], scope.get("root_path", ""), _template(self, scope)
        routes = self.idempotency.edge.routes
        policy = self._policy or routes.policy_of(method, within(root, scope["path"]), template)
        return f"{method} {root}{template}", policy

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, inner = super().matches(scope)
        if match is Match.FULL and SOUGHT in scope and (route := self._route(scope)) is not None:
            scope[SOUGHT].append(route)
        return match, inner

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None if ENTERS in scope else self._route(scope)
        if route is None:
            await self._handle_unguarded(scope, receive, send)
            return
        if GUARDED in scope:
            by = "IdempotencyMiddleware and by its route class; choose one of them for this route"
            raise guarded_twice(route.operation, by)
        guard = self.idempotency.guard
        if "app_root_path" not in scope:  # one that is mounted is not all there is
            guard.lifespan.setdefault("app", scope.get("app"))  # where no lifespan has told it
        body = await messages.read(receive, messages.request(scope), route.policy)
        if body is None:  # the client left before it had said what it wants
            return
        if isinstance(body, Problem):
            await messages.send(send, guard.edge.decline(body, route))
            return
        scope.setdefault("state", {})  # what dependencies leave there is for those outside too
        run = LateRun(guard, scope, receive, send, route, body)
        token, other = _run.set(run), recovered.set(None)
        try:
            await run.start()
        finally:
            _run.reset(token)
            recovered.reset(other)

    async def _handle_unguarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _run.set(None)  # a dependency may send this, whose own request is yet to be claimed
        enters = ENTERS in scope  # to finish what was claimed already
        other = recovered.set(recovered.get() if enters else None)
        unprotected = attempts.served(
            passing(functools.partial(self._applies, scope), self.idempotency.edge.store)
        )
        try:
            with contextlib.nullcontext() if enters else unprotected:
                await super().handle(scope, receive, send)
        finally:
            _run.reset(token)
            recovered.reset(other)

    def _route(self, scope: Scope) -> Route | None:
        """What applies to a request; None where nothing does."""
        method, edge = scope["method"], self.idempotency.edge
        if method not in self._guarded:
            return None
        operation, policy = self._applies(scope)
        if method not in policy.methods or not (
            policy.required
            or (policy.atomic and edge.adapter is not None)
            or edge.may_bring_key(messages.request(scope))
        ):
            return None
        edge.routes.note(operation)
        return Route(operation, policy, is_named=True)


def _template(route: APIRoute, scope: Scope) -> str:
    """The route's path as it is written, with the prefixes of the routers that it is included by:
    FastAPI keeps those beside the route, where it does not make a new route for each.
    """
    included = scope.get("fastapi", {}).get("effective_route_context")
    ours = getattr(included, "original_route", None) is route
    return str(included.path_format if ours else route.path_format)


def _claim_first(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with the claim before it. FastAPI calls it when everything else is done."""
    if getattr(endpoint, _CLAIMS, False):  # a route that was copied
        return endpoint
    called = inspect.unwrap(endpoint)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise Misuse(
            f"{called.__name__} yields its answer, so that nothing is known of it before it is "
            "sent: return a StreamingResponse, or mark it @not_idempotent"
        )
    in_loop = is_async(endpoint)

    @functools.wraps(endpoint)
    async def claim_and_call(**values: Any) -> Any:
        if (again := recovered.get()) is not None:
            again.reached = True
            recovered.set(None)  # what the endpoint calls is not recovered
        run = _run.get()
        if run is not None:
            _run.set(None)  # what the endpoint calls are requests of their own
            if (answer := await run.claim()) is not None:
                return _response(answer)
        if in_loop:
            return await endpoint(**values)
        return await run_in_threadpool(endpoint, **values)

    # Annotations that are text are looked up where the endpoint was written; older releases of
    # FastAPI would look here.
    with contextlib.suppress(NameError):
        claim_and_call.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    setattr(claim_and_call, _CLAIMS, True)
    return claim_and_call


def _response(answer: Answer) -> Response:
    """Sent as it is. Background tasks that dependencies have added belong to the first request."""
    response = Response(answer.body, answer.status, background=BackgroundTasks())
    response.raw_headers = list(answer.headers)
    return response


def _parameters(dependant: Dependant) -> Iterator[str]:
    """The names of the headers and query parameters that a route and its dependencies declare."""
    for field in (*dependant.header_params, *dependant.query_params):
        model = getattr(getattr(field.field_info, "annotation", None), "model_fields", None)
        if model is None:
            yield field.alias
        else:  # each of a model's fields is a parameter
            yield from (each.alias or name.replace("_", "-") for name, each in model.items())
    for inner in dependant.dependencies:
        yield from _parameters(inner)
