"""An application of SQLite whose handlers are cut off in the middle of statements, under load.

Run as a process of its own: what it is to show is that the process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import threading
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from oncekey import Policy, atomic, migrate, single_tenant
from oncekey.web.asgi import IdempotencyMiddleware
from tests.web.client import ask

SLOW = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 3000000) "
ROUNDS = 12
AT_ONCE = 4


def work(lent: Any, calls_python: bool) -> None:
    """What takes longer than its handler waits, and goes on writing after it."""
    raw = lent.connection().connection.driver_connection if hasattr(lent, "connection") else lent
    if calls_python:
        raw.create_function("same", 1, lambda n: n)
    chosen = "same(n)" if calls_python else "n"
    with contextlib.suppress(Exception):
        raw.execute(f"{SLOW}SELECT max({chosen}) FROM c").fetchall()
    for _ in range(20):
        with contextlib.suppress(Exception):
            raw.execute("INSERT INTO orders VALUES ('late')")


async def limited(request: Request) -> JSONResponse:
    lent, order = oncekey.current().connection, await request.json()
    try:
        async with asyncio.timeout(order["limit_s"]):
            await asyncio.to_thread(work, lent, order["python"])
    except TimeoutError:
        return JSONResponse({}, 504)
    return JSONResponse({}, 500)


async def quick(request: Request) -> JSONResponse:
    lent = oncekey.current().connection
    raw = lent.connection().connection.driver_connection if hasattr(lent, "connection") else lent
    raw.execute("INSERT INTO orders VALUES ('quick')")
    return JSONResponse({}, 201)


async def drive(app: Any, seed: int) -> int:
    """How many quick orders went through."""
    done = 0
    for round_ in range(ROUNDS):
        calls = []
        for each in range(AT_ONCE):
            number = f"{seed}-{round_}-{each}"
            order = {
                "limit_s": 0.01 * (1 + (round_ + each) % 5),
                "python": bool((round_ + each) % 2),
            }
            calls.append(ask(app, f"slow-{number}", order, path="/limited"))
            calls.append(ask(app, f"quick-{number}", {}, path="/quick"))
        for reply in await asyncio.gather(*calls):
            assert reply.status in (201, 503, 504), reply
            done += reply.status == 201
    return done


def main(path: str, kind: str, seed: int) -> None:
    url = f"sqlite:///{path}"
    migrate(url)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE orders (item TEXT)")
        db.commit()
    adapter: Any = atomic.Sqlite()
    if kind == "session":
        adapter = atomic.SQLAlchemy(sessionmaker(create_engine(url)))
    routes = [Route(f"/{each.__name__}", each, methods=["POST"]) for each in (limited, quick)]
    guarded = IdempotencyMiddleware(
        Starlette(routes=routes),
        store=url,
        tenant=single_tenant,
        policy=Policy(atomic=True, atomic_s_max=2.0),
        atomic=adapter,
    )

    async def run() -> int:
        done = await drive(guarded, seed)
        await guarded.close()
        return done

    done = asyncio.run(run())
    for thread in threading.enumerate():  # those that were left behind
        if thread.name.startswith("asyncio"):
            thread.join(30)
    with contextlib.closing(sqlite3.connect(path)) as db:
        items = [item for (item,) in db.execute("SELECT item FROM orders")]
    counted = {"done": done, "quick": items.count("quick"), "late": items.count("late")}
    sys.stdout.write(json.dumps(counted))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
