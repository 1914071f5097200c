"""A request that may be guarded, and its claim when the view is about to be called."""

from __future__ import annotations

import functools
import os
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from oncekey._core.canonical import SHORT_BYTES_MAX
from oncekey._core.policy import Policy
from oncekey._core.problems import Problem
from oncekey._core.record import Answer
from oncekey._engine import attempt as attempts
from oncekey._engine.attempt import Passing
from oncekey._engine.keyless import passing
from oncekey._system.offload import file_thread
from oncekey.errors import Misuse
from oncekey.web import _wsgi_environ as environs
from oncekey.web._body import Body, too_large
from oncekey.web._decorators import SAFE, Mark
from oncekey.web._hidden_headers import hide, is_hidden
from oncekey.web._request import GUARDED, Headers, Request, guarded_twice
from oncekey.web._routes import Route
from oncekey.web._views import Begun, ViewCall
from oncekey.web.django import settings
from oncekey.web.django._responses import response_of, served_by

_STATE = "_oncekey"

views = functools.cache(settings.views)
"""One for the process: handlers that are loaded again share it."""


class RequestState:
    """What is known of a request that may be guarded."""

    __slots__ = (
        *("awaited", "body", "claimed", "error", "request", "scope", "taken", "unmarked"),
        *("unprotected", "visit"),
    )

    def __init__(self, request: Request, body: Body | Problem, awaited: bool) -> None:
        self.request = request
        self.body = body
        self.awaited = awaited
        """Whether the middleware runs in an event loop that lasts longer than this request."""
        self.claimed = False
        self.unmarked = False
        """Whether no mark was seen on the view that the request is for."""
        self.visit: ViewCall | None = None
        self.unprotected: Passing | None = None
        """What the view runs in, where nothing is claimed for it."""
        self.error: Exception | None = None
        """What the view raised, if Django has made an answer of it."""
        self.taken: dict[str, Any] = {}
        self.scope: Any = None
        """What is hidden from the view; under ASGI the scope in which it stands as well."""

    def serving_parts(self, response: HttpResponseBase) -> HttpResponseBase:
        """The answer of a view for which nothing was claimed."""
        return response if self.unprotected is None else served_by(response, self.unprotected)

    def closing_body(self, response: HttpResponseBase) -> HttpResponseBase:
        """The answer, with whose end the body is not needed any more."""
        if isinstance(self.body, Body):
            response._resource_closers.append(self.body.close)
        return response


def state_of(request: HttpRequest) -> RequestState | None:
    state: RequestState | None = getattr(request, _STATE, None)
    return state


def prepare(request: HttpRequest, *, awaited: bool) -> RequestState | HttpResponse | None:
    """Keep the body, for its fingerprint, before anything reads it as a form. Where that cannot be
    done, this is the answer.
    """
    if request.method in SAFE:
        return None
    asked = _request(request)
    body = _read(request) if views().edge.may_bring_key(asked) else Body()
    if isinstance(body, Problem) and request._read_started:  # nobody can read it any more
        route = Route(f"{asked.method} {asked.path}", views().reading)
        return response_of(views().edge.decline(body, route))
    state = RequestState(asked, body, awaited)
    setattr(request, _STATE, state)
    return state


