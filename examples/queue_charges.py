"""A worker that charges jobs from a plain queue, a table: each once, however often it dies.

    python examples/queue_charges.py            # charges three orders
    python examples/queue_charges.py --kill     # … with a worker that dies half-way

The key is created with the job, in the transaction of the order, and stored in it. However often
the job is tried, it sends the same key. The payment service is a small one of this example, which
remembers keys as yours should.
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
import threading
import uuid
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx2

from oncekey import Policy, single_tenant
from oncekey.client import Client, Retries, outcome_of
from oncekey.web.wsgi import IdempotencyMiddleware

TRIES_MAX = 20
TABLES = """
    CREATE TABLE orders (id TEXT PRIMARY KEY, amount INTEGER, charge TEXT);
    CREATE TABLE jobs (key TEXT PRIMARY KEY, order_id TEXT, amount INTEGER, tries INTEGER DEFAULT 0)
"""


def order(database: sqlite3.Connection, id: str, amount: int) -> None:
    """What a handler of a web service would do: the order and its job are one commit."""
    with database:
        database.execute("INSERT INTO orders (id, amount) VALUES (?, ?)", (id, amount))
        job = (str(uuid.uuid4()), id, amount)  # the key, once
        database.execute("INSERT INTO jobs (key, order_id, amount) VALUES (?, ?, ?)", job)


def work(database: sqlite3.Connection, api: Client, *, dies: bool = False) -> None:
    """Take jobs until there are none. A failed one goes to the end of the queue; one that fails 20
    times needs a person, because whether it was charged may be unknown.
    """
    next_job = "SELECT * FROM jobs WHERE tries < ? ORDER BY tries, rowid LIMIT 1"
    while job := database.execute(next_job, (TRIES_MAX,)).fetchone():
        key, id, amount, _ = job
        with database:
            database.execute("UPDATE jobs SET tries = tries + 1 WHERE key = ?", (key,))
        try:
            answer = api.post("/charges", json={"order": id, "amount": amount}, key=key)
        except httpx2.TransportError as error:  # unknown whether it was charged
            print(f"{id}: {error!r}: again later, with the same key")
            continue
        outcome = outcome_of(answer)
        if outcome and outcome.gave_up:  # still failing after all retries: later it may work
            print(f"{id}: status {answer.status_code}: again later, with the same key")
            continue
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)  # charged, but not recorded here
        result = answer.json()["id"] if answer.is_success else f"refused: {answer.status_code}"
        with database:  # the result and the end of the job commit together
            database.execute("UPDATE orders SET charge = ? WHERE id = ?", (result, id))
            database.execute("DELETE FROM jobs WHERE key = ?", (key,))


# -------------------------------------------------------------------- stands for a payment service


class Quiet(WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        """Log nothing."""


def service(folder: Path) -> Any:
    charges = folder / "charges"

    def charge(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        asked = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        with open(charges, "a") as file:
            file.write(f"{asked['order']}\n")
        made = json.dumps({"id": f"ch_{len(charges.read_text().splitlines())}"}).encode()
        start_response("201 Created", [("content-type", "application/json")])
        return [made]

    app = IdempotencyMiddleware(
        charge,
        store=f"sqlite:///{folder}/keys.db",
        tenant=single_tenant,
        policy=Policy(recovery="block"),
    )
    return make_server("127.0.0.1", 0, app, handler_class=Quiet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, help="folder for its files [a new one]")
    parser.add_argument("--kill", action="store_true", help="kill a worker half-way")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.data or Path(tempfile.mkdtemp(prefix="queue-"))
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        if args.worker:
            with Client(base_url=args.worker, retries=Retries(budget_s=20.0)) as api:
                return work(database, api, dies=args.kill)
        database.executescript(TABLES)
        for number in range(3):
            order(database, f"o{number}", 100 + number)
        server = service(folder)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        worker = [sys.executable, __file__, "--worker", url, "--data", folder]
        if args.kill:
            died = subprocess.run([*worker, "--kill"], check=False)  # noqa: S603
            print(f"a worker died between the charge and its record (status {died.returncode})")
        subprocess.run(worker, check=True)  # noqa: S603
        server.shutdown()
        charged = (folder / "charges").read_text().split()
        print(f"{len(charged)} charges: {', '.join(charged)}")
        paid = database.execute("SELECT id, charge FROM orders ORDER BY id").fetchall()
    assert sorted(charged) == ["o0", "o1", "o2"], charged  # noqa: S101
    assert all(charge for _, charge in paid), paid  # noqa: S101
    return None


if __name__ == "__main__":
    main()
