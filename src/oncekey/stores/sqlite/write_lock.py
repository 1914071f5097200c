"""The write lock of atomic mode on SQLite: only oncekey ends the transaction, and it ends in time.

An atomic handler blocks all other writers of the file. So it must not take long, and what it does
after its time limit must not count: after a rollback each statement would commit by itself. An
authorizer, which SQLite asks when it prepares a statement, keeps the handler from ending the
transaction. An interrupt, which no statement runs past, ends it at the time limit.

Locks on the bytes of a file beside the database say which ids are taken. They belong to an open
file, not to a process, so they work between threads and processes alike, and the kernel drops them
when their owner dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import struct
import threading
from collections.abc import Iterator

from oncekey._system.clock import SystemClock
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.sqlite.connection import suspend_at_fork

_log = logging.getLogger("oncekey")
_FLOCK = struct.Struct("hhqqi4x")


class Overdue(StoreUnavailable):
    """The handler ran for too long and was rolled back."""


class Byte:
    """The lock of an id, until it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: str, record_id: bytes) -> Byte | None:
        """Lock an id; None if another transaction has it."""
        try:
            descriptor = os.open(f"{path}-atomic", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnfit(
                f"{path}-atomic cannot be opened: {error.strerror}; it holds the locks of ids, and "
                "this user must be allowed to write to it"
            ) from error
        at = int.from_bytes(record_id[:8]) >> 2
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
        except OSError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Exclusive:
    """A connection whose write transaction only oncekey ends."""

    def __init__(self, db: sqlite3.Connection, seconds_max: float) -> None:
        self._db = db
        self._seconds_max = seconds_max
        self._mutex = threading.RLock()
        self._ender: int | None = None
        """The thread that may end the transaction."""
        self._denies = False
        self._ended = threading.Event()
        self._overdue = False
        self._pin: sqlite3.Cursor | None = db.execute("SELECT 'oncekey'")
        """Never read to its end. While it is open an interrupt lasts, also for statements prepared
        before; and a connection that the handler closes is not freed yet.
        """
        db.set_authorizer(self._authorise)
        suspend_at_fork(self)
        watch.add(self, seconds_max)

    def _authorise(self, action: int, *_: object) -> int:
        if self._ender == threading.get_ident():
            return sqlite3.SQLITE_OK
        if not self._denies and action != sqlite3.SQLITE_TRANSACTION:
            return sqlite3.SQLITE_OK
        if self._overdue:
            said = "an atomic handler goes on writing, but after %g s it was rolled back"
        else:
            said = (
                "an atomic handler tried to end its transaction: leave that to oncekey, and use a "
                "savepoint to undo a part of it (it has %g s)"
            )
        _log.error(said, self._seconds_max)
        return sqlite3.SQLITE_DENY

    @contextlib.contextmanager
    def may_end(self) -> Iterator[None]:
        """Allow this thread to commit or roll back. Raises `Overdue` after a rollback."""
        watch.drop(self)
        with self._mutex:
            self.check()
            self._unpin()
            self._ender = threading.get_ident()
            try:
                yield
            finally:
                self._ender, self._denies = None, True
                self._ended.set()

    def check(self) -> None:
        if self._overdue:
            raise Overdue(
                f"the handler ran longer than atomic_s_max={self._seconds_max:g} and was rolled "
                "back, so that others can write to the file"
            )

    def expire(self) -> None:
        """Roll back, from the watching thread, unless it has ended."""
        watch.drop(self)
        with self._mutex:
            if self._ended.is_set():
                return
            self._overdue = self._denies = True
            self._undo()
            self._ended.set()

    def leave(self) -> None:
        """Roll back before the connection is closed; after this no other thread touches it.

        Closing it in the middle of `_undo` would have Python give SQLite no connection at all, and
        that ends the process.
        """
        watch.drop(self)
        with self._mutex:
            if not self._ended.is_set():  # an unread result would keep it open
                self._undo()
                self._ended.set()
            self._unpin()

    def roll_back(self) -> None:
        """Roll back, within `may_end`: closing does not while a result is not read to its end."""
        with contextlib.suppress(sqlite3.Error):  # closed, perhaps by the handler
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _undo(self) -> None:
        # The handler may be in the middle of a statement that is about to call Python, as for
        # `_authorise`. So nothing here may wait for the connection while holding the interpreter's
        # lock, as `set_authorizer` would. Nothing runs past the interrupt, not even ROLLBACK; but a
        # write that it stops takes the transaction with it, and this one needs no parsing.
        # The latter two errors: the connection was closed meanwhile.
        with contextlib.suppress(sqlite3.Error, MemoryError, SystemError):
            self._db.interrupt()
            self._db.blobopen("oncekey_meta", "fence_floor", 1)
        try:
            self._db.interrupt()
        except sqlite3.Error:  # closed, perhaps by a handler that was denied its end
            self._unpin()

    def _unpin(self) -> None:
        pin, self._pin = self._pin, None
        if pin is not None:
            with contextlib.suppress(sqlite3.Error):
                pin.close()

    def free(self) -> None:
        """Prepare a connection for its pool or for closing."""
        self._unpin()
        with contextlib.suppress(sqlite3.Error):
            self._db.set_authorizer(None)

    # A transaction must not cross a fork: the child would rely on its parent's locks.

    def before_fork(self) -> None:
        self._ended.wait(self._seconds_max + 1.0)

    def after_fork(self) -> None:
        """Do nothing: the transaction is over."""


class _Watch:
    """A thread that rolls back overdue transactions: one for all, as a file has one writer."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start empty, also in a forked child: the thread is its parent's."""
        self._condition = threading.Condition()
        self._late_at: dict[Exclusive, float] = {}
        self._wakes_at = 0.0
        self._runs = False

    def add(self, transaction: Exclusive, seconds_max: float) -> None:
        at = SystemClock.monotonic() + seconds_max
        with self._condition:
            self._late_at[transaction] = at
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="oncekey-atomic", daemon=True).start()
            if at < self._wakes_at:
                self._condition.notify()

    def drop(self, transaction: Exclusive) -> None:
        with self._condition:
            self._late_at.pop(transaction, None)

    def _run(self) -> None:
        while True:
            for transaction in self._await_late():
                transaction.expire()

    def _await_late(self) -> list[Exclusive]:
        with self._condition:
            while True:
                now = SystemClock.monotonic()
                late = [transaction for transaction, at in self._late_at.items() if at <= now]
                if late:
                    return late
                next_at = min(self._late_at.values(), default=None)
                self._wakes_at = float("inf") if next_at is None else next_at
                self._condition.wait(None if next_at is None else next_at - now)


watch = _Watch()
os.register_at_fork(after_in_child=watch.reset)
