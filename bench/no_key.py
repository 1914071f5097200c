"""What the middleware costs a request that brings no key, in CPU time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from bench.machine import ForeignCpu
from bench.rounds import say
from bench.table import Goal, Row
from oncekey import single_tenant
from oncekey.web.asgi import IdempotencyMiddleware

CALLS = 2_000
GOAL = Goal(2.0, at_least=False, unit="µs")
_HEADERS = [
    (b"host", b"shop.example"),
    (b"user-agent", b"curl/8.5.0"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, br"),
    (b"authorization", b"Bearer 0123456789abcdef0123456789abcdef"),
    (b"content-type", b"application/json"),
    (b"content-length", b"64"),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]

App = Callable[[Any, Any, Any], Awaitable[None]]


async def _bare(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def _nowhere(message: Any) -> None:
    return None


def _call(app: App, scope: dict[str, Any]) -> None:
    """Run it to its end, which it reaches without waiting for anything."""
    try:
        app(scope, None, _nowhere).__await__().send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


def _us_per_call(app: App, method: str) -> float:
    scope = {
        "type": "http",
        "method": method,
        "path": "/orders",
        "query_string": b"",
        "headers": _HEADERS,
    }
    started = time.process_time_ns()
    for _ in range(CALLS):
        _call(app, scope)
    return (time.process_time_ns() - started) / 1000 / CALLS


def rows(pairs: int) -> list[Row]:
    guarded = IdempotencyMiddleware(_bare, store="memory://", tenant=single_tenant)
    return [_row(guarded, method, pairs) for method in ("POST", "GET")]


def _row(guarded: App, method: str, pairs: int) -> Row:
    what = f"{method} without a key, added CPU"
    foreign = ForeignCpu()
    _us_per_call(guarded, method)
    costs = []
    for number in range(pairs):
        apps = (_bare, guarded) if number % 2 else (guarded, _bare)
        cost = {app: _us_per_call(app, method) for app in apps}
        costs.append((cost[_bare], cost[guarded]))
    added = [with_ - without for without, with_ in costs]
    say(f"{what}: {median(added):.2f} µs")
    return Row(
        what,
        ours=f"{median(with_ for _, with_ in costs):.2f} µs",
        limit=f"{median(without for without, _ in costs):.2f} µs",
        value=median(added),
        goal=GOAL,
        unit="µs",
        foreign_percent=foreign.percent(),
        steady=True,
    )
