"""The environment of a soak: a store on servers behind proxies, or in a file; and its faults."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from oncekey import migrate
from soak import engines
from soak.ledger import now
from soak.proxy import Proxy
from soak.settings import Settings
from tests.servers import (
    Server,
    start_mariadb,
    start_ministack,
    start_mysql,
    start_postgres,
    start_redis,
)
from tests.servers.ministack import table_url
from tests.servers.redis_cluster import RedisCluster, start_redis_cluster
from tests.servers.redis_sentinel import WatchedRedis, start_watched_redis

# Shorter than the faults: waiting for a store is not what a soak tests.
_FILE_OPTIONS = "timeout_s=1"
_SERVER_OPTIONS = "timeout_s=1.5&connect_timeout_s=2"
_WAITING_OPTIONS = f"{_SERVER_OPTIONS}&wait_replicas=1&wait_timeout_s=0.5"
_TABLE = (
    "CREATE TABLE effects (account VARCHAR(20) NOT NULL, route VARCHAR(20) NOT NULL, "
    "name VARCHAR(40) NOT NULL, run VARCHAR(40) NOT NULL, part VARCHAR(20) NOT NULL)"
)
_OUTBOX_POLL_S = 0.5

T = TypeVar("T")


@dataclass(slots=True)
class ServerSite:
    """A server and the proxy in front of it."""

    server: Server
    proxy: Proxy | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Environment:
    """The store of one soak; an async context manager."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.url = f"sqlite:///{folder / 'keys.db'}?{_FILE_OPTIONS}"
        """The URL for workers, through the proxies."""
        self.direct_url = self.url
        """The URL without proxies, where nothing is lost."""
        self.sites: Sequence[ServerSite] = ()
        self._close: Callable[[], None] = lambda: None
        self._thread = ThreadPoolExecutor(1)  # a server dies with the thread that started it

    async def __aenter__(self) -> Self:
        engine = self.settings.engine
        if engine in engines.REPLICATED:
            await self._start_replicated(_REPLICATED[engine])
        elif servers := [await self._in_thread(start) for start in _STARTERS[engine]]:
            proxies = [await Proxy(server.port).start() for server in servers]
            self.sites = [ServerSite(*each) for each in zip(servers, proxies, strict=True)]
            self.direct_url = _url(engine, *(server.url for server in servers))
            ports = ((server, proxy.port) for server, proxy in zip(servers, proxies, strict=True))
            self.url = _url(engine, *(_through_proxy(*each) for each in ports))
        store = engines.open_store(self.direct_url, sealed=self.settings.sealed)
        await asyncio.to_thread(migrate, store)
        if self.settings.driver:
            await asyncio.to_thread(self._ask, _TABLE)
        return self

    async def _start_replicated(self, start: Callable[[], RedisCluster | WatchedRedis]) -> None:
        group = await self._in_thread(start)
        self._close = group.close
        lock = asyncio.Lock()
        self.sites = [ServerSite(node, None, lock) for node in group.nodes]
        self.url = self.direct_url = (
            f"{group.url}{'&' if '?' in group.url else '?'}{_WAITING_OPTIONS}"
        )

    async def start_beside(self, start: Callable[[], Server]) -> tuple[str, str]:
        """Start another server that faults can hit; return its proxied and its direct URL."""
        server = await self._in_thread(start)
        proxy = await Proxy(server.port).start()
        self.sites = [*self.sites, ServerSite(server, proxy)]
        return _through_proxy(server, proxy.port), server.url

    async def __aexit__(self, *_: object) -> None:
        for site in self.sites:
            if site.proxy is not None:
                await site.proxy.close()
                await self._in_thread(site.server.close)
        await self._in_thread(self._close)
        self._thread.shutdown()

    async def rows(self) -> list[tuple[str, ...]]:
        """Return what handlers have committed: account, route, key, run, part."""
        if not self.settings.driver:
            return []
        statement = "SELECT account, route, name, run, part FROM effects"
        return await asyncio.to_thread(self._ask, statement)

    async def wait_until_published(self, seconds_max: float) -> None:
        """Wait until all messages are published, or until the timeout."""
        until = now() + seconds_max
        statement = "SELECT COUNT(*) FROM oncekey_outbox"
        while self.settings.driver and now() < until:
            [(left,)] = await asyncio.to_thread(self._ask, statement)
            if not left:
                return
            await asyncio.sleep(_OUTBOX_POLL_S)

    def _ask(self, statement: str) -> list[tuple[str, ...]]:
        return engines.ask(self.settings.engine, self.direct_url, statement)

    # ----------------------------------------------------------------------- faults

    def heal(self) -> None:
        """Stop losing messages."""
        for site in self.sites:
            if site.proxy is not None:
                site.proxy.replies_lost = site.proxy.requests_lost = 0

    async def crash(self, site: ServerSite, seconds: float) -> None:
        """Kill the server and restart it after a while."""
        async with site.lock:
            await self._in_thread(site.server.kill)
            await asyncio.sleep(seconds)
            await self._in_thread(site.server.restart)

    async def freeze(self, site: ServerSite, seconds: float) -> None:
        """Freeze the server's processes for a while."""
        async with site.lock:
            site.server.signal_all(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                site.server.signal_all(signal.SIGCONT)

    async def occupy(self, seconds: float) -> None:
        """Hold SQLite's write lock for a while."""
        await asyncio.to_thread(self._occupy, seconds)

    def _occupy(self, seconds: float) -> None:
        db = engines.connect(self.settings.engine, self.direct_url)
        try:
            db.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
        except sqlite3.OperationalError:  # the workers never release the lock long enough
            return
        finally:
            db.close()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


_LOGGED = {"log-bin": "log", "sync-binlog": "1"}
"""Without it a commit is visible before it is on disk: a response given to a retry can be lost."""
_STARTERS: dict[str, Sequence[Callable[[], Server]]] = {
    "sqlite": (),
    "postgres": (partial(start_postgres, durable=True),),
    "mariadb": (partial(start_mariadb, durable=True, settings=_LOGGED),),
    "mysql": (partial(start_mysql, durable=True),),
    "redis": (partial(start_redis, durable=True),),
    "dynamodb": (start_ministack,),
    "tiered": (partial(start_postgres, durable=True), start_redis),
}


_REPLICATED: dict[str, Callable[[], RedisCluster | WatchedRedis]] = {
    "redis-cluster": start_redis_cluster,
    "redis-sentinel": start_watched_redis,
}


def _through_proxy(server: Server, port: int) -> str:
    return server.url.replace(f":{server.port}", f":{port}")


def _url(engine: str, server: str, cache: str = "") -> str:
    match engine:
        case "dynamodb":
            return f"{table_url(server, 'soak')}&{_SERVER_OPTIONS}"
        case "tiered":
            return f"tiered+{server}?{_SERVER_OPTIONS}&cache={cache}"
    return f"{server}?{_SERVER_OPTIONS}"
