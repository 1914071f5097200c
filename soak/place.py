"""Where the records are: servers, each behind a proxy, or a file; and what can befall them."""

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

# Shorter than the faults last: waiting for a store is not what is looked at.
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
class Site:
    """A server and the way to it."""

    server: Server
    proxy: Proxy | None
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class Place:
    """A store for one soak; an async context manager."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.url = f"sqlite:///{folder / 'keys.db'}?{_FILE_OPTIONS}"
        """As the workers reach it."""
        self.direct = self.url
        """As nothing is lost."""
        self.sites: Sequence[Site] = ()
        self._close: Callable[[], None] = lambda: None
        self._thread = ThreadPoolExecutor(1)  # a server dies with the thread that started it

    async def __aenter__(self) -> Self:
        engine = self.settings.engine
        if engine in engines.REPLICATED:
            await self._start_replicated(_REPLICATED[engine])
        elif servers := [await self._in_thread(start) for start in _STARTERS[engine]]:
            proxies = [await Proxy(server.port).start() for server in servers]
            self.sites = [Site(*each) for each in zip(servers, proxies, strict=True)]
            self.direct = _url(engine, *(server.url for server in servers))
            ports = ((server, proxy.port) for server, proxy in zip(servers, proxies, strict=True))
            self.url = _url(engine, *(_proxied(*each) for each in ports))
        store = engines.open_store(self.direct, sealed=self.settings.sealed)
        await asyncio.to_thread(migrate, store)
        if self.settings.driver:
            await asyncio.to_thread(self._ask, _TABLE)
        return self

    async def _start_replicated(self, start: Callable[[], RedisCluster | WatchedRedis]) -> None:
        group = await self._in_thread(start)
        self._close = group.close
        one_at_a_time = asyncio.Lock()
        self.sites = [Site(node, None, one_at_a_time) for node in group.nodes]
        self.url = self.direct = f"{group.url}{'&' if '?' in group.url else '?'}{_WAITING_OPTIONS}"

    async def beside(self, start: Callable[[], Server]) -> tuple[str, str]:
        """Another server that everything can befall: its address, and the one without losses."""
        server = await self._in_thread(start)
        proxy = await Proxy(server.port).start()
        self.sites = [*self.sites, Site(server, proxy)]
        return _proxied(server, proxy.port), server.url

    async def __aexit__(self, *_: object) -> None:
        for site in self.sites:
            if site.proxy is not None:
                await site.proxy.close()
                await self._in_thread(site.server.close)
        await self._in_thread(self._close)
        self._thread.shutdown()

    async def rows(self) -> list[tuple[str, ...]]:
        """What handlers have committed: account, route, key, run, part."""
        if not self.settings.driver:
            return []
        statement = "SELECT account, route, name, run, part FROM effects"
        return await asyncio.to_thread(self._ask, statement)

    async def published(self, seconds_max: float) -> None:
        """Return when all messages are on their way, or it took too long."""
        until = now() + seconds_max
        statement = "SELECT COUNT(*) FROM oncekey_outbox"
        while self.settings.driver and now() < until:
            [(left,)] = await asyncio.to_thread(self._ask, statement)
            if not left:
                return
            await asyncio.sleep(_OUTBOX_POLL_S)

    def _ask(self, statement: str) -> list[tuple[str, ...]]:
        return engines.ask(self.settings.engine, self.direct, statement)

    # ----------------------------------------------------------------------- what can befall it

    def heal(self) -> None:
        """Lose nothing more."""
        for site in self.sites:
            if site.proxy is not None:
                site.proxy.replies_lost = site.proxy.questions_lost = 0

    async def crash(self, site: Site, seconds: float) -> None:
        """The server loses its power, and is back after a while."""
        async with site.one_at_a_time:
            await self._in_thread(site.server.kill)
            await asyncio.sleep(seconds)
            await self._in_thread(site.server.restart)

    async def stand_still(self, site: Site, seconds: float) -> None:
        """The server's processes are frozen for a while."""
        async with site.one_at_a_time:
            site.server.signal_all(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                site.server.signal_all(signal.SIGCONT)

    async def occupy(self, seconds: float) -> None:
        """Somebody else writes to the file, and takes long."""
        await asyncio.to_thread(self._occupy, seconds)

    def _occupy(self, seconds: float) -> None:
        db = engines.connect(self.settings.engine, self.direct)
        try:
            db.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
        except sqlite3.OperationalError:  # the workers write so much that it finds no turn
            return
        finally:
            db.close()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


_LOGGED = {"log-bin": "log", "sync-binlog": "1"}
"""Without it a commit is seen before it is on disk: what a retry was given can be forgotten."""
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


def _proxied(server: Server, port: int) -> str:
    return server.url.replace(f":{server.port}", f":{port}")


def _url(engine: str, server: str, cache: str = "") -> str:
    match engine:
        case "dynamodb":
            return f"{table_url(server, 'soak')}&{_SERVER_OPTIONS}"
        case "tiered":
            return f"tiered+{server}?{_SERVER_OPTIONS}&cache={cache}"
    return f"{server}?{_SERVER_OPTIONS}"
