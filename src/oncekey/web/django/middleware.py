"""The middleware. It reads the request's body, claims when the view is about to be called, and
records the answer when Django has made it: rendered, and with the transaction of ATOMIC_REQUESTS
committed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.handlers.exception import response_for_exception
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from oncekey._engine import attempt as attempts
from oncekey._engine.keyless import passing
from oncekey.web._decorators import check_kind, mark_on
from oncekey.web._views import ViewCall
from oncekey.web.django._claim import (
    RequestState,
    applies,
    check_method,
    claim,
    claim_sync,
    leave,
    prepare,
    prepare_async,
    state_of,
    views,
)
from oncekey.web.django._responses import collect, collect_sync, first, response_of, served_by
from oncekey.web.django.settings import tell_marks


class IdempotencyMiddleware:
    """Guards Django's views by `settings.ONCEKEY`. Put it last."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        views()  # so that wrong settings are told now
        # At the first request: by then the site's URLs can be imported.
        self._look_once = functools.cache(lambda: tell_marks(views()))
        self.get_response = get_response
        self.process_view: Callable[..., Any] = self._claim_sync
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self.process_view = self._claim

    def __call__(self, request: HttpRequest) -> Any:
        self._look_once()
        if iscoroutinefunction(self):
            return self._answer(request)
        state = prepare(request, awaited=False)
        if isinstance(state, HttpResponse):
            return state
        if state is not None:
            return state.closing_body(self._run_sync(request, state))
        unprotected = passing(functools.partial(applies, request), views().edge.store)
        with attempts.served(unprotected):
            return served_by(self.get_response(request), unprotected)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        state = await prepare_async(request)
        if isinstance(state, HttpResponse):
            return state
        if state is None:
            unprotected = passing(functools.partial(applies, request), views().edge.store)
            with attempts.served(unprotected):
                return served_by(await self.get_response(request), unprotected)
        # Django cancels what its client does not wait for any more. The view goes on.
        response = await views().runtime.background.apart(self._run(request, state))
        return state.closing_body(response)

    def _run_sync(self, request: HttpRequest, state: RequestState) -> HttpResponseBase:
        outer = attempts.position()
        try:
            response: HttpResponseBase = self.get_response(request)
            if state.visit is None:
                return state.serving_parts(response)
            return self._end_sync(response, state.visit, state.error)
        except BaseException as error:
            if state.visit is None:
                raise
            answer = views().fail_sync(state.visit, error)
            if answer is not None:
                return response_of(answer)
            if state.visit.given_up and isinstance(error, Exception):  # as Django answers it
                return _mark_failure(response_for_exception(request, error), state.visit)
            raise
        finally:
            leave(request, state)
            attempts.leave(outer)

    async def _run(self, request: HttpRequest, state: RequestState) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self.get_response(request)
            if state.visit is None:
                return state.serving_parts(response)
            return await self._end(response, state.visit, state.error)
        except BaseException as error:
            if state.visit is None:
                raise
            answer = await views().fail(state.visit, error)
            if answer is not None:
                return response_of(answer)
            if state.visit.given_up and isinstance(error, Exception):
                shown = sync_to_async(response_for_exception, thread_sensitive=False)
                return _mark_failure(await shown(request, error), state.visit)
            raise
        finally:
            leave(request, state)

    def _end_sync(
        self, response: HttpResponseBase, visit: ViewCall, error: Exception | None
    ) -> HttpResponseBase:
        if error is not None and response.status_code >= 500:
            answer = views().fail_sync(visit, error)
            return _mark_failure(response, visit) if answer is None else response_of(answer)
        rest = collect_sync(response, visit)
        return first(response, visit, views().end_sync(visit), rest)

    async def _end(
        self, response: HttpResponseBase, visit: ViewCall, error: Exception | None
    ) -> HttpResponseBase:
        if error is not None and response.status_code >= 500:
            answer = await views().fail(visit, error)
            return _mark_failure(response, visit) if answer is None else response_of(answer)
        rest = await collect(response, visit)
        return first(response, visit, await views().end(visit), rest)

    # ------------------------------------------------------------------------- called by Django

    def _claim_sync(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        state = state_of(request)
        if state is None:
            check_method(request)
        if state is None or _is_marked(request, view, state):
            return None
        return claim_sync(request, state, None)

    async def _claim(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        state = state_of(request)
        if state is None:
            check_method(request)
        if state is None or _is_marked(request, view, state):
            return None
        return await claim(request, state, None)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """An exception is no answer, whatever the status it is sent with."""
        if (state := state_of(request)) is not None:
            state.error = exception


def _mark_failure(response: HttpResponseBase, visit: ViewCall) -> HttpResponseBase:
    """What Django has made of an exception; marked, where nobody knows what the view did."""
    if visit.given_up:
        for name, value in views().edge.mark_unknown(()):
            response[name.decode().title()] = value.decode()
    return response


def _is_marked(request: HttpRequest, view: Any, state: RequestState) -> bool:
    """Whether the view is marked: it claims by itself, then."""
    mark = mark_on(view, request.method)
    if mark is None:
        state.unmarked = True
        return False
    check_kind(mark, view, "oncekey.web.django", claims=True)
    return True
