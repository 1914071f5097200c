"""Where the records are: a server behind a proxy, or a file; and what can befall it."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from oncekey import migrate
from soak import engines
from soak.proxy import Proxy
from tests.servers import Server, start_mariadb, start_postgres, start_redis

# Shorter than the faults last: waiting for a store is not what is looked at.
_FILE_OPTIONS = "timeout_s=1"
_SERVER_OPTIONS = "timeout_s=1.5&connect_timeout_s=2"
_TABLE = (
    "CREATE TABLE effects "
    "(account VARCHAR(20) NOT NULL, name VARCHAR(40) NOT NULL, run VARCHAR(40) NOT NULL)"
)

T = TypeVar("T")


class Place:
    """A store for one soak; an async context manager."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.engine = engine
        self.url = f"sqlite:///{folder / 'keys.db'}?{_FILE_OPTIONS}"
        """As the workers reach it."""
        self._direct = self.url
        self._server: Server | None = None
        self._proxy: Proxy | None = None
        self._thread = ThreadPoolExecutor(1)  # a server dies with the thread that started it
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        starters: dict[str, Callable[[], Server]] = {
            "postgres": lambda: start_postgres(durable=True),
            "redis": lambda: start_redis(durable=True),
            "mariadb": lambda: start_mariadb(durable=True),
        }
        if self.engine in starters:
            self._server = await self._in_thread(starters[self.engine])
            self._proxy = await Proxy(self._server.port).start()
            self._direct = self._server.url
            there, here = f":{self._server.port}/", f":{self._proxy.port}/"
            self.url = f"{self._direct.replace(there, here)}?{_SERVER_OPTIONS}"
        await asyncio.to_thread(migrate, self._direct)
        if self.engine in engines.SQL:
            await asyncio.to_thread(engines.ask, self.engine, self._direct, _TABLE)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._proxy is not None:
            await self._proxy.close()
        if self._server is not None:
            await self._in_thread(self._server.close)
        self._thread.shutdown()

    def rows(self) -> list[tuple[str, ...]]:
        """What atomic handlers have committed: account, key, run."""
        if self.engine not in engines.SQL:
            return []
        return engines.ask(self.engine, self._direct, "SELECT account, name, run FROM effects")

    # ----------------------------------------------------------------------- what can befall it

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None, "a file has no way to it"
        return self._proxy

    def heal(self) -> None:
        """Lose nothing more."""
        if self._proxy is not None:
            self._proxy.replies_lost = self._proxy.questions_lost = 0

    async def crash(self, seconds: float) -> None:
        """The server loses its power, and is back after a while."""
        assert self._server is not None
        async with self._one_at_a_time:
            await self._in_thread(self._server.kill)
            await asyncio.sleep(seconds)
            await self._in_thread(self._server.restart)

    async def stand_still(self, seconds: float) -> None:
        """The server's processes are frozen for a while."""
        assert self._server is not None
        async with self._one_at_a_time:
            self._server.signal_all(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self._server.signal_all(signal.SIGCONT)

    async def occupy(self, seconds: float) -> None:
        """Somebody else writes to the file, and takes long."""
        await asyncio.to_thread(self._occupy, seconds)

    def _occupy(self, seconds: float) -> None:
        db = engines.connect(self.engine, self._direct)
        try:
            db.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
        except sqlite3.OperationalError:  # the workers write so much that it finds no turn
            return
        finally:
            db.close()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
