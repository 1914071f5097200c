"""The tenant function, as it is given."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from oncekey import Misuse
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware as AsgiMiddleware
from oncekey.web.fastapi import Idempotency
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware


async def awaited(request: object) -> str:
    return "acme"


class Accounts:
    async def __call__(self, request: object) -> str:
        return "acme"


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError(scope)


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    return []


TAKES = [
    functools.partial(AsgiMiddleware, asgi),
    functools.partial(IdempotencyMiddleware, wsgi),
    Idempotency,
    Oncekey,
]
"""Those who take settings."""
IDS = ["asgi", "wsgi", "fastapi", "flask"]


@pytest.mark.parametrize("tenant", [awaited, Accounts()])
@pytest.mark.parametrize("take", TAKES[1::2], ids=IDS[1::2])
def test_what_must_be_awaited_is_refused_where_nobody_awaits(
    take: Callable[..., Any], tenant: Any
) -> None:
    with pytest.raises(Misuse, match="tenant=… is async, and a WSGI application is not"):
        take(store="memory://", tenant=tenant)


def nothing() -> str:
    return "acme"


def two(request: object, account: str) -> str:
    return account


@pytest.mark.parametrize("tenant", [nothing, two, lambda: "acme"])
@pytest.mark.parametrize("take", TAKES, ids=IDS)
def test_what_cannot_be_called_with_a_request_is_refused(
    take: Callable[..., Any], tenant: Any
) -> None:
    with pytest.raises(Misuse, match="is called with the request alone"):
        take(store="memory://", tenant=tenant)


def yielding(request: object) -> Iterator[str]:
    yield "acme"


async def yielding_awaited(request: object) -> AsyncIterator[str]:
    yield "acme"


@pytest.mark.parametrize("tenant", [yielding, yielding_awaited])
@pytest.mark.parametrize("take", TAKES, ids=IDS)
def test_one_that_yields_returns_no_account(take: Callable[..., Any], tenant: Any) -> None:
    with pytest.raises(Misuse, match="yields, and is no dependency of a framework"):
        take(store="memory://", tenant=tenant)


@pytest.mark.parametrize("tenant", [str, Accounts])
@pytest.mark.parametrize("take", TAKES, ids=IDS)
def test_a_class_is_no_tenant_function(take: Callable[..., Any], tenant: Any) -> None:
    with pytest.raises(Misuse, match="tenant=… takes a function"):
        take(store="memory://", tenant=tenant)


@pytest.mark.parametrize("take", TAKES, ids=IDS)
def test_a_store_is_given_and_not_its_class(take: Callable[..., Any]) -> None:
    with pytest.raises(Misuse, match="a store is named by its URL"):
        take(store=MemoryStore, tenant=lambda request, by="x-account": request.headers[by])
