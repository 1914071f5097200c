"""DynamoDB's protocol, on an emulator: the library against the driver's own conditional writes.

An emulator says nothing of DynamoDB's speed: it serves one request at a time, and is the slower the
more items there are, so each contender begins with an empty table. What is compared is what the
library adds to a conditional write of the same item, by the same driver.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import aiobotocore.session
from aiobotocore.config import AioConfig

from bench.limits import WAYS
from bench.rounds import Contender, Settings, contest
from bench.table import Goal, Row
from bench.work import ALONE_SHARE, ALONE_TURNS, NEW, Item, Library, claim, migrate
from oncekey.stores.dynamodb import store as dynamodb_store
from oncekey.stores.dynamodb.items import new_item
from tests.servers import Ministack, start_ministack
from tests.servers.ministack import table_url

TABLE = "oncekey-bench"
INSERTS = f"DynamoDB's emulator, {WAYS} at a time, inserts"
ALONE = "DynamoDB's emulator, alone, insert new"
GOAL = Goal(1.1, at_least=False, of_time=True)
_PER_S = 400


def rows(settings: Settings) -> list[Row]:
    with start_ministack() as server:
        store = dynamodb_store.open_url(table_url(server.url, TABLE))
        migrate(store)
        with Library(store) as library:
            raw = _Raw(server, library, lambda: migrate(store))
            try:
                return [*_crowd_rows(library, raw, settings), *_alone_rows(library, raw, settings)]
            finally:
                raw.close()


def estimate_s(settings: Settings) -> float:
    return settings.estimate_s(3) + settings.estimate_s(2, ALONE_SHARE)


def _crowd_rows(library: Library, raw: _Raw, settings: Settings) -> list[Row]:
    contenders: dict[str, Contender] = {
        "conditional write": raw.on_empty(lambda seconds: library.crowd(raw.put, seconds)),
        "store verbs": raw.on_empty(lambda seconds: library.crowd(library.insert, seconds)),
        "Guard": raw.on_empty(lambda seconds: library.crowd(library.begin, seconds)),
    }
    result = contest(INSERTS, contenders, settings)
    return [
        result.row(f"{INSERTS}: {name}", name, "conditional write", GOAL)
        for name in ("store verbs", "Guard")
    ]


def _alone_rows(library: Library, raw: _Raw, settings: Settings) -> list[Row]:
    def items(seconds: float) -> list[Item]:
        return [Item(claim()) for _ in range(max(20, int(seconds * _PER_S)))]

    contenders: dict[str, Contender] = {
        "library": raw.on_empty(
            lambda seconds: library.alone([item.verb(NEW) for item in items(seconds)])
        ),
        "driver": raw.on_empty(
            lambda seconds: library.median_rate(lambda _: raw.put(), items(seconds))
        ),
    }
    result = contest(ALONE, contenders, settings, share=ALONE_SHARE, turns=ALONE_TURNS)
    return [result.row(ALONE, "library", "driver", GOAL)]


class _Raw:
    """The driver by itself, on the library's event loop: an item of the same size each time."""

    def __init__(self, server: Ministack, library: Library, make: Callable[[], None]) -> None:
        self._url = server.url
        self._library = library
        self._stack = AsyncExitStack()
        self._client: Any = library.run(self._open())
        self._make = make

    def on_empty(self, run: Contender) -> Contender:
        def begin(seconds: float) -> float:
            self._library.run(self._client.delete_table(TableName=TABLE))
            self._make()
            return run(seconds)

        return begin

    async def _open(self) -> Any:
        client = aiobotocore.session.AioSession().create_client(
            "dynamodb",
            region_name="us-east-1",
            endpoint_url=self._url,
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106
            config=AioConfig(max_pool_connections=WAYS),
        )
        return await self._stack.enter_async_context(client)

    async def put(self) -> None:
        await self._client.put_item(
            TableName=TABLE,
            Item=new_item(claim(), *(1_800_000_000_000_000,) * 3),
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )

    def close(self) -> None:
        self._library.run(self._stack.aclose())
