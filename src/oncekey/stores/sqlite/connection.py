"""Connections to one SQLite file: opening it, sharing it between threads, event loops and forks.

A question is a function of an open `File`, and is called in the thread that asks. For event loops
see `async_connection`.

Checkpoints
    SQLite before 3.51.3 can lose committed pages if a commit starts the write-ahead log (WAL) from
    the beginning while another connection makes a checkpoint. Automatic checkpoints do not hold the
    write lock, so they are turned off; ours are made by a second connection while the first one
    holds the write lock, so that no commit can start the WAL from the beginning.
    The WAL keeps the length `WAL_BYTES` and is overwritten: that is faster to sync than a growing
    file, and leaves room to complete running requests on a full disk.

Forks
    An open SQLite file must not cross a fork: the child would rely on its parent's locks. Every
    file is closed before a fork, after the open transaction, and opened again on each side with the
    next question.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from oncekey._system.clock import SystemClock
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.sqlite.wal import Wal

T = TypeVar("T")
_monotonic = SystemClock.monotonic
Execute = Callable[..., sqlite3.Cursor]

SQLITE_NEEDED = (3, 37)  # strict tables
WAL_BYTES = 4_194_304
UNCHECKED_MAX, UNCHECKED_S_MAX = 16, 0.1
"""How many small writes there may be, and for how long, before the length of the WAL is checked:
checking it with every write would take a fifth of its time.
"""
PAUSE_S_MIN, PAUSE_S_MAX = 0.0002, 0.003


class Busy(StoreUnavailable):
    """Another connection holds the lock; nothing was done."""


def retry_while_busy(timeout_s: float, attempt: Callable[..., T], *args: Any) -> T:
    """Repeat `attempt` while the file is busy, for about `timeout_s`."""
    # SQLite itself would sleep for up to 0.1 s, and starve while many processes write.
    pause_s = PAUSE_S_MIN
    while True:
        try:
            return attempt(*args)
        except Busy:
            if timeout_s <= 0:
                raise
        time.sleep(pause_s)
        timeout_s -= pause_s
        pause_s = min(pause_s * 1.5, PAUSE_S_MAX)


# --------------------------------------------------------------------------------- opening it


@dataclass(frozen=True, slots=True)
class Place:
    """Which file, and how to open it."""

    path: str
    timeout_s: float
    synchronous: str

    def create(self) -> None:
        """Create the file if it does not exist, for its owner only: stored answers are private."""
        if os.path.exists(self.path):
            return
        # Create it under another name and close it before it gets its own: closing a descriptor of
        # a file that SQLite has open elsewhere in this process would drop the locks on it.
        folder, name = os.path.split(self.path)
        try:
            descriptor, fresh = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
            os.close(descriptor)
            try:
                os.link(fresh, self.path)
            finally:
                os.unlink(fresh)
        except FileExistsError:
            pass  # another process was faster
        except OSError as error:
            raise StoreUnfit(
                f"{self.path} cannot be created: {error.strerror}; its folder must exist, and this "
                "user must be allowed to write to it"
            ) from error

    def open(self, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        """Open a connection whose acknowledged writes last."""
        if sqlite3.sqlite_version_info < SQLITE_NEEDED:
            needed = ".".join(map(str, SQLITE_NEEDED))
            raise StoreUnfit(f"SQLite is {sqlite3.sqlite_version}, oncekey needs {needed} or newer")
        if not os.path.exists(self.path):
            raise StoreUnfit(
                f"{self.path} was removed while it was in use: put it back, or start again to "
                "begin with no records"
            )
        # SQLite would open it, and fail only at the first write.
        if not os.access(self.path, os.W_OK, effective_ids=True):
            raise StoreUnfit(f"{self.path} cannot be written: {_ALLOWED}")
        return retry_while_busy(self.timeout_s, self._open, factory)

    def _open(self, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
        db = None
        try:
            db = sqlite3.connect(
                f"file:{quote(os.fsencode(self.path))}?mode=rw",
                uri=True,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                factory=factory,
            )
            self.set_up(db)
            # A new file gets its log when it is first read. After that no connection removes the
            # log when it closes and takes itself for the last one.
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException as error:
            try:
                if isinstance(error, sqlite3.Error):
                    raise_store_error(error, self.path, sent=False)
                raise
            finally:
                if db is not None:
                    db.close()
        return db

    def set_up(self, db: sqlite3.Connection) -> None:
        """Apply the settings of every connection that writes records."""
        [mode] = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnfit(
                f"{self.path} cannot have a write-ahead log, it stays in mode {mode!r}: put it on "
                "a local disk, not on a network share"
            )
        db.execute(f"PRAGMA synchronous = {self.synchronous}")
        # Without it a sync on macOS leaves it to the disk when to write.
        db.execute("PRAGMA fullfsync = ON")
        db.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}").fetchone()
        # ON, not FAST: FAST leaves the old contents of pages that became free, as of long answers.
        db.execute("PRAGMA secure_delete = ON").fetchone()


_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: "nothing was acknowledged; free some space on its disk",
    sqlite3.SQLITE_IOERR: "nothing was acknowledged; look at its disk and at the kernel's log",
    sqlite3.SQLITE_NOMEM: "nothing was acknowledged; the process is out of memory",
    sqlite3.SQLITE_INTERRUPT: "nothing was acknowledged",
}
_ALLOWED = "it must be a file that this user may write, in a folder that this user may write to"
_UNFIT = {
    sqlite3.SQLITE_CANTOPEN: _ALLOWED,
    sqlite3.SQLITE_PERM: _ALLOWED,
    sqlite3.SQLITE_READONLY: _ALLOWED,
    sqlite3.SQLITE_NOTADB: "name another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "restore it from a backup, or move it away and lose its records",
}


def raise_store_error(error: sqlite3.Error, path: str, *, sent: bool) -> None:
    """Raise what an error means for the store; return if only the verb is at fault."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    if code in _BUSY:
        raise Busy(
            f"{path}: {error}: look for a transaction that stays open", sent=False
        ) from error
    if advice := _UNAVAILABLE.get(code):
        raise StoreUnavailable(f"{path}: {error}: {advice}", sent=sent) from error
    if code == sqlite3.SQLITE_CANTOPEN and _too_many_files():
        advice = "this process has too many files open; raise its limit (ulimit -n)"
        raise StoreUnavailable(f"{path}: {error}: {advice}", sent=sent) from error
    # These two have the error code of any wrong statement.
    if re.match("no such (table|column)", text := str(error)):
        code = sqlite3.SQLITE_CORRUPT
    elif re.match("table oncekey_.* already exists", text):  # of another application
        code = sqlite3.SQLITE_NOTADB
    if advice := _UNFIT.get(code):
        raise StoreUnfit(f"{path}: {error}: {advice}") from error


