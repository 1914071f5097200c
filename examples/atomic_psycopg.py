"""Orders that commit with their responses: Flask, psycopg and its pool, PostgreSQL.

oncekey migrate postgresql://localhost/shop
flask --app examples.atomic_psycopg:build run
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request
from psycopg_pool import ConnectionPool

import oncekey
from oncekey import Policy, atomic
from oncekey.web.wsgi import IdempotencyMiddleware

ORDERS = "CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, item text NOT NULL)"


def build(database: str = "postgresql://localhost/shop", store: str | None = None) -> Flask:
    """The application; its records are in the same database as its orders."""
    pool = ConnectionPool(database, min_size=1, open=True)
    with pool.connection() as connection:
        connection.execute(ORDERS)
    app = Flask("orders")

    @app.post("/orders")
    def create() -> tuple[Response, int]:
        item = request.get_json()["item"]
        connection = oncekey.current().connection  # do not commit: oncekey does
        [number] = connection.execute(
            "INSERT INTO orders (item) VALUES (%s) RETURNING id", [item]
        ).fetchone()
        return jsonify(id=number, item=item), 201

    app.extensions["pool"] = pool
    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app,
        store=store or database,
        tenant=oncekey.single_tenant,
        policy=Policy(required=True, atomic=True),
        atomic=atomic.Psycopg(pool),
    )
    return app
