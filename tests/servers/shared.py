"""The servers that a whole test run shares: each started once, when first asked for.

Under xdist the process that hands out the tests starts them and tells its workers the urls.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import psycopg
import pymysql
import redis

from tests.servers.kafka import Kafka, start_kafka
from tests.servers.mariadb import mysql_version, start_mariadb
from tests.servers.ministack import ministack_version, start_ministack
from tests.servers.mysql import start_mysql, wanted
from tests.servers.nats import nats_version, start_nats
from tests.servers.pgbouncer import start_pgbouncer
from tests.servers.postgres import postgres_version, start_postgres
from tests.servers.process import Server
from tests.servers.programs import Unavailable
from tests.servers.rabbitmq import rabbitmq_version, start_rabbitmq
from tests.servers.redis import redis_version, start_redis

NAMES: tuple[str, ...] = (
    "postgres",
    "redis",
    "mariadb",
    "pgbouncer",
    "nats",
    "rabbitmq",
    "kafka",
    "dynamodb",
)
if wanted():
    NAMES += ("mysql",)
_VERSIONS: dict[str, Callable[[str], str]] = {
    "redis": redis_version,
    "mariadb": mysql_version,
    "mysql": mysql_version,
    "nats": nats_version,
    "rabbitmq": rabbitmq_version,
    "kafka": lambda url: f"kafka at {url}",
    "dynamodb": ministack_version,
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A server to test with, or the reason why there is none."""

    url: str = ""
    about: str = ""
    reason: str = ""


class Shared:
    def __init__(self, offers: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """`offers` is what another process has told; without it servers are started here."""
        self._offers = {name: Offer(**told) for name, told in (offers or {}).items()}
        self._running: list[Server | Kafka] = []

    def offer(self, name: str) -> Offer:
        if name not in self._offers:
            try:
                self._offers[name] = self._given(name) or self._started(name)
            except Unavailable as unavailable:
                self._offers[name] = Offer(reason=str(unavailable))
        return self._offers[name]

    def offer_all(self) -> dict[str, dict[str, str]]:
        """All servers, as plain data for another process."""
        return {name: asdict(self.offer(name)) for name in NAMES}

    def seen(self) -> dict[str, Offer]:
        """What was asked for so far."""
        return dict(self._offers)

    def close(self) -> None:
        while self._running:
            self._running.pop().close()

    def _given(self, name: str) -> Offer | None:
        """A server of the user's own, named by ONCEKEY_TEST_<NAME>_URL."""
        variable = f"ONCEKEY_TEST_{name.upper()}_URL"
        url = os.environ.get(variable)
        if not url:
            return None
        try:
            version = _VERSIONS.get(name, postgres_version)(url)
        except (psycopg.Error, redis.RedisError, pymysql.MySQLError, OSError) as error:
            why = str(error).partition("\n")[0]
            raise Unavailable(
                f"start the server that {variable} names, or unset it: {why}"
            ) from error
        return Offer(url=url, about=f"{version} (from {variable})")

    def _started(self, name: str) -> Offer:
        starters: dict[str, Callable[[], Server | Kafka]] = {
            "postgres": start_postgres,
            "redis": start_redis,
            "mariadb": start_mariadb,
            "mysql": start_mysql,
            "pgbouncer": self._start_pgbouncer,
            "nats": start_nats,
            "rabbitmq": start_rabbitmq,
            "kafka": start_kafka,
            "dynamodb": start_ministack,
        }
        server = starters[name]()
        self._running.append(server)
        return Offer(url=server.url, about=f"{server.version} ({server.source})")

    def _start_pgbouncer(self) -> Server:
        behind = self.offer("postgres")
        if behind.reason:
            raise Unavailable(f"pgbouncer has nothing to stand in front of: {behind.reason}")
        return start_pgbouncer(behind.url)
