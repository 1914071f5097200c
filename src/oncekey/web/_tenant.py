"""The tenant function: from a request to the stable account that it belongs to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from oncekey.errors import Misuse
from oncekey.web._request import Request

Tenant = Callable[[Request], Any]


def single_tenant(request: object) -> str:
    """For an application that has no accounts: everybody shares one namespace of keys."""
    return "single"


def check_callable(tenant: object) -> None:
    """`Misuse` for what cannot be called with a request, such as the name of an account."""
    if not callable(tenant) or isinstance(tenant, type):
        raise Misuse(
            "tenant=… takes a function from the request to the stable id of its account, never "
            "a token or an address; tenant=oncekey.single_tenant says that there is only one"
        )
    if inspect.isgeneratorfunction(tenant) or inspect.isasyncgenfunction(tenant):
        raise Misuse(
            f"tenant={getattr(tenant, '__name__', tenant)} yields, and is no dependency of a "
            "framework: let it return the stable id of the account"
        )
    try:
        inspect.signature(tenant).bind(None)
    except TypeError:
        raise Misuse(
            f"tenant={getattr(tenant, '__name__', tenant)} is called with the request alone, and "
            "cannot be: write a function that takes one argument"
        ) from None
    except ValueError:  # written in C
        return


def check_sync(tenant: object) -> None:
    """`Misuse` for what must be awaited, where nobody does that."""
    check_callable(tenant)
    if any(map(inspect.iscoroutinefunction, (tenant, getattr(tenant, "__call__", None)))):  # noqa: B004
        raise Misuse("tenant=… is async, and a WSGI application is not: write it with def")
