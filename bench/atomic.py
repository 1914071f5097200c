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
from statistics import median
from typing import Any

import asyncpg
import uvloop

import oncekey
from bench import machine
from bench.limits import WAYS
from bench.postgres import start
from bench.rounds import Contender, Settings, contest
from bench.table import Goal, Row
from bench.work import RETENTION_S, migrate
from bench.work import claim as new_claim
from oncekey import Policy, atomic
from oncekey.core import lifecycle
from oncekey.core.record import Answer
from oncekey.stores import postgres as postgres_store
from oncekey.stores import postgres_atomic
from oncekey.web.asgi import IdempotencyMiddleware

TITLE = "PostgreSQL, 32 at a time, a transaction of five statements: atomic, against no key at all"
HAND_TITLE = "PostgreSQL, the same: atomic mode's two statements by hand, against no key at all"
CPU_TITLE = "PostgreSQL, the same: CPU time of client and server together"
GOAL = Goal(0.85)
TURNS = 4
ACCOUNTS = 10_000
# As small as a shop's tables can be that are not made for a benchmark: foreign keys, and an index
# for whatever is looked up.
TABLES = f"""
    CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
    INSERT INTO accounts SELECT n, 1000000 FROM generate_series(0, {ACCOUNTS - 1}) AS n;
    CREATE TABLE orders (
        id bigserial PRIMARY KEY,
        account int NOT NULL REFERENCES accounts,
        created timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX ON orders (account);
    CREATE TABLE lines (
        id bigserial PRIMARY KEY,
        order_id bigint NOT NULL REFERENCES orders,
        item text NOT NULL
    );
    CREATE INDEX ON lines (order_id);
    CREATE TABLE journal (
        id bigserial PRIMARY KEY,
        account int NOT NULL REFERENCES accounts,
        order_id bigint NOT NULL REFERENCES orders,
        amount bigint NOT NULL
    );
    CREATE INDEX ON journal (account);
"""
LOOK = "SELECT balance FROM accounts WHERE id = $1 FOR UPDATE"
DEBIT = "UPDATE accounts SET balance = balance - 2 WHERE id = $1"
ORDER = "INSERT INTO orders (account) VALUES ($1) RETURNING id"
LINES = "INSERT INTO lines (order_id, item) SELECT $1, unnest($2::text[])"
BOOK = "INSERT INTO journal (account, order_id, amount) VALUES ($1, $2, -2), ($1, $2, 2)"
BODY = json.dumps({"item": "tea", "quantity": 2, "note": "to be delivered before noon"}).encode()
ANSWER = Answer(201, ((b"content-type", b"application/json"),), b'{"id": 12345}')
_accounts = itertools.count(1)


async def order(connection: Any, item: str) -> int:
    """The five statements."""
    account = next(_accounts) % ACCOUNTS
    await connection.fetchval(LOOK, account)
    await connection.execute(DEBIT, account)
    number: int = await connection.fetchval(ORDER, account)
    await connection.execute(LINES, number, [item, "sugar", "milk"])
    await connection.execute(BOOK, account, number)
    return number


async def _answer(send: Any, number: int) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"id": %d}' % number})


def without(pool: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        item = json.loads((await receive())["body"])["item"]
        async with pool.acquire() as connection, connection.transaction():
            number = await order(connection, item)
        await _answer(send, number)

    return app


def by_hand(pool: Any) -> Any:
    """The two statements that atomic mode adds, and nothing else of it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        item = json.loads((await receive())["body"])["item"]
        claim = new_claim()
        held = lifecycle.Held(claim.id, 0, claim.token)
        complete = lifecycle.complete(held, ANSWER, retention_s=RETENTION_S)
        async with pool.acquire() as connection, connection.transaction():
            await _ask(connection, postgres_atomic.hold(claim))
            number = await order(connection, item)
            await _ask(connection, postgres_atomic.settle(claim, complete))
        await _answer(send, number)

    return app


async def _ask(connection: Any, op: Any) -> None:
    question = next(op)
    await connection.fetch(question.sql, *question.args)


def with_key(pool: Any, url: str) -> IdempotencyMiddleware:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        item = json.loads((await receive())["body"])["item"]
        await _answer(send, await order(oncekey.current().connection, item))

    return IdempotencyMiddleware(
        app,
        store=url,
        tenant=oncekey.single_tenant,
        policy=Policy(atomic=True),
        atomic=atomic.Asyncpg(pool),
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
    with start() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        migrate(postgres_store.open_url(server.url))
        pool = runner.run(_open(server.url))
        guarded = with_key(pool, server.url)
        numbers = itertools.count()
        plain, ours = _Crowd(without(pool), numbers), _Crowd(guarded, numbers)
        hand = _Crowd(by_hand(pool), numbers)
        contenders: dict[str, Contender] = {
            "without a key": lambda seconds: runner.run(plain.work(seconds)),
            "by hand": lambda seconds: runner.run(hand.work(seconds)),
            "atomic": lambda seconds: runner.run(ours.work(seconds)),
        }
        try:
            result = contest("PostgreSQL, atomic", contenders, settings, turns=TURNS)
        finally:
            runner.run(guarded.close())
            runner.run(pool.close())
        return [
            result.row(TITLE, "atomic", "without a key", GOAL),
            result.row(HAND_TITLE, "by hand", "without a key", None),
            _cpu_row(plain, ours),
        ]


def _cpu_row(plain: _Crowd, ours: _Crowd) -> Row:
    pairs = list(zip(plain.cpu_us[1:], ours.cpu_us[1:], strict=True))  # without the warm-up
    ratios = [theirs / mine for theirs, mine in pairs]
    return Row(
        CPU_TITLE,
        ours=f"{median(mine for _, mine in pairs):.0f} us",
        limit=f"{median(theirs for theirs, _ in pairs):.0f} us",
        value=median(ratios),
        low=min(ratios),
        high=max(ratios),
        steady=True,
    )


async def _open(url: str) -> Any:
    pool = await asyncpg.create_pool(url, min_size=WAYS, max_size=WAYS)
    await pool.execute(TABLES)
    return pool


def estimate_s(settings: Settings) -> float:
    return settings.estimate_s(3)
