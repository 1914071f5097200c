"""Executor: performs a handler's actions, in an event loop or in a thread, with rows or without."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from oncekey import current
from oncekey._core.op import Pause
from oncekey.messaging import Outbox
from soak.drivers import Awaited, Blocking
from soak.handler import JSON, Action, AnswerWithin, Row, Step, StepWithin, Write, encode

TOPIC = "orders"


class Executor:
    """The executor of one worker. `driver` and `outbox` are None if there are no rows."""

    def __init__(self, driver: Blocking | Awaited | None, outbox: Outbox | None) -> None:
        self._driver = driver
        self._outbox = outbox

    async def do(self, action: Action) -> None:
        match action:
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Step(name, effect, at_most_once):
                await current().step(name, effect, at_most_once=at_most_once)
            case _ if isinstance(self._driver, Awaited):
                await self._commit(self._driver, action)
            case _:
                await asyncio.to_thread(self.do_sync, action)

    async def _commit(self, driver: Awaited, action: Write | StepWithin | AnswerWithin) -> None:
        if isinstance(action, Write):
            await self._write(driver, current().connection, action.row)
            return
        async with driver.transaction() as connection:
            write = partial(self._write, driver, connection, action.row)
            if isinstance(action, StepWithin):
                await current().step("order", write, within=connection)
            else:
                await write()
                await current().complete_in(connection, 201, encode(action.answer), JSON)

    async def _write(self, driver: Awaited, connection: Any, row: Row) -> None:
        assert self._outbox is not None
        await driver.execute(connection, _insert(row))
        await self._outbox.put(connection, TOPIC, _content(row), key=row.id.account)

    def do_sync(self, action: Action) -> None:
        match action:
            case Pause(seconds):
                time.sleep(seconds)
            case Step(name, effect, at_most_once):
                current().step_sync(name, effect, at_most_once=at_most_once)
            case _:
                assert isinstance(self._driver, Blocking)
                self._commit_sync(self._driver, action)

    def _commit_sync(self, driver: Blocking, action: Write | StepWithin | AnswerWithin) -> None:
        if isinstance(action, Write):
            self._write_sync(driver, current().connection, action.row)
            return
        with driver.transaction() as connection:
            write = partial(self._write_sync, driver, connection, action.row)
            if isinstance(action, StepWithin):
                current().step_sync("order", write, within=connection)
            else:
                write()
                current().complete_in_sync(connection, 201, encode(action.answer), JSON)

    def _write_sync(self, driver: Blocking, connection: Any, row: Row) -> None:
        assert self._outbox is not None
        driver.execute(connection, _insert(row))
        self._outbox.put_sync(connection, TOPIC, _content(row), key=row.id.account)


def _content(row: Row) -> dict[str, Any]:
    return {"id": row.id, "run": row.run, "part": row.part}


def _insert(row: Row) -> str:
    values = ", ".join(f"'{value}'" for value in (*row.id, row.run, row.part))
    return f"INSERT INTO effects (account, route, name, run, part) VALUES ({values})"
