"""The same application as `tests.crash.server`, served from threads.

python -m tests.crash.wsgi PORT STORE_URL LEDGER POLICY_JSON
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from oncekey import Policy, current, single_tenant
from oncekey.web.wsgi import IdempotencyMiddleware
from tests import observing
from tests.crash.server import BOOKED, POLL_S, Ledger, ask_for, described, open_sealed, receipt

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


def build(store: str, ledger: str, policy: Policy) -> WSGIApplication:
    observing.arrange()
    lines = Ledger(ledger)

    def pay(order: dict[str, Any]) -> tuple[dict[str, Any], int]:
        attempt = current()
        lines.note(attempt)
        while "until" in order and not Path(order["until"]).exists():
            time.sleep(POLL_S)
        return receipt(order, attempt)

    def book(order: dict[str, Any]) -> tuple[dict[str, Any], int]:
        attempt = current()
        once, port = order.get("at_most_once"), order["downstream"]
        made = [
            attempt.step_sync(name, ask_for, name, port, attempt.key, at_most_once=name == once)
            for name in BOOKED
        ]
        return {"made": [part["id"] for part in made]}, 201

    @Request.application
    def app(request: Request) -> Response:
        if request.path == "/healthz":
            return answer({"pid": os.getpid()}, 200)
        handler = {"/pay": pay, "/book": book}[request.path]
        return answer(*handler(request.get_json()))

    return IdempotencyMiddleware(app, store=open_sealed(store), tenant=single_tenant, policy=policy)


def answer(body: dict[str, Any], status: int) -> Response:
    return Response(json.dumps(body), status, mimetype="application/json")


def main() -> None:
    app, port = described(build)
    make_server("127.0.0.1", port, app, threaded=True).serve_forever()


if __name__ == "__main__":
    main()
