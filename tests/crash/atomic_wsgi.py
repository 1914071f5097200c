"""The same application as `tests.crash.atomic_server`, served from threads.

python -m tests.crash.atomic_wsgi PORT STORE_URL ADAPTER POLICY_JSON
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from oncekey import Policy, atomic, current, single_tenant
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.crash.atomic_server import ROWS, reached
from tests.crash.server import POLL_S, described, open_sealed
from tests.crash.wsgi import answer
from tests.servers.mariadb import mysql_connection

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


def pay(order: dict[str, Any]) -> Response:
    attempt = current()
    cursor = attempt.connection.cursor()
    for row in ROWS:
        cursor.execute(row.format(key=attempt.key, pid=os.getpid()))
    if "until" in order:
        sign = Path(order["until"])
        reached(sign).touch()
        while not sign.exists():
            time.sleep(POLL_S)
    return answer({"paid_by": os.getpid()}, order.get("status", 201))


def build(store: str, adapter: str, policy: Policy) -> WSGIApplication:
    @Request.application
    def app(request: Request) -> Response:
        if request.path == "/healthz":
            return answer({"pid": os.getpid()}, 200)
        return pay(request.get_json())

    url = store.partition("?")[0]
    adapters: dict[str, atomic.Adapter] = {
        "sqlite": atomic.Sqlite(),
        "psycopg": atomic.Psycopg(lambda: psycopg.connect(url)),
        "pymysql": atomic.PyMySQL(lambda: mysql_connection(url)),
    }
    return IdempotencyMiddleware(
        app,
        store=open_sealed(store),
        tenant=single_tenant,
        policy=policy,
        atomic=adapters[adapter],
    )


def main() -> None:
    app, port = described(build)
    make_server("127.0.0.1", port, app, threaded=True).serve_forever()


if __name__ == "__main__":
    main()
