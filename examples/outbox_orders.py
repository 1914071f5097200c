"""An order and the message about it, committed together and published afterwards.

    python examples/outbox_orders.py                     # on SQLite, in a folder of its own
    python examples/outbox_orders.py --kill              # … with a worker that dies half-way

The broker is a file, and its reader drops duplicates by their id.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from oncekey.messaging import Limits, Message, Outbox, Publisher


def order(outbox: Outbox, database: sqlite3.Connection, id: str, *, fails: bool = False) -> None:
    """What a handler of a web service would do."""
    with database:  # commits; rolls back on every exception
        database.execute("INSERT INTO orders VALUES (?)", (id,))
        outbox.put_sync(database, "orders", {"order": id})
        if fails:
            raise ValueError("the customer has changed their mind")


def publish(folder: Path, message: Message, *, dies: bool) -> None:
    """Stands for a broker's client. The message's id stays the same over retries."""
    with open(folder / "broker", "a") as broker:
        line = {"id": message.id, "body": json.loads(message.payload)}
        broker.write(json.dumps(line) + "\n")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


def drain(folder: Path, *, dies: bool = False) -> None:
    """What a worker process does: with `run_sync` instead of `drain_sync` it never ends."""
    outbox = Outbox(f"sqlite:///{folder}/shop.db")
    # A lease this short is only for this demonstration: the default is 30 s.
    limits = Limits(lease_s=0.5)
    worker = Publisher(outbox, lambda m: publish(folder, m, dies=dies), limits=limits)
    while worker.drain_sync().claimed or count_waiting(folder):
        pass


def count_waiting(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        [count] = database.execute("SELECT count(*) FROM oncekey_outbox").fetchone()
    return int(count)


def read_broker(folder: Path) -> list[str]:
    """What the other side gets: each message once, by its id."""
    lines = [json.loads(line) for line in (folder / "broker").read_text().splitlines()]
    by_id = {line["id"]: line["body"]["order"] for line in lines}
    print(f"published {len(lines)} times, {len(by_id)} different messages")
    return sorted(by_id.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder for its files [a new one]")
    parser.add_argument("--kill", action="store_true", help="kill a worker half-way")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.data or Path(tempfile.mkdtemp(prefix="outbox-"))
    if args.worker:
        return drain(folder, dies=True)
    outbox = Outbox(f"sqlite:///{folder}/shop.db")
    outbox.migrate_sync()
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        with database:
            database.execute("CREATE TABLE orders (id TEXT)")
        for number in range(3):
            order(outbox, database, f"o{number}")
        try:
            order(outbox, database, "o3", fails=True)
        except ValueError as error:
            print(f"o3 was rolled back: {error}")
    if args.kill:
        worker = [sys.executable, __file__, "--worker", "--data", folder]
        died = subprocess.run(worker, check=False)  # noqa: S603
        print(f"a worker died between publishing and noting it (status {died.returncode})")
    drain(folder)
    assert read_broker(folder) == ["o0", "o1", "o2"]  # noqa: S101
    return None


if __name__ == "__main__":
    main()
