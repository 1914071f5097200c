"""Real servers for tests and benchmarks, started as children of whoever asks.

    with start_postgres() as server:
        server.url, server.version, server.pid
        server.kill()       # SIGKILL to the whole process tree, as a crash would
        server.restart()    # same folder, same port, same url

Each server has a private folder, a free port on the loopback address and a password of its own.
As root it runs as `nobody`. It dies with the process that started it, however that ends, and its
folder is removed. What cannot be had raises `Unavailable`, which says why and what would help.
"""

from tests.servers.kafka import Kafka, start_kafka
from tests.servers.mariadb import MariaDB, start_mariadb
from tests.servers.ministack import Ministack, start_ministack
from tests.servers.mysql import MySQL, start_mysql
from tests.servers.nats import Nats, start_nats
from tests.servers.pgbouncer import PgBouncer, start_pgbouncer
from tests.servers.postgres import Postgres, start_postgres
from tests.servers.process import Server
from tests.servers.programs import Program, Unavailable, find_tool
from tests.servers.rabbitmq import RabbitMQ, start_rabbitmq
from tests.servers.redis import Redis, start_redis

__all__ = [
    "Kafka",
    "MariaDB",
    "Ministack",
    "MySQL",
    "Nats",
    "PgBouncer",
    "Postgres",
    "Program",
    "RabbitMQ",
    "Redis",
    "Server",
    "Unavailable",
    "find_tool",
    "start_kafka",
    "start_mariadb",
    "start_ministack",
    "start_mysql",
    "start_nats",
    "start_pgbouncer",
    "start_postgres",
    "start_rabbitmq",
    "start_redis",
]
