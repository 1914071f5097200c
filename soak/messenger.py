"""A process of the message soak: it puts, publishes or handles messages.

python -m soak.messenger ROLE SETTINGS STORE_URL BROKER_URL LEDGER MARK LISTENING_FD
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from faststream import Context
from faststream.exceptions import NackMessage, RejectMessage

from oncekey import Policy, Runtime, current
from oncekey.messaging import Inbox, Limits, Message, Outbox, Publisher, Then
from oncekey.messaging.faststream import OnceMiddleware, own_id, publish_to
from soak import drivers, engines
from soak.clock import SkewedClock
from soak.handler import LEASE_S
from soak.ledger import Id, Ledger
from soak.settings import Settings
from tests.messaging.brokers import BROKERS, NACK

ROLES = ("put", "publish", "handle", "handle-within")
"""`handle` under a lease, `handle-within` in one transaction with the effect."""
TOPIC = "orders"
NO_KEY = "-"
KEYS = (NO_KEY, *(f"key-{n}" for n in range(8)))
TABLES = (
    "CREATE TABLE put (id VARCHAR(40) NOT NULL, name VARCHAR(10) NOT NULL, n INTEGER NOT NULL)",
    "CREATE TABLE counters (name VARCHAR(10) NOT NULL PRIMARY KEY, n INTEGER NOT NULL)",
    "INSERT INTO counters VALUES " + ", ".join(f"('{name}', 0)" for name in KEYS),
)
_INBOX = "orders"
_DELIVERED = Context("message")
_TEXT = {"content-type": "text/plain"}
_ROLLED_BACK = 0.1
_PUT_EVERY_S = 0.1
_AWAY_S = 0.2


class Messenger:
    def __init__(self, settings: Settings, url: str, broker_url: str, ledger: Ledger) -> None:
        self._settings = settings
        self._url = url
        self._broker_url = broker_url
        self._ledger = ledger
        self._line = BROKERS[settings.broker]
        self._outbox = Outbox(engines.open_database(url))

    async def work(self, role: str, mark: Path) -> None:
        """Work until killed. The mark file says that it has begun."""
        begin = {"put": self._put, "publish": self._publish}.get(role)
        running = await (begin() if begin else self._handle(within=role == "handle-within"))
        await asyncio.to_thread(mark.write_text, str(os.getpid()))
        await running

    # ---------------------------------------------------------------------------------- putting

    async def _put(self) -> Any:
        return asyncio.to_thread(self._keep_putting)

    def _keep_putting(self) -> None:
        chance = Random()
        while True:
            with suppress(Exception):  # the database is unreachable
                self._put_many(chance)
            time.sleep(_AWAY_S)

    def _put_many(self, chance: Random) -> None:
        with closing(engines.connect(self._settings.engine, self._url)) as connection:
            while True:
                self._put_one(connection, chance)
                time.sleep(chance.uniform(0, 2 * _PUT_EVERY_S))

    def _put_one(self, connection: Any, chance: Random) -> None:
        """Commit a row and a message about it; or neither."""
        name, cursor = chance.choice(KEYS), connection.cursor()
        cursor.execute(f"UPDATE counters SET n = n + 1 WHERE name = '{name}'")  # and hold its row
        cursor.execute(f"SELECT n FROM counters WHERE name = '{name}'")
        [n] = cursor.fetchone()
        key = None if name == NO_KEY else name
        content = f"{name} {n}".encode()
        put = self._outbox.put_sync(connection, TOPIC, content, key=key, headers=_TEXT)
        cursor.execute(f"INSERT INTO put VALUES ('{put.id}', '{name}', {n})")
        (connection.rollback if chance.random() < _ROLLED_BACK else connection.commit)()

    # ------------------------------------------------------------------------------- publishing

    async def _publish(self) -> Any:
        broker = await self._start_broker()
        send = publish_to(broker, **self._line.options(TOPIC))

        async def publish(message: Message) -> None:
            name, n = message.payload.decode().split()
            self._ledger.note("published", Id(TOPIC, name, message.id), n)
            await send(message)

        # Few attempts: an outage must not use up those of a message.
        limits = Limits(lease_s=LEASE_S, attempts_max=10, retry_s_max=0.5)
        return Publisher(self._outbox, publish, limits=limits).run()

    async def _start_broker(self, work: Any = None, middlewares: Sequence[Any] = ()) -> Any:
        """Start a broker's client; with `work`, a consumer."""
        while True:
            client = self._line.broker(self._broker_url, middlewares=middlewares)
            for subscriber in self._line.subscribe(client, TOPIC, NACK) if work else ():
                subscriber(work)
            with suppress(Exception):  # the broker is unreachable
                await client.start()
                return client
            await asyncio.sleep(_AWAY_S)

    # --------------------------------------------------------------------------------- handling

    async def _handle(self, *, within: bool) -> Any:
        settings = self._settings
        runtime = Runtime(engines.open_store(self._url, sealed=settings.sealed))
        policy = Policy(lease_s=LEASE_S, lapses_max=10_000)
        driver = drivers.open_driver(settings.driver, settings.engine, self._url)
        assert isinstance(driver, drivers.Blocking)
        if within:
            await self._start_broker(
                _handle_within(driver, Inbox(runtime, name=_INBOX, policy=policy))
            )
        else:
            once = OnceMiddleware(runtime, policy=policy, name=lambda subscriber: _INBOX)
            await self._start_broker(_handle_leased(driver), [once])
        return asyncio.Event().wait()


def _handle_leased(driver: drivers.Blocking) -> Any:
    async def handle(body: str, message: Any = _DELIVERED) -> None:
        with driver.transaction() as connection:
            _effect(driver, connection, message)
            await current().complete_in(connection, 200)

    return handle


def _handle_within(driver: drivers.Blocking, inbox: Inbox) -> Any:
    def handle_sync(message: Any) -> Then:
        with driver.transaction() as connection:
            effect = partial(_effect, driver, connection, message)
            id_ = str(own_id(message))
            return inbox.handle_in_sync(connection, id_, effect, payload=message.body).then

    async def handle(body: str, message: Any = _DELIVERED) -> None:
        match await asyncio.to_thread(handle_sync, message):
            case Then.REDELIVER:
                raise NackMessage
            case Then.DEAD_LETTER:
                raise RejectMessage

    return handle


def _effect(driver: drivers.Blocking, connection: Any, message: Any) -> None:
    row = f"'{TOPIC}', '', '{own_id(message)}', '{os.getpid()}', ''"
    driver.execute(connection, f"INSERT INTO effects VALUES ({row})")


def main() -> None:
    role, text, url, broker_url, ledger, mark, _ = sys.argv[1:]
    SkewedClock(Path(mark).with_suffix(".wall")).install()
    messenger = Messenger(Settings.of_text(text), url, broker_url, Ledger(ledger))
    asyncio.run(messenger.work(role, Path(mark)))


if __name__ == "__main__":
    main()
