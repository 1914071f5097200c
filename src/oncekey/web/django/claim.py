"""A request that may be guarded, and its claim when the view is about to be called."""

from __future__ import annotations

import functools

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.request import RawPostDataException

from oncekey.core.record import Answer
from oncekey.errors import Misuse
from oncekey.web.content import too_large
from oncekey.web.django import settings
from oncekey.web.django.responses import response_of
from oncekey.web.marks import SAFE, Mark
from oncekey.web.request import GUARDED, Headers, Request
from oncekey.web.routes import Route
from oncekey.web.views import Begun, Visit

_STATE = "_oncekey"

views = functools.cache(settings.views)
"""One for the process: handlers that are loaded again share it."""


class State:
    """What is known of a request that may be guarded."""

    __slots__ = ("awaited", "body", "claimed", "error", "request", "unmarked", "visit")

    def __init__(self, request: Request, body: bytes, awaited: bool) -> None:
        self.request = request
        self.body = body
        self.awaited = awaited
        """Whether the middleware runs in an event loop that lasts longer than this request."""
        self.claimed = False
        self.unmarked = False
        """Whether no mark was seen on the view that the request is for."""
        self.visit: Visit | None = None
        self.error: Exception | None = None
        """What the view raised, if Django has made an answer of it."""


def state_of(request: HttpRequest) -> State | None:
    state: State | None = getattr(request, _STATE, None)
    return state


def prepare(request: HttpRequest, *, awaited: bool) -> State | None:
    """Keep the body, for its fingerprint, before anything reads it as a form. How much of it is
    read at all is Django's setting DATA_UPLOAD_MAX_MEMORY_SIZE.
    """
    if request.method in SAFE:
        return None
    asked = _request(request)
    named = views().edge.may_bring_key(asked)
    state = State(asked, _body(request) if named else b"", awaited)
    setattr(request, _STATE, state)
    return state


def _request(request: HttpRequest) -> Request:
    """As the edge reads it."""
    lines = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in request.headers.items()]
    coding = "utf-8" if hasattr(request, "scope") else "latin-1"  # as Django's handler decoded it
    return Request(
        request.method or "GET",
        request.path,
        request.META.get("QUERY_STRING", "").encode(coding),
        Headers(lines),
        {settings.REQUEST: request, "scheme": request.scheme},
        request.path.removesuffix(request.path_info),
    )


def _body(request: HttpRequest) -> bytes:
    try:
        body: bytes = request.body
        return body
    except RawPostDataException as error:
        raise Misuse(
            "another middleware has read the body as a form before oncekey could: put "
            f"{settings.MIDDLEWARE!r} before it"
        ) from error


# --------------------------------------------------------------------------------- the claim


def claim_sync(request: HttpRequest, state: State, mark: Mark | None) -> HttpResponse | None:
    """Claim for a view that is about to run. None: let it; else this is the answer."""
    route = _route(request, state, mark)
    if not isinstance(route, Route):
        return route
    return _begun(state, views().begin_sync(state.request, route, state.body))


async def claim(request: HttpRequest, state: State, mark: Mark | None) -> HttpResponse | None:
    """`claim_sync`, awaited."""
    if not state.awaited:  # the loop is only this view's, the connections are its thread's
        answer: HttpResponse | None = await sync_to_async(claim_sync)(request, state, mark)
        return answer
    route = _route(request, state, mark)
    if not isinstance(route, Route):
        return route
    return _begun(state, await views().begin(state.request, route, state.body))


def _route(request: HttpRequest, state: State, mark: Mark | None) -> Route | HttpResponse | None:
    """What applies to the view; or how it is refused; or None, where nothing is to be claimed."""
    if state.claimed or request.resolver_match is None:
        return None
    state.claimed = True
    route = views().route(state.request, f"/{request.resolver_match.route}", mark)
    if route is None:
        return None
    if GUARDED in request.META or GUARDED in getattr(request, "scope", ()):
        raise Misuse(
            f"{route.operation} is guarded twice, by the middleware for WSGI or ASGI and by "
            "Django's; choose one of them"
        )
    if route.policy.atomic and state.awaited:
        raise Misuse(
            f"{route.operation} is atomic, and Django's transactions belong to a thread: serve it "
            "by WSGI, or open a transaction in the view and use current().complete_in_sync(…)"
        )
    if len(state.body) > route.policy.request_bytes_max:
        refused = too_large(route.policy.request_bytes_max)
        return response_of(views().edge.decline(refused, route))
    return route


def _begun(state: State, begun: Begun) -> HttpResponse | None:
    if isinstance(begun, Answer):
        return response_of(begun)
    state.visit = begun
    return None
