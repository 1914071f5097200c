"""A private Redis with a replica, and a Sentinel that watches them."""

import contextlib
import functools
import secrets
from typing import Any, Self

import redis

from tests.servers.process import Server
from tests.servers.programs import find_tool, reachable
from tests.servers.redis import Redis
from tests.servers.redis_cluster import await_that

SERVICE = "records"
DOWN_AFTER_MS = 1000


def start_watched_redis() -> "WatchedRedis":
    """Start a primary, a replica and a Sentinel; they know each other when this returns."""
    return WatchedRedis()


class Sentinel(Server):
    """Decides alone: it is the library that is under test, not the vote."""

    def __init__(self, primary: Redis) -> None:
        super().__init__("sentinel", reachable(find_tool("redis")))
        self._primary = primary
        self.password = secrets.token_hex(8)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        return self._primary.version

    @functools.cached_property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url, socket_timeout=10)

    def command(self) -> list[str]:
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"requirepass {self.password}",
            f"dir {self.folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._primary.port} 1",
            f"sentinel auth-pass {SERVICE} {self._primary.password}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 5000",
        )
        return [
            str(self.program.path),
            str(self.write("sentinel.conf", "\n".join(lines))),
            "--sentinel",
        ]

    def ready(self) -> bool:
        try:
            return bool(redis.Redis.from_url(self.url, socket_timeout=2).ping())
        except redis.RedisError:
            return False


class WatchedRedis:
    """The two servers, and who watches them."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            self.first = stack.enter_context(Redis().start())
            settings = {"replicaof": f"127.0.0.1 {self.first.port}"}
            second = Redis(settings=settings, password=self.first.password)
            self.second = stack.enter_context(second.start())
            await_that(self._synced, "the replica has no data")
            self.sentinel = stack.enter_context(Sentinel(self.first).start())
            await_that(self._watched, "the Sentinel knows no replica")
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        """As the store takes it."""
        place = f":{self.first.password}@127.0.0.1:{self.sentinel.port}/{SERVICE}"
        return f"redis+sentinel://{place}?sentinel_password={self.sentinel.password}"

    @property
    def nodes(self) -> list[Redis]:
        return [self.first, self.second]

    def client(self, server: Redis) -> Any:
        return redis.Redis.from_url(server.url, socket_timeout=10)

    def primary(self) -> Redis:
        """As the Sentinel sees it."""
        _, port = self.sentinel.client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)
        return self.first if int(port) == self.first.port else self.second

    def close(self) -> None:
        self.sentinel.client.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _synced(self) -> bool:
        with self.client(self.second) as client:
            return bool(client.info("replication").get("master_link_status") == "up")

    def _watched(self) -> bool:
        return len(self.sentinel.client.execute_command("SENTINEL REPLICAS", SERVICE)) == 1
