"""A private Valkey or Redis."""

import secrets
from collections.abc import Mapping, Sequence

import redis

from tests.servers.process import Server
from tests.servers.programs import SOURCES, find_tool, reachable

DATABASES = 128


def start_redis(
    *,
    durable: bool = False,
    sources: Sequence[str] = SOURCES,
    settings: Mapping[str, object] | None = None,
) -> "Redis":
    """Start an empty server with an append-only file; `durable` syncs it before every answer."""
    always = {"appendfsync": "always"} if durable else {}
    return Redis(tuple(sources), {**always, **(settings or {})}).start()


class Redis(Server):
    def __init__(
        self,
        sources: tuple[str, ...] = SOURCES,
        settings: Mapping[str, object] | None = None,
        password: str | None = None,
    ) -> None:
        super().__init__("redis", reachable(find_tool("redis", sources)))
        self.password = password or secrets.token_hex(8)
        self._settings = dict(settings or {})

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def version(self) -> str:
        return redis_version(self.url)

    def command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder,
            "requirepass": self.password,
            "masterauth": self.password,
            "databases": DATABASES,
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "repl-diskless-sync-delay": 0,  # so that a replica is up at once
            **self._settings,
        }
        lines = "".join(f"{name} {value}\n" for name, value in settings.items())
        return [str(self.program.path), str(self.write("redis.conf", lines))]

    def ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def redis_version(url: str) -> str:
    with redis.Redis.from_url(url, socket_timeout=5) as client:
        info = client.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"


def cut_off(replica: Redis, primary: Redis) -> None:
    """Break the link between the two: the replica comes back and is not let in."""
    with redis.Redis.from_url(replica.url, socket_timeout=10) as client:
        client.config_set("masterauth", "wrong")
    with redis.Redis.from_url(primary.url, socket_timeout=10) as client:
        client.client_kill_filter(_type="replica")


def let_in(replica: Redis) -> None:
    """Undo `cut_off`."""
    with redis.Redis.from_url(replica.url, socket_timeout=10) as client:
        client.config_set("masterauth", replica.password)
