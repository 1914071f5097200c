"""The outbox: write messages in your transaction; a `Publisher` publishes them after the commit.

A service that commits and then publishes can die in between; one that publishes first may never
commit. An outbox message is a row in the same transaction as your rows: it exists if and only if
they do.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, TypeVar

from oncekey._core.message import PAYLOAD_BYTES_MAX, Message, Parked, new_message
from oncekey._core.op import Op, arun, run
from oncekey._core.validation import must_be_limits
from oncekey._system.chance import random_token
from oncekey._system.clock import Clock
from oncekey.errors import Misuse
from oncekey.stores import transactions
from oncekey.stores.base import Store, outbox_of
from oncekey.stores.urls import as_store

T = TypeVar("T")

LISTED_MAX = 100


class Outbox:
    """The outbox of one database, the one that holds your rows: PostgreSQL, MySQL, MariaDB or
    SQLite.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        must_be_limits("Outbox", {"payload_bytes_max": payload_bytes_max})
        self.store = as_store(store)
        table = outbox_of(self.store)
        if table is None:
            raise Misuse(
                "an outbox is a table beside your own rows, in PostgreSQL, MySQL, MariaDB or "
                f"SQLite: {self.store.name} has no transaction that could hold both"
            )
        self.table = table if clock is None else table.with_clock(clock)
        self._payload_bytes_max = payload_bytes_max
        self._proven = False

    # --------------------------------------------------------------------------------- writing

    async def put(
        self,
        transaction: Any,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Write a message in your transaction: it is published if and only if you commit.

        `payload` is bytes, or a value that JSON can encode. Messages with the same topic and `key`
        are published in the order of their `put`, if their transactions did not overlap.
        """
        message = self._message(topic, payload, key, headers)
        ask = await transactions.ajoin(self.store, transaction)
        if not self._proven:  # in another database no publisher would find the message
            own = await asyncio.to_thread(transactions.database_of, self.store)
            await arun(transactions.must_be_database(self.store, own), ask)
            self._proven = True
        await arun(self.table.put(message), ask)
        return message

    def put_sync(
        self,
        transaction: Any,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Blocking `put`."""
        message = self._message(topic, payload, key, headers)
        ask = transactions.join(self.store, transaction)
        if not self._proven:
            own = transactions.database_of(self.store)
            run(transactions.must_be_database(self.store, own), ask)
            self._proven = True
        run(self.table.put(message), ask)
        return message

    def _message(
        self, topic: str, payload: Any, key: str | None, headers: Mapping[str, str] | None
    ) -> Message:
        limit = self._payload_bytes_max
        return new_message(
            topic,
            payload,
            token=random_token(),
            key=key,
            headers=headers,
            payload_bytes_max=limit,
        )

    # ------------------------------------------------------------------------------- operating

    async def migrate(self) -> list[str]:
        """Create or update the tables; `oncekey migrate URL` does the same."""
        return await self._ask(self.store.migrate())

    def migrate_sync(self) -> list[str]:
        return self._ask_sync(self.store.migrate())

    async def parked(self, limit: int = LISTED_MAX) -> list[Parked]:
        """List messages that could not be published and wait for an operator, oldest first (like
        a dead letter queue).
        """
        return await self._ask(self.table.list_parked(limit))

    def parked_sync(self, limit: int = LISTED_MAX) -> list[Parked]:
        return self._ask_sync(self.table.list_parked(limit))

    async def retry(self, ids: Iterable[str]) -> int:
        """Publish parked messages again, as if they were new; return how many there were."""
        return await self._ask(self.table.retry(_ids(ids)))

    def retry_sync(self, ids: Iterable[str]) -> int:
        return self._ask_sync(self.table.retry(_ids(ids)))

    async def _ask(self, op: Op[T]) -> T:
        connection = await self.store.aconnect()
        try:
            return await arun(op, connection.ask)
        finally:
            await connection.close()

    def _ask_sync(self, op: Op[T]) -> T:
        with closing(self.store.connect()) as connection:
            return run(op, connection.ask)


def _ids(given: Iterable[str]) -> list[str]:
    try:
        if not isinstance(given, str):  # its letters are not ids
            return [str(uuid.UUID(each)) for each in given]
    except (ValueError, TypeError, AttributeError):
        pass
    raise Misuse(
        "retry([id]) takes a list of ids of parked messages, as texts: [parked.message.id for "
        "parked in outbox.parked_sync()]"
    )
