"""sqlite3, of the standard library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from oncekey import atomic
from soak import engines
from soak.drivers import Blocking


class Sqlite3(Blocking):
    def adapter(self) -> Any:
        return atomic.Sqlite()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with closing(engines.connect(self.engine, self.url)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.commit()  # closing without it rolls back
