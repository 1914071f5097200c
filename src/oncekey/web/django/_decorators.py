"""Marks on views: one that is marked claims by itself, where the mark stands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest

from oncekey._core.policy import Policy
from oncekey.errors import Misuse
from oncekey.web import _decorators as marks
from oncekey.web._decorators import SAFE, Mark, mark_of, name_of, not_idempotent
from oncekey.web.django._claim import RequestState, claim, claim_sync, state_of
from oncekey.web.django.settings import MIDDLEWARE

__all__ = ["idempotent", "not_idempotent"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def idempotent(policy: F) -> F: ...
@overload
def idempotent(policy: Policy | None = None) -> Callable[[F], F]: ...
def idempotent(policy: Any = None) -> Any:
    """Guard this view when it is called, by these rules over the application's. Decorators above
    this one run before. For a class: `@method_decorator(idempotent, name="post")`.
    """
    if callable(policy) and not isinstance(policy, Policy):
        return idempotent()(policy)
    mark = Mark(marks.rules(policy), claims=True)

    def decorate(view: F) -> F:
        if isinstance(view, type):
            raise Misuse(
                f"{view.__name__} is a class: write @method_decorator(idempotent, name='dispatch')"
            )
        claim_and_view = _guarded_async(view) if iscoroutinefunction(view) else _guard(view)
        return cast(F, marks.put(claim_and_view, mark))

    return decorate


def _guard(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def claim_and_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        state = _state(request, view)
        answer = None if state is None else claim_sync(request, state, mark_of(claim_and_view))
        return view(request, *args, **kwargs) if answer is None else answer

    return claim_and_view


def _guarded_async(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    async def claim_and_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        state = _state(request, view)
        answer = None if state is None else await claim(request, state, mark_of(claim_and_view))
        return await view(request, *args, **kwargs) if answer is None else answer

    return claim_and_view


def _state(request: HttpRequest, view: Callable[..., Any]) -> RequestState | None:
    name = name_of(view)
    if not hasattr(request, "method"):
        raise Misuse(f"{name} is a method of a class: write @method_decorator(idempotent)")
    state = state_of(request)
    if state is None and request.method not in SAFE:
        raise Misuse(f"{name} is @idempotent, but MIDDLEWARE has no {MIDDLEWARE!r}")
    if state is not None and state.unmarked:
        raise marks.hidden_mark(view)
    return state
