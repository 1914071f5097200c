"""Orders with Flask: signed in, validated, and only then safe to retry.

    flask --app examples.flask_orders:build run

The key is claimed below `@may_order`: a request that may not order, or that has a mistake in its
body, spends nothing. Corrected, it may use the same key.
"""

from __future__ import annotations

import functools
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from flask import Flask, Response, abort, g, jsonify, request
from flask import Request as FlaskRequest

import oncekey
from oncekey import Policy
from oncekey.web.flask import Oncekey, idempotent

ACCOUNTS = {"Bearer ann-1": "ann", "Bearer ann-2": "ann", "Bearer bob-1": "bob"}
MAY_ORDER = {"ann"}

Charge = Callable[[str, int, str], str]


def charge_card(account: str, amount: int, key: str) -> str:
    """Stands for a payment provider that takes an idempotency key itself."""
    return f"ch_{uuid.uuid5(uuid.NAMESPACE_URL, key).hex[:12]}"


def sign_in() -> None:
    """Authenticate every request."""
    g.account = ACCOUNTS.get(request.headers.get("Authorization", ""))
    if g.account is None:
        abort(401)


def may_order(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if g.account not in MAY_ORDER:
            abort(403)
        return view(*args, **kwargs)

    return wrapper


def valid_order(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        order = request.get_json()
        quantity = order.get("quantity", 1)
        if not isinstance(order.get("item"), str) or not isinstance(quantity, int) or quantity < 1:
            abort(422, "an order has an item and a quantity")
        return view(order["item"], quantity, *args, **kwargs)

    return wrapper


def account_of(request: FlaskRequest) -> str:
    """Return the account, not its token: a key belongs to `ann`, whichever token she uses."""
    account: str = g.account
    return account


def build(data: Path = Path("."), charge: Charge = charge_card) -> Flask:
    """The application, with its orders and its keys below `data`."""
    database = data / "orders.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders "
            "(id TEXT PRIMARY KEY, account TEXT, item TEXT, quantity INT, charge TEXT)"
        )
    app = Flask("orders")
    Oncekey(
        app,
        store=f"sqlite:///{data / 'keys.db'}",
        tenant=account_of,
        policy=Policy(required=True, recovery="resume"),
    )
    app.before_request(sign_in)

    @app.post("/orders")
    @may_order
    @valid_order
    @idempotent
    def order(item: str, quantity: int) -> tuple[dict[str, Any], int]:
        attempt = oncekey.current()
        # The result is stored: a retry after a crash does not charge again. If it crashed earlier,
        # the provider sees the same key again.
        charged = attempt.step_sync(
            "charge", charge, g.account, quantity * 100, attempt.child_key("charge")
        )
        row = (charged.replace("ch_", "order_"), g.account, item, quantity, charged)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?, ?)", row)
        attempt.resource_id = row[0]
        return {"id": row[0], "item": item, "charge": charged}, 201

    @app.get("/orders")
    def orders() -> Response:
        with closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT id, item FROM orders WHERE account = ?", (g.account,))
            return jsonify([{"id": order_id, "item": item} for order_id, item in rows])

    return app
