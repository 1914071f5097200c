"""From an order to its parcel over a broker, each once: outbox, NATS JetStream, inbox.

    nats-server -js &
    python examples/faststream_orders.py nats://localhost:4222

The order and the message about it commit together; a worker publishes the message, here twice, as
after a crash halfway; the subscriber ships one parcel for it.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import uuid
from contextlib import closing
from pathlib import Path

from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker

import oncekey
from oncekey.messaging import Message, Outbox, Publisher
from oncekey.messaging.faststream import OnceMiddleware, publish_to


async def main(url: str, folder: Path) -> None:
    stream = f"shop-{uuid.uuid4().hex[:8]}"
    subject = f"{stream}.orders"
    store = f"sqlite:///{folder}/shop.db"
    outbox, runtime = Outbox(store), oncekey.Runtime(store)
    await outbox.migrate()

    broker = NatsBroker(url, middlewares=[OnceMiddleware(runtime)])
    parcels: list[str] = []
    shipped = asyncio.Event()

    @broker.subscriber(
        subject,
        stream=JStream(stream),
        durable="shipping",
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def ship(order: str) -> None:
        parcels.append(f"parcel for {order}")
        shipped.set()

    async with broker:
        await broker.start()
        with closing(sqlite3.connect(folder / "shop.db")) as database, database:
            database.execute("CREATE TABLE orders (id TEXT)")
            database.execute("INSERT INTO orders VALUES ('o17')")
            outbox.put_sync(database, subject, "o17")

        publish = publish_to(broker, stream=stream)

        async def twice(message: Message) -> None:
            await publish(message)
            await publish(message)

        await Publisher(outbox, twice).drain()
        async with asyncio.timeout(10):
            await shipped.wait()
    await runtime.aclose()
    print(parcels)
    assert parcels == ["parcel for o17"]  # noqa: S101


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a NATS server with JetStream")
    parser.add_argument("--data", type=Path, help="folder for its files [a new one]")
    args = parser.parse_args()
    folder = args.data or Path(tempfile.mkdtemp(prefix="faststream-"))
    asyncio.run(main(args.url, folder))
