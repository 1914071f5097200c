"""Atomic mode: a business transaction of five statements, with a key and without one.

Both are the same handler behind the same interface, called in one process by 32 callers at a time.
Without oncekey the application begins and commits by itself; with it the middleware does, and keeps
the answer in the same transaction.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvloop

import oncekey
from bench import machine
from bench.limits import WAYS
from bench.rounds import WARMED_UP, Contender, Settings, contest, cpu_row
from bench.shops import SHOPS, PostgresShop, Shop
from bench.subject import try_rows
from bench.table import Goal, Row
from bench.work import RETENTION_S, migrate
from bench.work import claim as new_claim
from oncekey import Policy, open_store
from oncekey._core import lifecycle
from oncekey._core.op import arun
from oncekey._core.record import Answer
from oncekey.web.asgi import IdempotencyMiddleware

TITLE = "{}, 32 at a time, a transaction of five statements: atomic, against no key at all"
HAND_TITLE = "{}, the same: atomic mode's own statements by hand, against no key at all"
CPU_TITLE = "{}, the same: CPU time of client and server together"
GOALS = {PostgresShop.name: Goal(0.85)}
TURNS = 4
BODY = json.dumps({"item": "tea", "quantity": 2, "note": "to be delivered before noon"}).encode()
ANSWER = Answer(201, ((b"content-type", b"application/json"),), b'{"id": 12345}')


async def _answer(send: Any, number: int) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"id": %d}' % number})


def without(shop: Shop) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        item = json.loads((await receive())["body"])["item"]
        async with shop.transaction() as connection:
            number = await shop.order(connection, item)
        await _answer(send, number)

    return app


def by_hand(shop: Shop) -> Any:
    """The statements that atomic mode adds, and nothing else of it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        item = json.loads((await receive())["body"])["item"]
        claim = new_claim()
        held = lifecycle.Held(claim.id, 0, claim.token)
        complete = lifecycle.complete(held, ANSWER, retention_s=RETENTION_S)
        async with shop.transaction() as connection:
            ask = shop.asker(connection)
            await arun(shop.verbs.hold(claim), ask)
            number = await shop.order(connection, item)
            await arun(shop.verbs.insert_completed(claim, complete), ask)
        await _answer(send, number)

    return app


def with_key(shop: Shop, url: str) -> IdempotencyMiddleware:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        item = json.loads((await receive())["body"])["item"]
        await _answer(send, await shop.order(oncekey.current().connection, item))

    return IdempotencyMiddleware(
        app,
        store=url,
        tenant=oncekey.single_tenant,
        policy=Policy(atomic=True),
        atomic=shop.adapter,
    )


async def _call(app: Any, number: int) -> None:
    """One request, and that it was answered."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(BODY)),
        (b"idempotency-key", b"8e03978e-40d5-43e8-bc93-%012d" % number),
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/orders",
        "query_string": b"",
        "headers": headers,
    }
    await app(scope, receive, send)
    assert statuses == [201], statuses


class _Crowd:
    """Callers on one event loop; what their work costs is counted on both sides."""

    def __init__(self, app: Any, numbers: Iterator[int]) -> None:
        self._app, self._numbers = app, numbers
        self.cpu_us: list[float] = []

    async def work(self, seconds: float) -> float:
        done, started, cpu_s = 0, time.monotonic(), machine.own_s()
        end = started + seconds

        async def caller() -> None:
            nonlocal done
            while time.monotonic() < end:
                await _call(self._app, next(self._numbers))
                done += 1

        await asyncio.gather(*(caller() for _ in range(WAYS)))
        self.cpu_us.append((machine.own_s() - cpu_s) / done * 1e6)
        return done / (time.monotonic() - started)


def rows(settings: Settings) -> list[Row]:
    return [
        row
        for kind in SHOPS
        for row in try_rows(
            TITLE.format(kind.name), partial(_rows, kind, settings), GOALS.get(kind.name)
        )
    ]


def _rows(kind: type[Shop], settings: Settings) -> list[Row]:
    with kind.start() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        migrate(open_store(server.url))
        shop = runner.run(kind.open(server.url))
        guarded = with_key(shop, server.url)
        numbers = itertools.count()
        plain, ours = _Crowd(without(shop), numbers), _Crowd(guarded, numbers)
        hand = _Crowd(by_hand(shop), numbers)
        contenders: dict[str, Contender] = {
            "without a key": lambda seconds: runner.run(plain.work(seconds)),
            "by hand": lambda seconds: runner.run(hand.work(seconds)),
            "atomic": lambda seconds: runner.run(ours.work(seconds)),
        }
        try:
            result = contest(f"{kind.name}, atomic", contenders, settings, turns=TURNS)
        finally:
            runner.run(guarded.close())
            runner.run(shop.close())
        goal = GOALS.get(kind.name)
        return [
            result.row(TITLE.format(kind.name), "atomic", "without a key", goal),
            result.row(HAND_TITLE.format(kind.name), "by hand", "without a key", None),
            cpu_row(CPU_TITLE.format(kind.name), ours.cpu_us[WARMED_UP:], plain.cpu_us[WARMED_UP:]),
        ]


def estimate_s(settings: Settings) -> float:
    return len(SHOPS) * settings.estimate_s(3)
