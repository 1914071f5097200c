"""The adapter for the standard library's sqlite3: your rows in the same file as the records.

sqlite3 is written in C, so a connection is lent through proxies. Closing a connection while a
thread runs one of its statements would end the process, so all threads pass a gate, also with
cursors and everything else that comes from the connection.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator, Iterator
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import Any
from weakref import WeakSet

from oncekey.atomic._gate import Gate
from oncekey.atomic._loans import HAS_ENDED, LEAVE_S_MAX
from oncekey.atomic._transaction import Denied
from oncekey.errors import Misuse
from oncekey.stores import transactions
from oncekey.stores.sqlite.connection import File
from oncekey.stores.sqlite.write_lock import Byte, Exclusive, Overdue


class _WatchedConnection(sqlite3.Connection):
    """A connection whose `close` first stops the thread that watches it."""

    exclusive: Exclusive | None = None

    def close(self) -> None:
        exclusive, self.exclusive = self.exclusive, None
        if exclusive is not None:
            exclusive.leave()
        super().close()


class Sqlite:
    """Transactions on connections opened like the store's own.

    The handler's connection has no row factory and needs no pragmas. A transaction that takes
    longer than `atomic_s_max` is rolled back.
    """

    engine = "sqlite"
    awaited = False

    def begin(self, store: Any, record_id: bytes, seconds_max: float) -> _SqliteTransaction | None:
        byte = Byte.take(store.place.path, record_id)
        if byte is None:
            return None
        file = None
        try:
            file = File(store.place, _WatchedConnection)
            db: Any = file.begin()
            ask = transactions.join(store, db)
            db.exclusive = Exclusive(db, seconds_max)
            return _SqliteTransaction(file, db, byte, db.exclusive, ask)
        except BaseException:
            if file is not None:
                file.close()
            byte.close()
            raise


class _SqliteTransaction:
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
        return self._loan.stand_in

    def recall(self) -> bool:
        return self._loan is None or self._loan.recall(cut=False)

    def taint(self) -> None:
        """Nothing to note: the connection is always closed."""

    def ask(self, question: Any) -> Any:
        self._exclusive.check()
        if self._loan is not None and self._loan.is_ended:
            raise Denied
        return self._ask(question)

    def flush(self) -> None:
        """Nothing to flush: there is no session."""

    def commit(self) -> None:
        try:
            with self._exclusive.may_end():
                self._file.commit()
        finally:
            self._give_back()

    def rollback(self) -> str | None:
        if self._loan is not None and not self._loan.recall(cut=True):
            self._loan.when_free(self._give_back)  # closing it now would end the process
            return None
        try:
            with self._exclusive.may_end():
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


# ------------------------------------------------------------------- stand-ins for lent connections

_GUARDED = (sqlite3.Cursor, sqlite3.Blob)


class SqliteLoan:
    """The loan of a `sqlite3.Connection`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._gate = _TrackingGate()
        self.stand_in: Any = Guarded(self._gate, db)
        self.is_tainted = True
        """Opening SQLite is so fast that the connection is closed each time."""

    @property
    def is_ended(self) -> bool:
        """Whether the handler has closed it; it cannot commit."""
        try:
            return self._db.total_changes < 0
        except sqlite3.ProgrammingError:
            return True

    def recall(self, *, cut: bool) -> bool:
        free = self._gate.shut()
        if not free and cut:
            with contextlib.suppress(sqlite3.Error):
                self._db.interrupt()
        free = free or self._gate.wait(LEAVE_S_MAX)
        if free:
            self._gate.close_all()
        return free

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call this when the last thread leaves a connection that was not free in time."""
        self._gate.when_free(callback)


class _TrackingGate(Gate):
    """A gate that tracks the cursors and blobs made behind it."""

    __slots__ = ("_derived",)

    def __init__(self) -> None:
        super().__init__()
        self._derived: WeakSet[Guarded] = WeakSet()

    def note(self, derived: Guarded) -> None:
        self._derived.add(derived)

    def close_all(self) -> None:
        """Close the tracked objects: an unfinished result would keep the file open even after its
        connection is closed.
        """
        for each in list(self._derived):
            with contextlib.suppress(sqlite3.Error):
                object.__getattribute__(each, "_target").close()


class Guarded:
    """A proxy for a connection, or for what comes from it, that passes for the real one."""

    __slots__ = ("__weakref__", "_connection", "_gate", "_target")

    def __init__(self, gate: _TrackingGate, target: Any, connection: Guarded | None = None) -> None:
        object.__setattr__(self, "_gate", gate)
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_connection", connection or self)

    @property
    def __class__(self) -> Any:
        return type(self._target)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError("the class of a lent connection cannot be changed")

    def __getattr__(self, name: str) -> Any:
        if name == "close" and self._gate.is_shut:
            return _close
        if name == "interrupt":
            return self._interrupt
        with self._gate:
            found = getattr(self._target, name)
        if isinstance(found, BuiltinMethodType | MethodType) and found.__self__ is self._target:
            return self._through_gate(found)
        return self._guard(found)

    def __setattr__(self, name: str, value: Any) -> None:
        with self._gate:
            setattr(self._target, name, value)

    def __delattr__(self, name: str) -> None:
        with self._gate:
            delattr(self._target, name)

    def _interrupt(self) -> None:
        """Interrupt without waiting: another thread is running the statement."""
        if self._gate.is_shut:
            raise Misuse(HAS_ENDED)
        self._target.interrupt()

    def _through_gate(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._gate:
                result = method(*args, **kwargs)
            return self._guard(result)

        return call

    def _guard(self, result: Any) -> Any:
        """Put the gate before what the target returned, too."""
        if result is self._target:
            return self
        if isinstance(result, sqlite3.Connection):
            return self._connection
        if isinstance(result, _GUARDED):
            guarded = Guarded(self._gate, result, self._connection)
            self._gate.note(guarded)
            return guarded
        return self._guard_generator(result) if isinstance(result, GeneratorType) else result

    def _guard_generator(self, result: Generator[Any, None, None]) -> Iterator[Any]:
        while True:
            with self._gate:
                try:
                    found = next(result)
                except StopIteration:
                    return
            yield found

    # Python looks these up on the class.

    def __bool__(self) -> bool:
        return True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._through_gate(self._target)(*args, **kwargs)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        with self._gate:
            return next(self._target)

    def __enter__(self) -> Any:
        return self._through_gate(self._target.__enter__)()

    def __exit__(self, *raised: Any) -> Any:
        return self._through_gate(self._target.__exit__)(*raised)

    def __len__(self) -> int:
        with self._gate:
            return len(self._target)

    def __getitem__(self, index: Any) -> Any:
        with self._gate:
            return self._target[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        with self._gate:
            self._target[index] = value


def _close() -> None:
    """Do nothing: it has ended already."""
