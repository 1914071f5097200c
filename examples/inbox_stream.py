"""A plain consumer: orders from a Redis stream, each shipped once.

    python examples/inbox_stream.py redis://localhost:6379/0 --send 3
    python examples/inbox_stream.py redis://localhost:6379/0

The second command consumes until nothing is left. Kill it at any moment and start it again, start
several at once: every order has one row. The row and the note that the message was handled
commit together, and only then is the message acknowledged.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from redis import Redis, ResponseError

import oncekey
from oncekey.messaging import Inbox, Then

GROUP = "shop"
IDLE_MS = 200
"""A message that a consumer took and did not acknowledge for so long is delivered again. Longer
than it takes to handle one; in earnest, minutes."""


def send(broker: Any, stream: str, order: dict[str, Any]) -> None:
    """The id is the producer's: whoever sends an order again sends it under the same id."""
    broker.xadd(stream, {"id": order["id"], "body": json.dumps(order)})


def ship(database: sqlite3.Connection, order: dict[str, Any]) -> None:
    database.execute("INSERT INTO shipped VALUES (?, ?)", (order["id"], order["item"]))


def consume(broker: Any, stream: str, database: sqlite3.Connection, inbox: Inbox) -> None:
    """Handle messages until there are none, neither new ones nor such that others left behind."""
    for entry, message in deliveries(broker, stream):
        order = json.loads(message[b"body"])
        with database:  # commits; rolls back on every exception
            outcome = inbox.handle_in_sync(
                database,
                message[b"id"].decode(),
                *(ship, database, order),
                payload=message[b"body"],
            )
        match outcome.then:
            case Then.ACKNOWLEDGE:
                broker.xack(stream, GROUP, entry)
            case Then.DEAD_LETTER:
                broker.xadd(f"{stream}-dead", message)
                broker.xack(stream, GROUP, entry)
            case Then.REDELIVER:
                pass  # not acknowledged: it is delivered again


def deliveries(broker: Any, stream: str) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
    consumer = f"consumer-{os.getpid()}"
    try:
        broker.xgroup_create(stream, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    while True:
        new = broker.xreadgroup(GROUP, consumer, {stream: ">"}, count=1, block=IDLE_MS)
        left = broker.xautoclaim(stream, GROUP, consumer, IDLE_MS, count=1)[1]
        entries = [*(new[0][1] if new else ()), *left]
        yield from entries
        if not entries and not broker.xpending(stream, GROUP)["pending"]:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description="Ship orders from a Redis stream once.")
    parser.add_argument("broker", help="redis://…")
    parser.add_argument("--stream", default="orders")
    parser.add_argument("--send", type=int, default=0, help="send so many orders, then end")
    parser.add_argument("--data", type=Path, default=Path(), help="where to keep its files")
    options = parser.parse_args()
    file = options.data / "shop.db"
    with Redis.from_url(options.broker) as broker:
        if options.send:
            for _ in range(options.send):
                send(broker, options.stream, {"id": str(uuid.uuid4()), "item": "tea"})
            return
        with (
            oncekey.Runtime(f"sqlite:///{file}") as runtime,
            closing(sqlite3.connect(file, timeout=10)) as database,
        ):
            database.execute("CREATE TABLE IF NOT EXISTS shipped (id TEXT, item TEXT)")
            consume(broker, options.stream, database, Inbox(runtime, name=options.stream))
            [shipped] = database.execute("SELECT count(*) FROM shipped").fetchone()
            print(f"{shipped} orders are shipped")


if __name__ == "__main__":
    main()
