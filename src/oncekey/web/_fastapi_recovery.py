"""FastAPI: how the recoverer gets into a route whose requests are claimed behind its dependencies.

What a client sends to identify itself is never kept, so a dependency that asks for it would refuse
the recoverer. The application says what stands in its place: `recover_as={signed_in: recovered}`,
as it would override a dependency in a test. That holds for requests that the recoverer runs, and
for no other. The record is taken over first: `oncekey.current()` works in the dependencies then,
and knows the tenant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from fastapi.routing import APIRoute

from oncekey._engine.registry import Orphan
from oncekey.errors import Misuse
from oncekey.web._asgi_late import RecoveredRun
from oncekey.web._asgi_messages import App, Receive, Scope, Send
from oncekey.web._asgi_run import RequestRun
from oncekey.web._body import Body
from oncekey.web._kept_request import KeptRequest
from oncekey.web._middleware_order import layers
from oncekey.web._recovery import (
    AsgiRunner,
    Reread,
    receive_disconnect,
    reread,
    scope_of,
    send_to_nobody,
)
from oncekey.web._routes import Route
from oncekey.web.asgi import IdempotencyMiddleware

ENTERS, SOUGHT = "oncekey.enters", "oncekey.sought"
"""In a scope: what the recoverer enters by; where a route that is looked for puts down its name."""

RecoverAs = Mapping[Callable[..., Any], Callable[..., Any]]

recovered: ContextVar[RecoveredRun | None] = ContextVar("oncekey_recovered", default=None)
"""The recovered request whose dependencies run now."""

_WITHIN_MAX = 10


def check_recover_as(given: object) -> None:
    """Raise `Misuse` for what does not say what stands in place of which dependency."""
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(
        callable(each) for pair in given.items() for each in pair
    ):
        raise Misuse(
            "recover_as=… takes dependencies and what stands in their place when the recoverer "
            "runs a request, such as {signed_in: recovered}; {} says that all let it pass"
        )


def check_used(recover_as: RecoverAs, dependants: Iterable[Any]) -> None:
    """Raise `Misuse` for the replacement of what no guarded route depends on."""
    calls = {each.call for dependant in dependants for each in _all(dependant)}
    for each in recover_as:
        if each not in calls:
            raise Misuse(
                f"recover_as names {getattr(each, '__name__', each)}, on which no guarded route of "
                "this application depends: name the dependency as Depends(…) does"
            )


def dependants_of(app: Any, made: Iterable[Any]) -> Iterator[Any]:
    """The dependencies of guarded routes: as they were made, and as they are included."""
    yield from (route.dependant for route in made)
    for route in getattr(app, "routes", ()):
        if contexts := getattr(route, "effective_route_contexts", None):
            yield from (each.dependant for each in contexts())


def _all(dependant: Any) -> Iterator[Any]:
    for each in getattr(dependant, "dependencies", ()):
        yield each
        yield from _all(each)


def find(app: Any, kept: KeptRequest, scope: Scope) -> tuple[Route, Any, Scope] | None:
    """Which guarded route a request is for, by the application's own routing; in which application,
    this one or one that is mounted in it; and its scope there.
    """
    scope = {**scope, "root_path": kept.root if kept.outer is None else kept.outer}
    for _ in range(_WITHIN_MAX):
        if not hasattr(app, "build_middleware_stack"):
            return None
        sought: list[Route] = []
        scope["app"] = app
        asked = {**scope, SOUGHT: sought}
        matches = ((route, *route.matches(asked)) for route in app.routes)
        first = next((each for each in matches if each[1].name == "FULL"), None)
        if first is None:
            return None
        if sought:
            return (sought[-1], app, scope) if scope["root_path"] == kept.root else None
        app, scope = getattr(first[0], "app", None), {**scope, **first[2]}
    return None


def entrance(app: Any) -> App:
    """Where the recoverer enters: inside of all middleware that was added, which may ask who sends
    a request, and outside of the exception handlers.
    """
    if app.middleware_stack is None:
        app.middleware_stack = app.build_middleware_stack()
    for layer in layers(app.middleware_stack):
        if type(layer).__name__ == "ExceptionMiddleware":
            enter_recovered: App = layer
            return enter_recovered
    raise Misuse("this application has no ExceptionMiddleware: it is none of Starlette's")


class Replacements(dict[Any, Any]):
    """An application's dependency overrides, and ours for what the recoverer runs."""

    def __init__(self, given: Mapping[Any, Any]) -> None:
        super().__init__(given)
        self.of: dict[IdempotencyMiddleware, RecoverAs] = {}

    def __bool__(self) -> bool:
        return True  # FastAPI does not look into one that is empty

    def get(self, call: Any, default: Any = None) -> Any:
        run = recovered.get()
        if run is not None and call in (ours := self.of.get(run.guard, {})):
            return ours[call]
        return super().get(call, default)


def replace_in(app: Any, guard: IdempotencyMiddleware, recover_as: RecoverAs) -> None:
    if not isinstance(app.dependency_overrides, Replacements):
        app.dependency_overrides = Replacements(app.dependency_overrides)
    app.dependency_overrides.of[guard] = recover_as


# ------------------------------------------------------------------------------- the guard


async def run_route(scope: Scope, receive: Receive, send: Send) -> None:
    """The application that a guarded request is for: the route that was found for it; or the
    application again, where the recoverer enters it.
    """
    enter = scope.get(ENTERS) or functools.partial(APIRoute.handle, scope["route"])
    await enter(scope, receive, send)


class _Runner(AsgiRunner):
    """Finishes requests of the guarded routes, where the application says as whom."""

    def __init__(self, guard: RouteGuard) -> None:
        super().__init__(guard)
        self._guard = guard

    def _reread(self, orphan: Orphan) -> Reread | None:
        return reread(self._edge, orphan, self._route) if self._guard.lets_recoverer_in else None

    def _find(
        self, kept: KeptRequest, headers: list[tuple[bytes, bytes]]
    ) -> tuple[Route, Any, Scope] | None:
        lifespan = self._guard.lifespan
        return find(lifespan.get("app"), kept, scope_of(kept, headers, lifespan))

    def _route(self, kept: KeptRequest, headers: list[tuple[bytes, bytes]]) -> Route | None:
        found = self._find(kept, headers)
        return None if found is None else found[0]

    def _run(self, found: Reread) -> RequestRun:
        guard, kept = self._guard, found.kept
        _, app, scope = self._find(kept, found.headers) or (None, None, {})
        replace_in(app, guard, guard.recover_as or {})
        enter, given = (
            entrance(app),
            (receive_disconnect, send_to_nobody, found.route, Body(kept.body)),
        )
        run = RecoveredRun(guard, scope, *given)

        async def enter_recovered(scope: Scope, receive: Receive, send: Send) -> None:
            recovered.set(run)
            await enter(scope, receive, send)

        scope[ENTERS] = enter_recovered
        return run


class RouteGuard(IdempotencyMiddleware):
    """What the guarded routes of an application run on."""

    runner = _Runner
    recover_as: RecoverAs | None = None
    lets_recoverer_in = False
