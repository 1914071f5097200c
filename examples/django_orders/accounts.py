"""Who asks, and what they may."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, JsonResponse

ACCOUNTS = {"Bearer ann-1": "ann", "Bearer ann-2": "ann", "Bearer bob-1": "bob"}
MAY_ORDER = {"ann"}


class SignInMiddleware:
    """Stands for Django's own authentication: it runs before any key is looked at."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        request.account = ACCOUNTS.get(request.headers.get("Authorization", ""))
        if request.account is None:
            return self._refuse() if iscoroutinefunction(self) else _sign_in()
        return self.get_response(request)

    async def _refuse(self) -> JsonResponse:
        return _sign_in()


def _sign_in() -> JsonResponse:
    return JsonResponse({"error": "sign in first"}, status=401)


def may_order(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if request.account not in MAY_ORDER:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return wrapper


def account_of(request: HttpRequest) -> str:
    """The account, not its token: a key belongs to `ann`, with whichever token she comes."""
    account: str = request.account
    return account
