"""What the type checkers of users see; `./dev check` looks at it too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

import httpx2
import pytest

import oncekey
from oncekey import Attempt, Runtime, once
from oncekey.client import AsyncClient, Client

pytestmark = pytest.mark.anyio


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime("memory://") as runtime:
        yield runtime


def price(item: str) -> int:
    return len(item)


async def reserve(item: str) -> dict[str, int]:
    return {item: 1}


def test_what_a_step_gives_is_what_its_function_gives(runtime: Runtime) -> None:
    @once(runtime, key="{item}")
    def order(item: str) -> int:
        attempt = assert_type(oncekey.current(), Attempt)
        return assert_type(attempt.step_sync("price", price, item), int)

    assert assert_type(order("tea"), int) == 3


async def test_what_an_awaited_step_gives_is_what_its_function_gives() -> None:
    async with Runtime("memory://") as runtime:

        @once(runtime, key="{item}")
        async def order(item: str) -> int:
            attempt = oncekey.current()
            reserved = assert_type(await attempt.step("reserve", reserve, item), dict[str, int])
            return reserved[item] * assert_type(await attempt.step("price", price, item), int)

        assert assert_type(await order("tea"), int) == 3


def answered(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(201)


async def test_what_a_client_gives_is_its_library_s() -> None:
    transport = httpx2.MockTransport(answered)
    with Client(transport=transport) as api:
        answer = assert_type(api.post("https://api.example/orders"), httpx2.Response)
    assert answer.status_code == 201
    async with AsyncClient(transport=transport) as aapi:
        answer = assert_type(await aapi.post("https://api.example/orders"), httpx2.Response)
    assert answer.status_code == 201
