"""A page whose button may be pressed as often as you like: the browser creates and stores the keys.

    .venv/bin/python examples/browser_orders.py        # then open http://127.0.0.1:8000

The page's script is all a page needs. Pressing the button creates the order's key, stores it before
the request leaves, and sends it again after a reload. Pressed again after the response, the button
shows the existing order; a second order has its own button.
"""

from __future__ import annotations

import sqlite3
import tempfile
import uuid
from contextlib import closing
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

import oncekey
from oncekey.client import browser
from oncekey.web.asgi import IdempotencyMiddleware

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Order a mug</title>
<button id="order">Order a mug</button>
<button id="another" hidden>Order another one</button>
<p id="says" role="status"></p>
<script type="module">
  import { Client, outcomeOf } from "/oncekey.js";

  const at = (id) => document.querySelector(id);
  const [button, more, says] = [at("#order"), at("#another"), at("#says")];
  const tell = (text) => (says.textContent = text);

  const api = new Client({
    // account: "…", where users log in; and api.signOut() when they log out
    onAttempt({ what, attempt, retryInS }) {
      if (what === "offline") tell("You are offline. It is sent when you are back.");
      if (what === "sending" && attempt > 1) tell("Asking again …");
      if (retryInS) tell(`No answer yet. Asking again in ${retryInS.toFixed(1)} s.`);
    },
  });

  async function order() {
    tell("Ordering …");
    try {
      const answer = await api.fetch("/orders", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ item: "mug" }),
        intent: "order",
      });
      const { id } = await answer.json();
      tell(`Ordered: ${id}${outcomeOf(answer).replayed ? ", as you were told before" : ""}`);
      more.hidden = false;
    } catch (error) {
      tell(error.message);
    }
  }

  async function another() {
    more.hidden = true;
    await api.begin("order"); // the one place where an order that was answered is begun anew
    await order();
  }

  button.addEventListener("click", order);
  more.addEventListener("click", another);
  // What a reload interrupted goes on by itself, with its key.
  if ((await api.unsettled()).length) await order();
</script>
</html>
"""


def build(data: Path) -> Starlette:
    """The application, with its orders and its keys below `data`."""
    database = data / "orders.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT)")

    def page(request: Request) -> HTMLResponse:
        return HTMLResponse(PAGE)

    def module(request: Request) -> Response:
        file = browser.module()
        fresh = request.headers.get("if-none-match") != file.etag
        return Response(file.body if fresh else None, 200 if fresh else 304, file.headers)

    async def create(request: Request) -> JSONResponse:
        order = f"order_{uuid.uuid4().hex[:12]}"
        with closing(sqlite3.connect(database)) as connection, connection:
            row = order, (await request.json())["item"]
            connection.execute("INSERT INTO orders VALUES (?, ?)", row)
        return JSONResponse({"id": order}, status_code=201)

    def read(request: Request) -> JSONResponse:
        with closing(sqlite3.connect(database)) as connection:
            return JSONResponse(connection.execute("SELECT id, item FROM orders").fetchall())

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/oncekey.js", module),
            Route("/orders", create, methods=["POST"]),
            Route("/orders", read),
        ]
    )
    app.add_middleware(
        IdempotencyMiddleware,
        store=f"sqlite:///{data / 'keys.db'}",
        tenant=oncekey.single_tenant,  # a real shop: the customer's account
        policy=oncekey.Policy(required=True),
    )
    return app


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="oncekey-browser-"))
    uvicorn.run(build(folder), host="127.0.0.1", port=8000)
