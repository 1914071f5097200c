"""Atomic mode by PostgreSQL's drivers: connections that break while they are lent."""

from __future__ import annotations

import asyncio

import pytest

from tests.atomic_shop import Opener, new_key, opener

__all__ = ["opener"]

pytestmark = pytest.mark.anyio


async def test_a_connection_that_its_pool_has_taken_back_has_nothing_to_roll_back(
    opener: Opener,
) -> None:
    """What fails here is told as a failure of the application, where it was an outage."""
    async with opener("asyncpg") as shop:
        transaction = await shop.adapter.begin(shop.app.edge.store, bytes(32), 1.0)
        transaction.connection.terminate()
        while transaction.connection._con is not None:  # noqa: ASYNC110  (the pool tells nobody)
            await asyncio.sleep(0)
        await transaction.rollback()
        assert (await shop.order(new_key())).status == 201
