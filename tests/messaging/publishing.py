"""A broker that records publications, and a publisher without delays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from oncekey._core.message import Message
from oncekey.messaging._outbox_worker import Limits
from oncekey.messaging._publisher import Publisher
from tests.messaging.outbox_databases import OutboxDatabase

LEASE_S = 30.0


class Broker:
    """Remembers what it was given, and refuses what a test tells it to."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.refuses: Callable[[Message], Exception | None] = lambda message: None
        self._mutex = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._mutex:
            if error := self.refuses(message):
                raise error
            self.got.append(message)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.got]


def publisher(
    outbox_db: OutboxDatabase, publish: Callable[[Message], Any], **limits: Any
) -> Publisher:
    """One whose delays are all 0: tests make time pass by `elapse`."""
    given = Limits(**{"lease_s": LEASE_S, **limits})
    return Publisher(outbox_db.outbox, publish, limits=given, chance=lambda: 0.0)
