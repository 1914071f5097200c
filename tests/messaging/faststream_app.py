"""The consumer that the tests kill: each message is to leave one row, in the file of the records.

python -m tests.messaging.faststream_app LINE BROKER_URL TOPIC FILE LEDGER
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from faststream import BaseMiddleware

import oncekey
from oncekey._core.policy import Policy
from oncekey._engine.runtime import Runtime
from oncekey.messaging.faststream import OnceMiddleware, own_id
from oncekey.testing.crash import arm_from_environment
from tests.messaging.brokers import BROKERS, NACK

LEASE_S = 30.0


def recorder(ledger: str) -> type[BaseMiddleware]:
    """Writes down what is delivered, and how that ended: a line is whole whoever dies."""
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, message: Any) -> None:
        line = {"event": event, "id": own_id(message), "pid": os.getpid()}
        os.write(file, json.dumps(line).encode() + b"\n")

    class Recorder(BaseMiddleware):
        async def consume_scope(self, call_next: Callable[[Any], Any], msg: Any) -> Any:
            note("delivered", msg)
            result = await call_next(msg)
            note("done", msg)
            return result

    return Recorder


async def consume(line: str, url: str, topic: str, file: str, ledger: str) -> None:
    runtime = Runtime(f"sqlite:///{file}")
    once = OnceMiddleware(runtime, policy=Policy(lease_s=LEASE_S))
    broker = BROKERS[line].broker(url, middlewares=[recorder(ledger), once])

    async def work(body: str) -> None:
        with closing(sqlite3.connect(file, timeout=10)) as db, db:
            db.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
            db.execute("INSERT INTO effects VALUES (?)", (body,))
            await oncekey.current().complete_in(db, 200)

    for subscriber in BROKERS[line].subscribe(broker, topic, NACK):
        subscriber(work)
    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    arm_from_environment()
    asyncio.run(consume(*sys.argv[1:]))
