"""The client that all connections of an event loop share is closed with the last of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncekey.stores.dynamodb.store import open_url

pytestmark = pytest.mark.anyio
URL = "dynamodb://key:secret@orders?region=eu-central-1&endpoint=http://127.0.0.1:1"


async def test_a_client_whose_last_connection_was_never_made_is_closed() -> None:
    """Otherwise its sockets stay open: the task that waited for it was cancelled."""
    driver: Any = open_url(URL)._driver
    first = await driver.aconnect()
    shared = driver._clients[asyncio.get_running_loop()]
    async with shared.creating:
        second = asyncio.create_task(driver.aconnect())
        await asyncio.sleep(0)
        assert len(shared.users) == 2
        await first.close()
        assert not shared.closed
        second.cancel()
        await asyncio.wait([second])
    assert second.cancelled()
    assert shared.closed
    third = await driver.aconnect()
    assert driver._clients[asyncio.get_running_loop()] is not shared
    await third.close()


async def test_one_that_could_not_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = open_url(URL)._driver

    async def fail() -> None:
        raise OSError("no description of the service")

    with monkeypatch.context() as broken:
        broken.setattr(driver, "_create_async_client", fail)
        with pytest.raises(OSError, match="no description"):
            await driver.aconnect()
    connection = await driver.aconnect()
    await connection.close()
