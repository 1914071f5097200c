"""Routed: the routes of a Starlette or FastAPI application, and whether a mark on an endpoint, or a
policy by route, has an effect there. Who set one believes that its endpoint is guarded, and by
which rules.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from oncekey._system.warn_once import warn
from oncekey.atomic import Adapter, check_blocking
from oncekey.errors import Misuse
from oncekey.web._decorators import is_async, mark_of, name_of
from oncekey.web._routes import Finds, Routes

HEEDS = "_oncekey_heeds"
"""On a route that heeds marks: whether it found one when it was made."""

UNFOUND = (
    "the application has no such route, so these rules apply to nothing. Write it as the "
    "application's own routes are written"
)

_WITHIN_MAX = 10
"""How deep routers and mounts are looked through that include each other."""


def routes_of(router: Any, within: int = 0) -> Iterator[Any]:
    """All routes of an application, of included routers and of mounted applications; a mount itself
    only where nobody can look through it.
    """
    for route in getattr(router, "routes", ()):
        included = getattr(route, "original_router", route)  # FastAPI may keep it as a router
        if not getattr(included, "routes", ()):
            yield route
        elif within < _WITHIN_MAX:
            yield from routes_of(included, within + 1)


def served_by(router: Any) -> Iterator[tuple[Any, str]]:
    """The routes that a router serves, each with its whole path. Raises `Unreadable` where not all
    can be seen.
    """
    for route, path in called_by(router):
        yield getattr(route, "original_route", route), path


def called_by(router: Any, prefix: str = "", within: int = 0) -> Iterator[tuple[Any, str]]:
    """The same as they are called: one that FastAPI included has the dependencies of all routers
    around it, too.
    """
    for route in getattr(router, "routes", ()):
        if contexts := getattr(route, "effective_route_contexts", None):
            for each in contexts():
                yield each, prefix + each.path_format
        elif hasattr(route, "methods"):
            yield route, prefix + str(getattr(route, "path_format", route.path))
        elif within < _WITHIN_MAX and getattr(route, "routes", None) and hasattr(route, "path"):
            yield from called_by(route, f"{prefix}{route.path}", within + 1)
        elif hasattr(route, "app") and not hasattr(route, "endpoint"):
            raise Unreadable


class Unreadable(Exception):
    """An application within which nobody can look for routes."""


def undecided_of(app: Any, routes: Routes) -> list[str]:
    """`Routes.undecided_routes`, by the application's own routes where they can be seen."""
    try:
        served = list(_methods_served_by(app))
    except Unreadable:
        served = []
    return routes.undecided_routes(served or None)


def _methods_served_by(app: Any) -> Iterator[tuple[str, str]]:
    for route, path in served_by(app):
        for method in sorted(getattr(route, "methods", None) or ()):
            yield method, path


def warn_unfound(app: Any, routes: Routes) -> None:
    """`tell_unfound`, of an application whose routes can be gone through."""

    def finds(method: str | None, path: str) -> bool:
        scope = {"type": "http", "method": method or "POST", "path": path, "root_path": ""}
        return _leads(app, {**scope, "headers": [], "query_string": b""}, method is not None)

    if hasattr(app, "routes"):
        served = []
        with contextlib.suppress(Unreadable):
            for each in _methods_served_by(app):
                served.append(each)
        tell_unfound(routes, finds, served)


def tell_unfound(routes: Routes, finds: Finds, served: Iterable[tuple[str, str]]) -> None:
    """Tell of policies that apply to nothing: of a route that is written otherwise, most likely."""
    with contextlib.suppress(Exception):  # a route of a kind that wants to know more of a request
        for written in routes.unfound(finds, served):
            warn("routes", f"routes={{{written!r}: …}}: {UNFOUND}")


def _leads(router: Any, scope: dict[str, Any], by_method: bool) -> bool:
    """Whether a request gets to a route, or to what nobody can look through."""
    for route in router.routes:
        match, inner = route.matches(dict(scope))
        if hasattr(route, "host_regex"):
            return True
        if match.name == "NONE":
            continue
        if getattr(route, "routes", ()):
            if _leads(route, {**scope, **inner}, by_method):
                return True
        elif match.name == "FULL" or not by_method:
            return True
    return False


def check_marks(app: Any) -> None:
    """Raise `Misuse` for a mark that has no effect."""
    for route in routes_of(app):
        mark = mark_of(getattr(route, "endpoint", None))
        if mark is None or getattr(route, HEEDS, mark.policy is None):
            continue
        name = f"{route.path}: {getattr(route.endpoint, '__name__', route.endpoint)}"
        if hasattr(route, HEEDS):
            raise Misuse(f"{name} was marked after it was routed: put the mark below the route")
        raise Misuse(
            f"{name} is @idempotent, but its router guards nothing: "
            "APIRouter(route_class=idempotency.route_class). IdempotencyMiddleware heeds no marks: "
            "where that guards it, its rules are written there, routes={'POST /orders': Policy(…)}"
        )


def check_threads(app: Any, routes: Routes, adapter: Adapter | None) -> None:
    """Raise `Misuse` for an endpoint in a thread that would have to await its connection. Where
    only some routes are atomic, nobody can tell which: a router does not know how it is included.
    """
    if not all(policy.atomic for policy in routes.policies):
        return
    for route in routes_of(app):
        endpoint = getattr(route, "endpoint", None)
        guarded = routes.methods.intersection(getattr(route, "methods", None) or ())
        if guarded and inspect.isroutine(endpoint) and not is_async(endpoint):
            check_blocking(adapter, name_of(endpoint))
