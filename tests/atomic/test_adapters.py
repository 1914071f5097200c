"""Atomic mode: claim, business rows and answer commit together or not at all, on every adapter."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oncekey._core.record import State
from tests.atomic.shop import (
    AT_ONCE_S,
    KINDS,
    MARIADB,
    POSTGRES,
    SQLITE,
    Shop,
    kinds_as_params,
    place_of,
)

pytestmark = pytest.mark.anyio
LEASE_S = 30.0


# Where adapters do not differ, one of each family will do.
few = pytest.mark.parametrize(
    "shop",
    kinds_as_params(
        *("asyncpg", "Session", "Django", "sqlite3", "sqlite3 in threads"),
        *("asyncmy", "Session on PyMySQL", "Django on PyMySQL"),
    ),
    indirect=True,
)


@pytest.fixture(params=kinds_as_params(*POSTGRES, *SQLITE, *MARIADB))
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    place = place_of(request.param, request, tmp_path)
    async with KINDS[request.param][1](place.url.partition("?")[0]) as adapter:
        shop = Shop(request.param, place, adapter)
        yield shop
        await shop.close()


def new_key() -> str:
    return str(uuid.uuid4())


async def test_p3_rows_and_answer_are_there_together_and_replayed(shop: Shop) -> None:
    key = new_key()
    first = await shop.order(key)
    again = await shop.order(key)
    assert (first.status, first.body, first.replayed) == (201, b"run 1", False)
    assert (again.status, again.body, again.replayed) == (201, b"run 1", True)
    found = shop.look(key)
    assert found is not None
    assert (found.state, found.attempt, found.lapses) == (State.COMPLETED, 1, 0)
    assert found.fence > 0
    assert shop.orders() == shop.runs == 1


@few
async def test_a_kept_4xx_commits_its_rows_too(shop: Shop) -> None:
    key = new_key()
    assert (await shop.order(key, status=422)).status == 422
    assert (await shop.order(key, status=422)).replayed
    assert shop.orders() == shop.runs == 1


@few
@pytest.mark.parametrize("status", [409, 500])
async def test_what_is_not_kept_leaves_nothing(shop: Shop, status: int) -> None:
    key = new_key()
    assert (await shop.order(key, status=status)).status == status
    assert shop.look(key) is None
    assert shop.orders() == 0
    assert (await shop.order(key)).body == b"run 2"
    assert shop.orders() == 1


@few
async def test_a_handler_that_raises_leaves_nothing(shop: Shop) -> None:
    key = new_key()
    with pytest.raises(RuntimeError, match="the handler failed"):
        await shop.order(key, fail=True)
    assert shop.look(key) is None
    assert shop.orders() == 0
    assert (await shop.order(key, fail=False)).status == 201


async def test_a_concurrent_duplicate_is_told_in_flight_at_once(shop: Shop) -> None:
    key = new_key()
    first = asyncio.create_task(shop.order(key, stand=True))
    await shop.gate.wait()
    started = time.monotonic()
    second = await shop.order(key, stand=True)
    took_s = time.monotonic() - started
    shop.gate.opened.set()
    assert (second.status, second.kind) == (409, "in-flight")
    assert took_s < AT_ONCE_S
    assert (await first).status == 201
    assert (await shop.order(key, stand=True)).replayed
    assert shop.orders() == shop.runs == 1


@few
async def test_p5_another_request_is_told_apart_once_the_first_has_committed(shop: Shop) -> None:
    key = new_key()
    await shop.order(key)
    other = await shop.order(key, item="coffee")
    assert (other.status, other.kind) == (422, "mismatch")
    assert shop.runs == 1


async def test_a_crowd_of_replays_gets_the_answer(shop: Shop) -> None:
    """Nobody who asks for a finished operation is told that it is in flight."""
    key = new_key()
    await shop.order(key)
    shop.app.edge.recent.seconds = 0
    replies = await asyncio.gather(*(shop.order(key) for _ in range(12)))
    assert {(reply.status, reply.replayed) for reply in replies} == {(201, True)}


async def test_every_connection_is_given_back(shop: Shop) -> None:
    """More requests than the pool has connections, of every outcome."""
    for status in (201, 422, 500, 409, 201, 500):
        key = new_key()
        await shop.order(key, status=status)
        await shop.order(key, status=status)
    with pytest.raises(RuntimeError):
        await shop.order(new_key(), fail=True)
    assert (await shop.order(new_key())).status == 201
