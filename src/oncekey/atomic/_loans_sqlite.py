"""Lending a connection of sqlite3, which is written in C: through objects that stand before it.

Closing a connection while a thread is in one of its statements would end the process. So threads
go through a gate, also with cursors and whatever else comes from the connection.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator, Iterator
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import Any
from weakref import WeakSet

from oncekey.atomic._gate import Gate
from oncekey.atomic._loans import LEAVE_S_MAX, OVER
from oncekey.errors import Misuse

_DERIVED = (sqlite3.Cursor, sqlite3.Blob)


class SqliteLoan:
    """Of a `sqlite3.Connection`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._gate = _Gate()
        self.lent: Any = Guarded(self._gate, db)
        self.tainted = True
        """SQLite is opened so quickly that it is closed each time."""

    @property
    def ended(self) -> bool:
        """The handler has closed it; nobody can commit."""
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

    def when_left(self, then: Callable[[], None]) -> None:
        """For a connection that was not left in time: called by whoever leaves it last."""
        self._gate.when_left(then)


class _Gate(Gate):
    """Knows what came through it."""

    __slots__ = ("_derived",)

    def __init__(self) -> None:
        super().__init__()
        self._derived: WeakSet[Guarded] = WeakSet()

    def note(self, derived: Guarded) -> None:
        self._derived.add(derived)

    def close_all(self) -> None:
        """Close what came through: a result that is not read to its end would hold the file, also
        once its connection is closed.
        """
        for each in list(self._derived):
            with contextlib.suppress(sqlite3.Error):
                object.__getattribute__(each, "_target").close()


class Guarded:
    """Stands before a connection, or what comes from it, and passes for it."""

    __slots__ = ("__weakref__", "_connection", "_gate", "_target")

    def __init__(self, gate: _Gate, target: Any, connection: Guarded | None = None) -> None:
        object.__setattr__(self, "_gate", gate)
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_connection", connection or self)

    @property
    def __class__(self) -> Any:
        return type(self._target)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError("the class of a lent connection stays what it is")

    def __getattr__(self, name: str) -> Any:
        if name == "close" and self._gate.is_shut:
            return _close
        if name == "interrupt":
            return self._interrupt
        with self._gate:
            found = getattr(self._target, name)
        if isinstance(found, BuiltinMethodType | MethodType) and found.__self__ is self._target:
            return self._through_gate(found)
        return self._given(found)

    def __setattr__(self, name: str, value: Any) -> None:
        with self._gate:
            setattr(self._target, name, value)

    def __delattr__(self, name: str) -> None:
        with self._gate:
            delattr(self._target, name)

    def _interrupt(self) -> None:
        """For another thread than the one that is in a statement: it waits for nobody."""
        if self._gate.is_shut:
            raise Misuse(OVER)
        self._target.interrupt()

    def _through_gate(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._gate:
                given = method(*args, **kwargs)
            return self._given(given)

        return call

    def _given(self, given: Any) -> Any:
        """What came from the target, with the gate before it too."""
        if given is self._target:
            return self
        if isinstance(given, sqlite3.Connection):
            return self._connection
        if isinstance(given, _DERIVED):
            guarded = Guarded(self._gate, given, self._connection)
            self._gate.note(guarded)
            return guarded
        return self._each(given) if isinstance(given, GeneratorType) else given

    def _each(self, given: Generator[Any, None, None]) -> Iterator[Any]:
        while True:
            with self._gate:
                try:
                    found = next(given)
                except StopIteration:
                    return
            yield found

    # Python looks these up in the class.

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
    """It is over, as was asked for."""
