"""Handed: what a handler was to await and did not is told, whichever edge runs it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from oncekey import Policy, Runtime, current, once, single_tenant
from oncekey.atomic import Sqlite
from oncekey.errors import Misuse
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.once_world import World
from tests.web.asgi_world import World as AsgiWorld
from tests.web.client import ask, ask_wsgi


def never(*_: Any) -> None:
    pytest.fail("nobody awaited it")


def forget(handed: object) -> None:
    """To await it."""


async def test_a_step_that_nobody_awaits_is_told_and_the_next_call_runs() -> None:
    world, forgetful = World(), [True]

    async def pay(x: int) -> str:
        if forgetful:
            forget(current().step("charge", never))
        return "paid"

    guarded = once(world.runtime, key="{x}", name="f")(pay)
    with pytest.raises(Misuse, match=r"step 'charge' of f was not awaited, and did not run"):
        await guarded(1)
    forgetful.clear()
    assert await guarded(1) == "paid"


def test_so_is_the_awaited_form_in_a_function_that_blocks() -> None:
    world = World()

    def pay(x: int) -> str:
        forget(current().step("charge", never))
        return "paid"

    with pytest.raises(Misuse, match=r"step_sync"):
        world.once(pay)(1)


def test_so_is_an_answer_that_was_to_be_recorded_in_a_transaction() -> None:
    world = World()

    def pay(x: int) -> str:
        forget(current().complete_in(None, 201))
        return "paid"

    with pytest.raises(Misuse, match=r"complete_in\(…\) of f was not awaited"):
        world.once(pay)(1)


async def test_a_request_whose_step_nobody_awaits_fails_and_its_retry_runs() -> None:
    world = AsgiWorld()

    async def forgetful(receive: Any, send: Any) -> None:
        forget(current().step("charge", never))
        await world.answer_with({"ok": True})(receive, send)

    world.handler = forgetful
    with pytest.raises(Misuse, match="was not awaited"):
        await ask(world.app, "k1")
    world.handler = world.counting()
    assert (await ask(world.app, "k1")).json() == {"run": 2}


def test_where_its_handler_blocks_too() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        forget(current().step("charge", never))
        start_response("200 OK", [])
        return [b"paid"]

    guarded = IdempotencyMiddleware(app, store="memory://", tenant=single_tenant)
    with pytest.raises(Misuse, match="was not awaited"):
        ask_wsgi(guarded, "k1")
    guarded.close()


def test_in_atomic_mode_nothing_is_committed(tmp_path: Path) -> None:
    file = tmp_path / "keys.db"
    with sqlite3.connect(file) as rows:
        rows.execute("CREATE TABLE orders (id TEXT)")
    rows.close()

    def app(environ: Any, start_response: Any) -> list[bytes]:
        current().connection.execute("INSERT INTO orders VALUES ('o')")
        forget(current().step("charge", never))
        start_response("200 OK", [])
        return [b"paid"]

    guarded = IdempotencyMiddleware(
        app,
        store=f"sqlite:///{file}",
        tenant=single_tenant,
        policy=Policy(atomic=True),
        atomic=Sqlite(),
    )
    with pytest.raises(Misuse, match="was not awaited"):
        ask_wsgi(guarded, "k1")
    guarded.close()
    rows = sqlite3.connect(file)
    assert rows.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    rows.close()


async def test_a_step_that_was_called_off_before_it_began_was_not_forgotten() -> None:
    async def pay(x: int) -> str:
        charging = asyncio.ensure_future(current().step("charge", never))
        charging.cancel()
        await asyncio.wait([charging])
        return "called off"

    async with Runtime("memory://") as runtime:
        assert await once(runtime, key="{x}", name="f")(pay)(1) == "called off"


async def test_what_is_handed_out_is_not_gathered() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def pay(x: int) -> str:
        for _ in range(10):
            with pytest.raises(ZeroDivisionError):
                await current().step("charge", fail)
        handed = current().handed
        assert handed is not None
        assert len(handed) <= 1
        return "paid"

    async with Runtime("memory://") as runtime:
        assert await once(runtime, key="{x}", name="f")(pay)(1) == "paid"
