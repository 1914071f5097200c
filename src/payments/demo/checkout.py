"""The backend of the checkout page, beside the API: trace, tally, faults and webhook listener.

    GET /demo/watch?after=      what happens to charges, as server-sent events
    GET /demo/tally?order=&key= what became of one order, as the card network counts it
    GET /demo/faults            what can go wrong at the card network and at the listener
    PUT /demo/faults/{name}     arm a fault: {"times": 1}
    POST /demo/hook             receives webhooks about charges

It exists only on the embedded server, and only for requests from the same machine: whoever can send
those could also edit the files.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from payments.access.accounts import LOCAL
from payments.access.auth import is_local
from payments.demo.trace import TraceLog
from payments.demo.webhook_listener import LOST_ANSWER, PATH, Listener
from payments.network import FAULTS, Network, NetworkDown
from payments.settings import Settings
from payments.storage.database import Database
from payments.storage.tables import charges, deliveries, events, ledger_entries

ROWS_MAX = 2_000
"""How many rows are searched for an order."""
TIMES_MAX = 10
ID_CHARS_MAX = 255
ENTRY_CHARS_MAX = 18

NO_STORE = {"Cache-Control": "no-store"}


def add(api: FastAPI, trace: TraceLog) -> None:
    """Add the routes to an application that has a database and a network in its state."""
    database: Database = api.state.database
    network: Network = api.state.network
    settings: Settings = api.state.settings
    listener = Listener(database, settings.data / "listener.db", trace)
    api.state.closed_at_exit.append(listener)

    async def entries(request: Request) -> Response:
        if not is_local(request.scope):
            return _refuse_remote()
        if trace.is_full:
            return JSONResponse({"error": "Too many listeners."}, 503, NO_STORE)
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        stream = trace.stream(_entry_number(after))
        return StreamingResponse(stream, media_type="text/event-stream", headers=NO_STORE)

    def tally(request: Request) -> Response:
        order, key = (request.query_params.get(name, "") for name in ("order", "key"))
        with database.read() as connection:
            result = _read_database(connection, order[:ID_CHARS_MAX], key[:ID_CHARS_MAX])
            result["listener"] = listener.summary(connection, result.pop("event_ids"))
        result |= _read_network(network, result.pop("references"))
        return JSONResponse({**result, "requests": trace.requests_of(key)}, headers=NO_STORE)

    def faults(_: Request) -> Response:
        listed = [*network.faults(), *listener.faults()]
        return JSONResponse({"data": listed}, headers=NO_STORE)

    api.add_route("/demo/watch", entries, include_in_schema=False)
    api.add_route("/demo/tally", _local(tally), include_in_schema=False)
    api.add_route("/demo/faults", _local(faults), include_in_schema=False)

    def arm(request: Request, times: int) -> Response:
        name = request.path_params["name"]
        if name in FAULTS:
            network.arm(name, times)
        else:
            listener.arm(times)
        return faults(request)

    arming = functools.partial(_arm, arm)
    api.add_route("/demo/faults/{name}", arming, methods=["PUT"], include_in_schema=False)
    receiving = functools.partial(_receive, listener)
    api.add_route(PATH, receiving, methods=["POST"], include_in_schema=False)


def _local(ask: Callable[[Request], Response]) -> Callable[[Request], Response]:
    def handle_local(request: Request) -> Response:
        if not is_local(request.scope):
            return _refuse_remote()
        try:
            return ask(request)
        except NetworkDown:
            return JSONResponse({"error": "The card network is down."}, 503, NO_STORE)

    return handle_local


async def _arm(arm: Callable[[Request, int], Response], request: Request) -> Response:
    names = [*FAULTS, LOST_ANSWER]
    times = _times((await request.body())[:ID_CHARS_MAX])
    if request.path_params["name"] not in names or times is None:
        message = f'Send {{"times": 0 to {TIMES_MAX}}} to one of: {", ".join(names)}.'
        return JSONResponse({"error": message}, 400, NO_STORE)
    return await run_in_threadpool(_local(lambda request: arm(request, times)), request)


async def _receive(listener: Listener, request: Request) -> Response:
    body = await request.body()

    def receive(request: Request) -> Response:
        receipt = listener.receive(request.headers, body)
        return Response(receipt.body, receipt.status, receipt.headers)

    return await run_in_threadpool(_local(receive), request)


def _entry_number(value: str) -> int | None:
    """Parse the number of an entry; None if it is none."""
    return int(value) if value.isdecimal() and len(value) <= ENTRY_CHARS_MAX else None


def _times(body: bytes) -> int | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    times = value.get("times") if isinstance(value, dict) else None
    return times if type(times) is int and 0 <= times <= TIMES_MAX else None


def _refuse_remote() -> Response:
    return JSONResponse({"error": "Only on the machine that the server runs on."}, 403, NO_STORE)


# ------------------------------------------------------------------------------------ the tally


def _read_database(connection: Connection, order: str, key: str) -> dict[str, Any]:
    """Read an order from the database: charges, ledger entries, events, deliveries."""
    recent = (
        sa.select(charges.c.id, charges.c.metadata)
        .where(charges.c.tenant == LOCAL.tenant)
        .order_by(charges.c.id.desc())
        .limit(ROWS_MAX)
    )
    found = [
        row.id for row in connection.execute(recent) if (row.metadata or {}).get("order") == order
    ]
    entries = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(ledger_entries.c.amount), 0)).where(
            ledger_entries.c.transaction.in_([f"charge:{id_}" for id_ in found])
        )
    ).one()
    lately = (
        sa.select(events.c.id, events.c.idempotency_key)
        .where(events.c.tenant == LOCAL.tenant)
        .order_by(events.c.id.desc())
        .limit(ROWS_MAX)
    )
    result = [row.id for row in connection.execute(lately) if key and row.idempotency_key == key]
    sent = connection.execute(
        sa.select(deliveries.c.status, sa.func.count().label("number"))
        .where(deliveries.c.tenant == LOCAL.tenant, deliveries.c.event.in_(result))
        .group_by(deliveries.c.status)
    )
    return {
        "references": found,
        "ledger": {"entries": entries[0], "sum": entries[1]},
        "event_ids": result,
        "events": len(result),
        "deliveries": {row.status: row.number for row in sent},
    }


def _read_network(network: Network, references: list[str]) -> dict[str, Any]:
    """Read an order from the card network, which counts independently; None while it is down."""
    try:
        lines = [line for each in references for line in network.transactions(reference=each)]
    except NetworkDown:
        return {"charges": None, "moved": None, "declines": None}
    captures = [line.amount for line in lines if line.kind == "capture" and not line.declined]
    declines = sum(1 for line in lines if line.declined)
    return {"charges": len(captures), "moved": sum(captures), "declines": declines}
