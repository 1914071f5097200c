"""The adapter for the standard library's sqlite3: business rows in the file of the records."""

from __future__ import annotations

import sqlite3
from typing import Any

from oncekey.atomic._loans_sqlite import SqliteLoan
from oncekey.atomic._transaction import Denied
from oncekey.stores import transactions
from oncekey.stores.sqlite.connection import File
from oncekey.stores.sqlite.write_lock import Byte, Exclusive, Overdue


class _Watched(sqlite3.Connection):
    """Whoever closes it does not meet the thread that watches."""

    exclusive: Exclusive | None = None

    def close(self) -> None:
        exclusive, self.exclusive = self.exclusive, None
        if exclusive is not None:
            exclusive.leave()
        super().close()


class Sqlite:
    """Transactions on connections that are opened as the store opens its own.

    The handler's connection has no row factory and needs none of its own pragmas. What runs longer
    than `atomic_s_max` is rolled back.
    """

    engine = "sqlite"
    awaited = False

    def begin(self, store: Any, record_id: bytes, seconds_max: float) -> _Sqlite | None:
        byte = Byte.take(store.place.path, record_id)
        if byte is None:
            return None
        file = None
        try:
            file = File(store.place, _Watched)
            db: Any = file.begin()
            ask = transactions.join(store, db)
            db.exclusive = Exclusive(db, seconds_max)
            return _Sqlite(file, db, byte, db.exclusive, ask)
        except BaseException:
            if file is not None:
                file.close()
            byte.close()
            raise


class _Sqlite:
    def __init__(
        self,
        file: File,
        db: sqlite3.Connection,
        byte: Byte,
        exclusive: Exclusive,
        ask: transactions.Ask,
    ) -> None:
        self._db = db
        self._file = file
        self._byte = byte
        self._exclusive = exclusive
        self._ask = ask
        self._loan: SqliteLoan | None = None

    def lend(self) -> Any:
        self._loan = SqliteLoan(self._db)
        return self._loan.lent

    def recall(self) -> bool:
        return self._loan is None or self._loan.recall(cut=False)

    def taint(self) -> None:
        """It is closed in any case."""

    def ask(self, question: Any) -> Any:
        self._exclusive.check()
        if self._loan is not None and self._loan.ended:
            raise Denied
        return self._ask(question)

    def flush(self) -> None:
        """There is no session."""

    def commit(self) -> None:
        try:
            with self._exclusive.ending():
                self._file.commit()
        finally:
            self._give_back()

    def rollback(self) -> str | None:
        if self._loan is not None and not self._loan.recall(cut=True):
            self._loan.when_left(self._give_back)  # under them it would end the process
            return None
        try:
            with self._exclusive.ending():
                self._exclusive.roll_back()
                return None
        except Overdue as overdue:
            return str(overdue)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        self._exclusive.leave()
        self._exclusive.free()
        self._file.close()
        self._byte.close()
