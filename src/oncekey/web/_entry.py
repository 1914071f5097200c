"""Entry: which rules the middleware around an application applies to a request, if any."""

from __future__ import annotations

from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Answer
from oncekey.web._edge import Edge
from oncekey.web._request import Headers, Request
from oncekey.web._routes import Route

OVERRIDES = (b"x-http-method-override", b"x-http-method", b"x-method-override")
"""Headers by which some middleware lets a client name another method than the request has."""

_METHODS_MAX = 4
"""Of those that one request names, how many are looked at."""

_TWO_METHODS = Problem(
    Kind.MALFORMED_REQUEST,
    "The request has one method, and a header of it names another. Send it with the method that is "
    "meant, and without that header.",
)
_HEAD = Problem(
    Kind.MALFORMED_REQUEST,
    "HEAD may run what GET runs, and has no answer that could be kept. Send it with GET.",
)
_TWO_ROUTES = Problem(
    Kind.MALFORMED_REQUEST,
    "The request's path can be read as the path of another operation, which has other rules. Send "
    "it without repeated slashes, dots between slashes or a slash at the end.",
)


def route_of(edge: Edge, request: Request) -> Route | Answer | None:
    """What applies to a request; or its refusal; or None, where it is not guarded. A request that
    brings no key and needs none passes, whatever it may mean.
    """
    route = edge.routes.match(request.method, request.path, request.root)
    if route.is_named and request.method in route.policy.methods:
        edge.routes.note(route.operation)
    others = overridden(request.headers, request.method)
    if "HEAD" in (request.method, *others) and "HEAD" not in route.policy.methods:
        others = (*others, "GET")  # routers give both to one handler
    if not others and not route.is_unclear:
        return route if request.method in route.policy.methods else None
    possible = {request.method: route}
    for other in others[:_METHODS_MAX]:
        possible[other] = edge.routes.match(other, request.path, request.root)
    policies = [
        each.policy
        for method, each in possible.items()
        if each.is_unclear or method in each.policy.methods
    ]
    if (
        len(others) > _METHODS_MAX
        or any(policy.required for policy in policies)
        or (policies and edge.may_bring_key(request))
    ):
        two_methods = _HEAD if (request.method, *others) == ("HEAD", "GET") else _TWO_METHODS
        return edge.decline(two_methods if others else _TWO_ROUTES, route)
    return None


def overridden(headers: Headers, method: str) -> tuple[str, ...]:
    """Other methods that headers name. Middleware that stands inside and reads one of them would
    run a route whose rules nobody applied.
    """
    named = (
        content.decode("latin-1").strip().upper()
        for name, content in headers.lines
        if name in OVERRIDES
    )
    return tuple(dict.fromkeys(each for each in named if each != method))
