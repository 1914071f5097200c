"""Orders with FastAPI: signed in, validated, and only then safe to retry.

    uvicorn --factory examples.fastapi_orders:build

The key is claimed when the endpoint is about to run. A request without a valid login, or with a
mistake in its body, spends nothing: corrected, it may use the same key.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, PositiveInt

import oncekey
from oncekey import Policy
from oncekey.web.fastapi import Idempotency

ACCOUNTS = {"Bearer ann-1": "ann", "Bearer ann-2": "ann", "Bearer bob-1": "bob"}
MAY_ORDER = {"ann"}

Charge = Callable[[str, int, str], str]


class Order(BaseModel):
    item: str
    quantity: PositiveInt = 1


def charge_card(account: str, amount: int, key: str) -> str:
    """Stands for a payment provider that takes an idempotency key itself."""
    return f"ch_{uuid.uuid5(uuid.NAMESPACE_URL, key).hex[:12]}"


def signed_in(request: Request, authorization: Annotated[str, Header()] = "") -> str:
    """Who asks. What the tenant function needs is left in the request's state."""
    account = ACCOUNTS.get(authorization)
    if account is None:
        raise HTTPException(401, "sign in first")
    request.state.account = account
    return account


def may_order(account: Annotated[str, Depends(signed_in)]) -> str:
    if account not in MAY_ORDER:
        raise HTTPException(403, "you may look, but not order")
    return account


def as_recovered() -> str:
    """In place of `signed_in`, where the recoverer finishes what no client came back for."""
    return oncekey.current().tenant


def account_of(request: Request) -> str:
    """The account, not its token: a key belongs to `ann`, with whichever token she comes."""
    account: str = request.state.account
    return account


def build(data: Path = Path("."), charge: Charge = charge_card) -> FastAPI:
    """The application, with its orders and its keys below `data`."""
    database = data / "orders.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders "
            "(id TEXT PRIMARY KEY, account TEXT, item TEXT, quantity INT, charge TEXT)"
        )
    idempotency = Idempotency(
        store=f"sqlite:///{data / 'keys.db'}",
        tenant=account_of,
        policy=Policy(required=True, recovery="resume"),
        recover_as={signed_in: as_recovered},
    )
    router = APIRouter(route_class=idempotency.route_class)

    @router.post("/orders", status_code=201)
    def order(order: Order, account: Annotated[str, Depends(may_order)]) -> dict[str, Any]:
        attempt = oncekey.current()
        # The result is stored: a retry after a crash does not charge again. If it crashed earlier,
        # the provider sees the same key again.
        charged = attempt.step_sync(
            "charge", charge, account, order.quantity * 100, attempt.child_key("charge")
        )
        row = (charged.replace("ch_", "order_"), account, order.item, order.quantity, charged)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?, ?)", row)
        attempt.resource_id = row[0]
        return {"id": row[0], "item": order.item, "charge": charged}

    @router.get("/orders")
    def orders(account: Annotated[str, Depends(signed_in)]) -> list[dict[str, str]]:
        with closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT id, item FROM orders WHERE account = ?", (account,))
            return [{"id": order_id, "item": item} for order_id, item in rows]

    app = FastAPI(title="Orders", lifespan=idempotency.lifespan)
    app.include_router(router)
    return app
