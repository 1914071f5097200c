"""The operator: resolves unknown outcomes, one way or the other, and sweeps."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from contextlib import closing
from pathlib import Path

from oncekey import Answer, StoreUnavailable
from oncekey._core.op import run
from oncekey._core.record import State
from oncekey._core.verbs import Sweep
from oncekey._engine.guard import Guard
from oncekey.cli.records import find_by_key
from oncekey.stores.batching import Gatherer
from oncekey.stores.connection import StoreConnection
from soak import engines
from soak.calls import OPERATIONS
from soak.handler import JSON_LINES, answer_of, encode
from soak.ledger import Id, Ledger
from soak.settings import Settings

_SWEEP_EVERY_S = 1.0
_SWEEP_ROWS_MAX = 1000


class Operator:
    """Reaches the store directly. It writes to the ledger before it acts."""

    def __init__(self, settings: Settings, url: str, book: Path) -> None:
        self._store = engines.open_store(url, sealed=settings.sealed)
        self._operations = "POST /" if settings.kind in ("asgi", "wsgi") else OPERATIONS
        self._ledger = Ledger(book)
        self._count = itertools.count(1)

    async def resolve(self, id_: Id, name: str, *, released: bool) -> None:
        """Release an unknown outcome, or settle it with a response, unless the store is down."""
        await asyncio.to_thread(self._resolve, id_, name, released)

    async def keep_sweeping(self) -> None:
        """Sweep expired records until cancelled, more often than the workers do."""
        while True:
            await asyncio.to_thread(self._sweep)
            await asyncio.sleep(_SWEEP_EVERY_S)

    def _sweep(self) -> None:
        with closing(StoreConnection(self._store)) as line, contextlib.suppress(StoreUnavailable):
            line.perform([Sweep(_SWEEP_ROWS_MAX)])

    def _resolve(self, id_: Id, name: str, released: bool) -> None:
        by = f"operator-{next(self._count)}"
        answer = None if released else Answer(201, JSON_LINES, encode(answer_of(name, by)))
        with (
            closing(StoreConnection(self._store)) as line,
            closing(Gatherer(self._store)) as gatherer,
        ):
            try:
                operation = f"{self._operations}{id_.route}"
                record = find_by_key(line, id_.account, operation, id_.key)
                if record is None or record.state is not State.UNKNOWN:
                    return
                self._ledger.note("released" if released else "settled", id_, by)
                resolving = Guard().resolve(record, answer, by=by, reason="it was found out")
                run(resolving, gatherer.ask)
            except StoreUnavailable:
                return
