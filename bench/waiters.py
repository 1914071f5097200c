"""A thousand retries of one request that is still running."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import uvloop

from bench.machine import ForeignCpu
from bench.rounds import say
from bench.table import Goal, Row
from oncekey import Policy, single_tenant
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.web.asgi import IdempotencyMiddleware
from tests.servers import folders

RETRIES = 1_000
WAIT_S = 10.0
GOAL = Goal(WAIT_S, at_least=False, unit="s")
_CROWD_S = 0.5
"""How long the handler continues after all retries have arrived."""
_BODY = b'{"item": "tea"}'
_SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/orders",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json"), (b"idempotency-key", b"one-key")],
}


@dataclass(frozen=True, slots=True)
class Crowd:
    """What the retries got, and when."""

    statuses: Counter[int]
    refused_s: float
    """From the first retry until the last refusal of those for whom there was no room."""
    served_s: float
    """From the handler's end until the last answer."""


def rows() -> list[Row]:
    found = []
    for room in (100, RETRIES):
        foreign = ForeignCpu()
        crowd = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_crowd(room))
        served, refused = crowd.statuses[201], crowd.statuses[409]
        assert served == room, crowd
        assert served + refused == RETRIES, crowd
        what = f"{RETRIES:,} retries of a running request, room for {room:,} to wait"
        summary = f"{served} served, {refused} refused"
        say(f"{what}: {summary}, the last {crowd.served_s:.2f} s after the handler's end")
        found.append(
            Row(
                f"{what}: last answer after the handler's end",
                ours=summary,
                limit=f"refusals within {crowd.refused_s:.2f} s" if refused else "",
                value=crowd.served_s,
                goal=GOAL,
                unit="s",
                foreign_percent=foreign.percent(),
            )
        )
    return found


async def _crowd(room: int) -> Crowd:
    started, ended = asyncio.Event(), asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        await ended.wait()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    policy = Policy(
        in_flight="wait",
        wait_s=WAIT_S,
        waiters_per_key_max=room,
        waiters_max=RETRIES,
        recovery="block",
    )
    store = SqliteStore(folders.private("waiters") / "keys.db")
    app = IdempotencyMiddleware(handler, store=store, tenant=single_tenant, policy=policy)
    first = asyncio.create_task(_order(app))
    await started.wait()
    began = time.perf_counter()
    retries = [asyncio.create_task(_order(app)) for _ in range(RETRIES)]
    await _until_done(retries, RETRIES - room)
    refused_s = time.perf_counter() - began
    await asyncio.sleep(_CROWD_S)
    let_go = time.perf_counter()
    ended.set()
    statuses = Counter(await asyncio.gather(*retries))
    served_s = time.perf_counter() - let_go
    assert await first == 201
    await app.close()
    return Crowd(statuses, refused_s, served_s)


async def _until_done(tasks: list[asyncio.Task[int]], count: int) -> None:
    """Wait until that many tasks have ended."""
    ended = asyncio.as_completed(tasks, timeout=WAIT_S / 2)
    for _ in range(count):
        await next(ended)


async def _order(app: IdempotencyMiddleware) -> int:
    status = 0
    body = [{"type": "http.request", "body": _BODY, "more_body": False}]

    async def receive() -> Any:
        return body.pop()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(dict(_SCOPE), receive, send)
    return status
