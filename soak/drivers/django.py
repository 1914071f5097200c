"""Django's connections, which belong to threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
import pymysql
from django.conf import settings
from django.db import connection, transaction

from oncekey import atomic
from soak import engines
from soak.drivers import Blocking

_BACKENDS = {"sqlite": "sqlite3", "postgres": "postgresql", "mysql": "mysql"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": engines.WAIT_S, "transaction_mode": "IMMEDIATE"},
    "postgres": {"connect_timeout": engines.WAIT_S},
    "mysql": {"connect_timeout": engines.WAIT_S, "ssl_disabled": True},
}


class Django(Blocking):
    def __init__(self, engine: str, url: str) -> None:
        super().__init__(engine, url)
        pymysql.install_as_MySQLdb()
        rows, environment = engines.ROWS[engine], engines.address(url)
        database: dict[str, Any] = {
            "ENGINE": f"django.db.backends.{_BACKENDS[rows]}",
            "NAME": environment.path[1:],
            "OPTIONS": _OPTIONS[rows],
        }
        if rows != "sqlite":
            database |= {"HOST": environment.hostname, "PORT": str(environment.port)}
            database |= {"USER": environment.username, "PASSWORD": environment.password or ""}
        settings.configure(DATABASES={"default": database})
        django.setup()

    def adapter(self) -> Any:
        return atomic.Django()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        try:
            with transaction.atomic():
                yield connection
        finally:
            connection.close()