async def prepare_async(request: HttpRequest) -> RequestState | HttpResponse | None:
    """`prepare`, awaited."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if length and environs.is_length(length) and int(length) <= SHORT_BYTES_MAX:
        return prepare(request, awaited=True)
    return await file_thread.run(functools.partial(prepare, request, awaited=True))


def check_method(request: HttpRequest) -> None:
    """Raise `Misuse` where a request that is to be guarded had another method when it came, by
    which nothing was prepared for it.
    """
    if request.method in SAFE or request.resolver_match is None:
        return
    asked = _request(request)
    route = _view_route(request, asked, None)
    if route is not None and (route.policy.required or views().edge.may_bring_key(asked)):
        raise Misuse(
            f"{route.operation}: a middleware changed the method in its process_view, when oncekey "
            "had taken the request for one that changes nothing. Change the method earlier, when "
            f"the middleware is called, and put it before {settings.MIDDLEWARE!r}"
        )


def _request(request: HttpRequest) -> Request:
    """As the edge reads it."""
    lines = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in request.headers.items()]
    coding = "utf-8" if hasattr(request, "scope") else "latin-1"  # as Django's handler decoded it
    root = request.META.get("SCRIPT_NAME", "").rstrip("/")
    return Request(
        request.method or "GET",
        request.path,
        request.META.get("QUERY_STRING", "").encode(coding),
        Headers(lines),
        {settings.REQUEST: request, "scheme": request.scheme},
        root if request.path.startswith(f"{root}/") else "",
    )


def _read(request: HttpRequest) -> Body | Problem:
    """Read the body, and let Django read it again. The view is not known yet, so as much is read as
    is allowed to any of them.
    """
    if hasattr(request, "_body"):  # middleware before this one has read it
        body = Body()
        return body.add(request.body, views().reading) or body
    if request._read_started:
        raise Misuse(
            "another middleware has read the body as a form before oncekey could: put "
            f"{settings.MIDDLEWARE!r} before it"
        )
    length, policy = _length(request), views().reading
    if length is None:
        return environs.NO_LENGTH
    if length > policy.request_bytes_max:
        return too_large(policy.request_bytes_max)
    read = environs.take(request, length, policy)
    if isinstance(read, Body):
        if read.size < length:
            return environs.ended_early(read.size, length)
        if hasattr(request, "scope"):
            request._stream.close()
        request._stream, request._read_started = read.open(), False
    return read


def _length(request: HttpRequest) -> int | None:
    """How long the body is: under ASGI Django has it whole, under WSGI it is what was declared.
    None where that is no length, though Django might read it as one.
    """
    stream = request._stream
    if hasattr(request, "scope") and stream.seekable():  # that of Django's AsyncClient is not
        length: int = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        return length
    declared = request.META.get("CONTENT_LENGTH") or ""
    return int(declared or 0) if environs.is_length(declared) else None


# --------------------------------------------------------------------------------- the claim


def claim_sync(request: HttpRequest, state: RequestState, mark: Mark | None) -> HttpResponse | None:
    """Claim for a view that is about to run. None: let it; else this is the answer."""
    route = _route(request, state, mark)
    if not isinstance(route, Route):
        return _serve_unclaimed(request, state, route)
    return _begin(request, state, views().begin_sync(state.request, route, _whole(state)))


async def claim(
    request: HttpRequest, state: RequestState, mark: Mark | None
) -> HttpResponse | None:
    """`claim_sync`, awaited."""
    if not state.awaited:  # the loop is only this view's, the connections are its thread's
        answer: HttpResponse | None = await sync_to_async(claim_sync)(request, state, mark)
        return answer
    route = _route(request, state, mark)
    if not isinstance(route, Route):
        return _serve_unclaimed(request, state, route)
    return _begin(request, state, await views().begin(state.request, route, _whole(state)))


def _whole(state: RequestState) -> Body:
    if isinstance(state.body, Problem):
        raise AssertionError(f"the body was not read: {state.body}")
    return state.body


def _route(
    request: HttpRequest, state: RequestState, mark: Mark | None
) -> Route | HttpResponse | None:
    """What applies to the view; or how it is refused; or None, where nothing is to be claimed."""
    if state.claimed or request.resolver_match is None:
        return None
    state.claimed = True
    if request.method != state.request.method:  # a middleware's process_view has changed it
        state.request = _request(request)
    route = _view_route(request, state.request, mark)
    if route is None:
        return None
    if GUARDED in request.META or GUARDED in getattr(request, "scope", ()):
        by = "the middleware for WSGI or ASGI and by Django's; choose one of them"
        raise guarded_twice(route.operation, by)
    if route.policy.atomic and state.awaited:
        raise Misuse(
            f"{route.operation} is atomic, and Django's transactions belong to a thread: serve it "
            "by WSGI, or open a transaction in the view and use current().complete_in_sync(…)"
        )
    if environs.has_two_lengths(request.META) and not hasattr(request, "scope"):
        return response_of(views().edge.decline(environs.TWO_LENGTHS, route))
    if (refused := _body_problem(state.body, route)) is not None:
        return response_of(views().edge.decline(refused, route))
    return route


def _view_route(request: HttpRequest, asked: Request, mark: Mark | None) -> Route | None:
    """What applies to the view that Django has found."""
    found = request.resolver_match

    def serves(path: str) -> bool:
        other = settings.find_view(path)
        return other is not None and settings.are_alike(found, other)

    return views().route(asked, f"/{found.route}", mark, serves=serves)


def _body_problem(body: Body | Problem, route: Route) -> Problem | None:
    """Why the body is not taken, if it is not."""
    if isinstance(body, Problem):
        return body
    limit = route.policy.request_bytes_max
    return too_large(limit) if body.size > limit else None


def applies(request: HttpRequest) -> tuple[str, Policy]:
    """To a view that nothing protects."""
    asked = _request(request)
    route = views().edge.routes.match(asked.method, asked.path, asked.root)
    return route.operation, route.policy


def _serve_unclaimed(
    request: HttpRequest, state: RequestState, answer: HttpResponse | None
) -> HttpResponse | None:
    """There is nothing to claim. What runs is not protected."""
    if answer is None:
        state.unprotected = passing(functools.partial(applies, request), views().edge.store)
        attempts.serve(state.unprotected)
    return answer


def _begin(request: HttpRequest, state: RequestState, begun: Begun) -> HttpResponse | None:
    if isinstance(begun, Answer):
        return response_of(begun)
    state.visit = begun
    if begun is None:
        return _serve_unclaimed(request, state, None)
    _hide(request, state)
    return None


def _hide(request: HttpRequest, state: RequestState) -> None:
    """From now on the request is as guarded handlers see it; until the view has ended."""
    state.taken = hide(request.META)
    state.scope = getattr(request, "scope", None)
    if state.scope is not None:
        lines = [line for line in state.scope["headers"] if not is_hidden(*line)]
        request.scope = {**state.scope, "headers": lines}
    vars(request).pop("headers", None)  # made of META when it is first asked for


def leave(request: HttpRequest, state: RequestState) -> None:
    """The view has ended, however it did."""
    if state.visit is None:
        return
    views().leave(state.visit)
    request.META.update(state.taken)
    if state.scope is not None:
        request.scope = state.scope
    vars(request).pop("headers", None)