def _too_many_files() -> bool:
    """Whether this process can open no more files: SQLite does not say why it could not."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False


class File:
    """An open file; questions are functions of it."""

    def __init__(
        self, place: Place, factory: type[sqlite3.Connection] = sqlite3.Connection
    ) -> None:
        self._place = place
        self.wait_s = place.timeout_s
        """How long a question waits for other writers; with 0 it raises `Busy` instead."""
        self._db = place.open(factory)
        try:
            self._wal = Wal(place.path)
        except BaseException:
            self._db.close()
            raise
        self._checkpointer: sqlite3.Connection | None = None
        self._unchecked, self._check_at = 0, 0.0

    @property
    def changes(self) -> int:
        """How many rows the connection has changed."""
        return self._db.total_changes

    def read(self, work: Callable[[Execute], T]) -> T:
        """Run `work`; each of its statements reads its own snapshot."""
        found: T = retry_while_busy(self.wait_s, self._read, work)
        return found

    def write(self, work: Callable[[Execute], T], *, little: bool = False) -> T:
        """Run `work` as the only writer; its changes are durable when this returns. `little` work
        concerns one record.
        """
        self._limit_wal(little=little)
        return self._transact(work)

    def write_at_once(self, work: Callable[[Execute], T]) -> T:
        """Run little `work` of one statement, its own transaction. Raises `Busy` at once if another
        connection writes, or a checkpoint is due.
        """
        self._limit_wal(little=True, may_wait=False)
        try:
            return work(self._db.execute)
        except sqlite3.Error as error:
            self._roll_back(sent=True)
            raise_store_error(error, self._place.path, sent=True)
            raise

    def begin(self) -> sqlite3.Connection:
        """Become the only writer until `commit` or `close`; the connection may be lent."""
        self._limit_wal()
        retry_while_busy(self.wait_s, self._begin)
        return self._db

    def _limit_wal(self, *, little: bool = False, may_wait: bool = True) -> None:
        """Checkpoint a long WAL; skip the check if only little was written since the last one."""
        now = _monotonic()
        self._unchecked += 1
        if little and self._unchecked <= UNCHECKED_MAX and now < self._check_at:
            self._wal.check()
            return
        if self._wal.length() > WAL_BYTES:
            if not (may_wait and self.wait_s):
                raise Busy(f"{self._place.path} needs a checkpoint", sent=False)
            self._transact(self._checkpoint)
        self._unchecked, self._check_at = 0, now + UNCHECKED_S_MAX

    def _begin(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise_store_error(error, self._place.path, sent=False)
            raise

    def commit(self) -> None:
        """Commit what `begin` began; it is durable when this returns."""
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(sent=True)
            raise_store_error(error, self._place.path, sent=True)
            raise

    def _read(self, work: Callable[[Execute], T]) -> T:
        try:
            return work(self._db.execute)
        except sqlite3.Error as error:
            raise_store_error(error, self._place.path, sent=False)
            raise

    def _transact(self, work: Callable[[Execute], T]) -> T:
        done: T = retry_while_busy(self.wait_s, self._attempt, work)
        return done

    def _attempt(self, work: Callable[[Execute], T]) -> T:
        execute = self._db.execute
        committing = False
        try:
            execute("BEGIN IMMEDIATE")
            outcome = work(execute)
            committing = True
            execute("COMMIT")
        except BaseException as error:
            # A failed commit may be found in the WAL after a crash; what came before it cannot.
            self._roll_back(sent=committing)
            if isinstance(error, sqlite3.Error):
                raise_store_error(error, self._place.path, sent=committing)
            raise
        return outcome

    def _roll_back(self, *, sent: bool) -> None:
        """End the transaction, which some errors leave open and others end."""
        if self._db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
        if self._db.in_transaction:
            raise StoreUnavailable(f"{self._place.path}: a transaction does not end", sent=sent)

    def _checkpoint(self, execute: Execute) -> None:
        """Copy the WAL into the file, so that the next commit starts it from the beginning."""
        # If this fails nothing is lost: the next write tries again.
        with contextlib.suppress(sqlite3.Error, StoreError):
            if self._checkpointer is None:
                self._checkpointer = self._place.open()
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def erase_wal(self) -> None:
        """Truncate the WAL, with its copies of blanked data, unless a reader needs it."""
        execute = self._db.execute
        execute(f"PRAGMA busy_timeout = {self._place.timeout_s * 1000:.0f}").fetchone()
        try:
            with contextlib.suppress(sqlite3.Error):
                execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            execute("PRAGMA busy_timeout = 0").fetchone()

    def close(self) -> None:
        for db in (self._checkpointer, self._db):
            if db is not None:
                db.close()
        self._wal.close()


Question = Callable[[File], Any]


# --------------------------------------------------------------------------------------- sync


class SqliteConnection:
    """Answer questions in the calling thread; open the file at the first one."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._file: File | None = None
        self._mutex = threading.Lock()
        suspend_at_fork(self)

    def ask(self, question: Question) -> Any:
        with self._mutex:
            file = self._file
            if file is None:
                file = self._file = File(self._place)
            try:
                return question(file)
            except (StoreUnavailable, StoreUnfit):
                self._close_file()  # whatever state it is in
                raise

    def ask_at_once(self, question: Question) -> Any:
        """Answer without waiting, or raise `Busy` with nothing done. After any other error close
        the connection, which may have to wait too.
        """
        if not self._mutex.acquire(blocking=False):
            raise Busy("the connection is in use", sent=False)
        try:
            if self._file is None:
                raise Busy("the file is not open", sent=False)
            self._file.wait_s = 0
            try:
                return question(self._file)
            finally:
                self._file.wait_s = self._place.timeout_s
        finally:
            self._mutex.release()

    def close(self) -> None:
        with self._mutex:
            self._close_file()

    def before_fork(self) -> None:
        self._mutex.acquire()
        self._close_file()

    def after_fork(self) -> None:
        self._mutex.release()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class Suspended(Protocol):
    """Something that must not be open across a fork."""

    def before_fork(self) -> None: ...
    def after_fork(self) -> None: ...


_connections: weakref.WeakSet[Suspended] = weakref.WeakSet()
_gate = threading.Lock()
"""Held while a connection registers, and during a fork."""
_suspended: list[Suspended] = []


def suspend_at_fork(connection: Suspended) -> None:
    """Close `connection` around every fork from now on, for as long as it exists."""
    with _gate:
        _connections.add(connection)


def _before_fork() -> None:
    _gate.acquire()
    _suspended.extend(_connections)
    for connection in _suspended:
        connection.before_fork()


def _after_fork() -> None:
    for connection in _suspended:
        connection.after_fork()
    _suspended.clear()
    _gate.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
