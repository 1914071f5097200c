"""The application under attack: a handler for each kind of recovery, behind the middleware.

python -m soak.application asgi|wsgi ENGINE STORE_URL LEDGER LISTENING_FD

The handler is written once, as the engine is: a generator that yields what it wants done. An event
loop and a thread each have their way to do it.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
import werkzeug
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from werkzeug.serving import make_server

from oncekey import Policy, atomic, current, open_store
from oncekey.core.op import Op, Pause, arun, run
from oncekey.events import Event, Started
from oncekey.recoverer import Recoverer
from oncekey.stores.base import Store
from oncekey.web import asgi, wsgi
from soak import engines
from soak.ledger import Ledger

LEASE_S = 1.5
BEAT_S = 0.3
STEPS = ("authorise", "capture", "mail")

Answer = tuple[dict[str, Any], int]


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    effect: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Write:
    statement: str


_claimed_at: ContextVar[float] = ContextVar("claimed_at")


def watch(event: Event) -> None:
    """Told within the request, as soon as the reply to its claim is there."""
    if isinstance(event, Started):
        _claimed_at.set(time.monotonic())


def handle(ledger: Ledger, order: dict[str, Any]) -> Op[Answer]:
    """One run: it takes its time, fails if it is told to, and leaves lines in the ledger."""
    attempt, run, claimed_at = current(), uuid.uuid4().hex, _claimed_at.get()

    def note(what: str, step: str = "") -> None:
        ledger.note(what, attempt, run, claimed_at, step)

    note("begin")
    try:
        if attempt.policy.atomic:
            row = f"'{attempt.tenant}', '{attempt.key}', '{run}'"
            yield Write(f"INSERT INTO effects (account, name, run) VALUES ({row})")
        if attempt.policy.recovery == "resume":
            for name in STEPS:
                yield Step(name, partial(note, "effect", name))
                note("kept", name)
                yield Pause(order["seconds"] / len(STEPS))
        else:
            for beat in range(math.ceil(order["seconds"] / BEAT_S)):
                yield Pause(min(BEAT_S, order["seconds"] - beat * BEAT_S))
                note("beat")
        if attempt.attempt <= order["failures"]:
            raise RuntimeError("as ordered")
    except Exception as error:
        note("failed")
        return {"error": repr(error)}, 500
    note("end")
    return {"order": order["name"], "run": run}, 201


async def do(wanted: Pause | Step | Write) -> None:
    match wanted:
        case Pause():
            await asyncio.sleep(wanted.seconds)
        case Step():
            await current().step(wanted.name, wanted.effect)
        case Write():
            await asyncio.to_thread(current().connection.cursor().execute, wanted.statement)


def do_sync(wanted: Pause | Step | Write) -> None:
    match wanted:
        case Pause():
            time.sleep(wanted.seconds)
        case Step():
            current().step_sync(wanted.name, wanted.effect)
        case Write():
            current().connection.cursor().execute(wanted.statement)


def guarding(store: Store, engine: str, url: str) -> dict[str, Any]:
    """How the middleware is set, of either kind."""
    # As often as it takes: that lapses end in an unknown outcome has tests of its own.
    lapses_max = 10_000
    policies = {
        "rerun": Policy(recovery="rerun", lease_s=LEASE_S, lapses_max=lapses_max),
        "block": Policy(recovery="block", lease_s=LEASE_S),
        "resume": Policy(recovery="resume", lease_s=LEASE_S, lapses_max=lapses_max),
        "atomic": Policy(atomic=True),
    }
    connect = partial(engines.connect, engine, url)
    adapters: dict[str, Any] = {
        "sqlite": atomic.Sqlite(),
        "postgres": atomic.Psycopg(connect),
        "mariadb": atomic.PyMySQL(connect),
    }
    return {
        "store": store,
        "tenant": lambda request: request.headers["x-account"],
        "routes": {f"POST /{name}": policies[name] for name in engines.routes(engine)},
        "atomic": adapters.get(engine),
        "hooks": [watch],
    }


def serve_asgi(listening: socket.socket, ledger: Ledger, store: Store, guard: Any) -> None:
    async def order(request: Request) -> JSONResponse:
        return JSONResponse(*await arun(handle(ledger, await request.json()), do))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with Recoverer(store):
            yield

    app = Starlette(routes=[Route("/{route}", order, methods=["POST"])], lifespan=lifespan)
    app.add_middleware(asgi.IdempotencyMiddleware, **guard)
    config = uvicorn.Config(app, access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])


def serve_wsgi(listening: socket.socket, ledger: Ledger, store: Store, guard: Any) -> None:
    @werkzeug.Request.application
    def app(request: werkzeug.Request) -> werkzeug.Response:
        body, status = run(handle(ledger, request.get_json()), do_sync)
        return werkzeug.Response(json.dumps(body), status, mimetype="application/json")

    guarded = wsgi.IdempotencyMiddleware(app, **guard)
    with Recoverer(store):
        make_server("127.0.0.1", 0, guarded, threaded=True, fd=listening.fileno()).serve_forever()


def main() -> None:
    kind, engine, url, ledger, descriptor = sys.argv[1:]
    serve = {"asgi": serve_asgi, "wsgi": serve_wsgi}[kind]
    store = open_store(url)
    listening = socket.socket(fileno=int(descriptor))
    serve(listening, Ledger(ledger), store, guarding(store, engine, url))


if __name__ == "__main__":
    main()
