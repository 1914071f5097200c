"""Routed: the routes of a Starlette or FastAPI application, and whether a mark on an endpoint has
an effect there. Who set one believes that its endpoint is guarded, and by which rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oncekey.errors import Misuse
from oncekey.web.marks import mark_of

HEEDS = "_oncekey_heeds"
"""On a route that heeds marks: whether it found one when it was made."""

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
