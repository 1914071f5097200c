"""Connections for handlers when the pool has none left."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.atomic.shop import Opener, Shop, kinds_as_params, new_key, opener

__all__ = ["opener"]

pytestmark = pytest.mark.anyio

POOL = 4
"""As many connections as the pools of the shop have."""


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "async psycopg", "psycopg", "asyncmy"))
async def test_p11_a_full_pool_is_not_waited_for_without_end(opener: Opener, kind: str) -> None:
    async with opener(kind) as shop:
        adapter: Any = shop.adapter
        shop.app.edge.adapter = type(adapter)(adapter._pool, acquire_s_max=0.05)
        lent = [await _taken(shop) for _ in range(POOL)]
        key = new_key()

        refused = await shop.order(key)
        assert (refused.status, refused.kind, shop.runs) == (503, "store-unavailable", 0)

        for each in lent:
            await _awaited(each.rollback())
        assert (await shop.order(key)).status == 201
        assert shop.orders() == shop.runs == 1


async def _taken(shop: Shop) -> Any:
    return await _awaited(shop.adapter.begin(shop.app.edge.store, bytes(32), 5.0))


async def _awaited(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given
