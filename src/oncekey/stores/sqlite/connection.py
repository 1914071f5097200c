"""Connections to one SQLite file: how it is opened, shared by threads, loops and forks, kept short.

A question is a function of an open `File`, and is called in the thread that asks. For event loops
see `sqlite_async`.

Checkpoints
    SQLite before 3.51.3 can lose committed pages if a commit starts the write-ahead log (WAL) from
    the beginning while another connection makes a checkpoint. Automatic checkpoints do not hold the
    write lock, so they are turned off; ours are made by a second connection while the first one
    holds the write lock, and then nobody can start the WAL anew.
    The WAL keeps the length `WAL_BYTES` and is written over: that is faster to sync than a file
    that grows, and leaves room to complete what runs on a disk that has filled up.

Forks
    An open SQLite file must not cross a fork, since the child would count on its parent's locks.
    Every file is closed before a fork, after the transaction under way, and opened again on each
    side when it is next asked.
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
"""So many small writes there may be, and for so long, before the WAL is looked at: with every write
that would take a fifth of its time.
"""
PAUSE_S_MIN, PAUSE_S_MAX = 0.0002, 0.003


class Busy(StoreUnavailable):
    """Somebody else holds the file; nothing was done."""


def patiently(timeout_s: float, attempt: Callable[..., T], *told: Any) -> T:
    """Repeat what finds the file busy, for about `timeout_s`."""
    # SQLite's own way of waiting sleeps for up to 0.1 s and so starves where many processes write.
    pause_s = PAUSE_S_MIN
    while True:
        try:
            return attempt(*told)
        except Busy:
            if timeout_s <= 0:
                raise
        time.sleep(pause_s)
        timeout_s -= pause_s
        pause_s = min(pause_s * 1.5, PAUSE_S_MAX)


# --------------------------------------------------------------------------------- opening it


@dataclass(frozen=True, slots=True)
class Place:
    """Which file, and how it is to be opened."""

    path: str
    timeout_s: float
    synchronous: str

    def create(self) -> None:
        """Make the file if it is not there, for its owner only: kept answers are private."""
        if os.path.exists(self.path):
            return
        # Made under another name and closed before it gets its own: closing a descriptor of a file
        # that SQLite has open elsewhere in this process would drop the locks on it.
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
        """A connection that keeps what it acknowledges."""
        if sqlite3.sqlite_version_info < SQLITE_NEEDED:
            needed = ".".join(map(str, SQLITE_NEEDED))
            raise StoreUnfit(f"SQLite is {sqlite3.sqlite_version}, oncekey needs {needed} or newer")
        if not os.path.exists(self.path):
            raise StoreUnfit(
                f"{self.path} was removed while it was in use: put it back, or start again to "
                "begin with no records"
            )
        # SQLite would open it all the same, and say so only when something is written.
        if not os.access(self.path, os.W_OK, effective_ids=True):
            raise StoreUnfit(f"{self.path} cannot be written: {_ALLOWED}")
        return patiently(self.timeout_s, self._open, factory)

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
            # A new file gets its log when it is first read. From then on nobody takes that away who
            # closes the file and believes to be the last.
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException as error:
            try:
                if isinstance(error, sqlite3.Error):
                    judge(error, self.path, sent=False)
                raise
            finally:
                if db is not None:
                    db.close()
        return db

    def set_up(self, db: sqlite3.Connection) -> None:
        """The settings of every connection that writes records."""
        [mode] = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnfit(
                f"{self.path} cannot have a write-ahead log, it stays in mode {mode!r}: put it on "
                "a local disk, not on a network share"
            )
        db.execute(f"PRAGMA synchronous = {self.synchronous}")
        # Else a sync on macOS leaves it to the disk when to write.
        db.execute("PRAGMA fullfsync = ON")
        db.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}").fetchone()
        # ON, not FAST: FAST leaves what stood on pages that became free, as long answers do.
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


def judge(error: sqlite3.Error, path: str, *, sent: bool) -> None:
    """Raise what an error means for the store; return where only one verb is to blame."""
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
    # Of these two the code is that of any wrong statement.
    if re.match("no such (table|column)", text := str(error)):
        code = sqlite3.SQLITE_CORRUPT
    elif re.match("table oncekey_.* already exists", text):  # and is somebody else's
        code = sqlite3.SQLITE_NOTADB
    if advice := _UNFIT.get(code):
        raise StoreUnfit(f"{path}: {error}: {advice}") from error


def _too_many_files() -> bool:
    """SQLite does not say why it could not open one."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False


class File:
    """An open file: what questions are asked of."""

    def __init__(
        self, place: Place, factory: type[sqlite3.Connection] = sqlite3.Connection
    ) -> None:
        self._place = place
        self.patience_s = place.timeout_s
        """How long a question waits for others. With 0 it is `Busy` where it would have to."""
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
        """How many rows it has changed so far."""
        return self._db.total_changes

    def read(self, work: Callable[[Execute], T]) -> T:
        """Run `work`; each of its statements sees a snapshot of its own."""
        found: T = patiently(self.patience_s, self._look, work)
        return found

    def write(self, work: Callable[[Execute], T], *, little: bool = False) -> T:
        """Run `work` as the only writer; what it did is durable when this returns. It is `little`
        if it concerns one record.
        """
        self._keep_short(little=little)
        return self._transact(work)

    def write_at_once(self, work: Callable[[Execute], T]) -> T:
        """The same for little `work` of one statement, which is a transaction by itself. `Busy` at
        once where somebody writes, or a checkpoint is due.
        """
        self._keep_short(little=True, patient=False)
        try:
            return work(self._db.execute)
        except sqlite3.Error as error:
            self._roll_back(sent=True)
            judge(error, self._place.path, sent=True)
            raise

    def begin(self) -> sqlite3.Connection:
        """Become the only writer until `commit` or `close`, on a connection that may be lent."""
        self._keep_short()
        patiently(self.patience_s, self._begin)
        return self._db

    def _keep_short(self, *, little: bool = False, patient: bool = True) -> None:
        """Look at the WAL, unless only a `little` was written since it was last looked at."""
        now = _monotonic()
        self._unchecked += 1
        if little and self._unchecked <= UNCHECKED_MAX and now < self._check_at:
            self._wal.check()
            return
        if self._wal.length() > WAL_BYTES:
            if not (patient and self.patience_s):
                raise Busy(f"{self._place.path} needs a checkpoint", sent=False)
            self._transact(self._checkpoint)
        self._unchecked, self._check_at = 0, now + UNCHECKED_S_MAX

    def _begin(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            judge(error, self._place.path, sent=False)
            raise

    def commit(self) -> None:
        """End what `begin` began; it is durable when this returns."""
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(sent=True)
            judge(error, self._place.path, sent=True)
            raise

    def _look(self, work: Callable[[Execute], T]) -> T:
        try:
            return work(self._db.execute)
        except sqlite3.Error as error:
            judge(error, self._place.path, sent=False)
            raise

    def _transact(self, work: Callable[[Execute], T]) -> T:
        done: T = patiently(self.patience_s, self._attempt, work)
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
            # A commit that failed may be found in the WAL after a crash; what came before cannot.
            self._roll_back(sent=committing)
            if isinstance(error, sqlite3.Error):
                judge(error, self._place.path, sent=committing)
            raise
        return outcome

    def _roll_back(self, *, sent: bool) -> None:
        """End the transaction, which some errors leave open and others have ended already."""
        if self._db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
        if self._db.in_transaction:
            raise StoreUnavailable(f"{self._place.path}: a transaction does not end", sent=sent)

    def _checkpoint(self, execute: Execute) -> None:
        """Bring the WAL back into the file, so that the next commit starts it anew."""
        # Nothing is lost where this fails: the next write tries again.
        with contextlib.suppress(sqlite3.Error, StoreError):
            if self._checkpointer is None:
                self._checkpointer = self._place.open()
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def erase_wal(self) -> None:
        """Cut off the WAL and the copies in it of what was blanked, unless a reader needs it."""
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
    """Answers questions in the calling thread; opens the file when it is first asked."""

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
                self._shut()  # whatever state it is in goes with it
                raise

    def ask_at_once(self, question: Question) -> Any:
        """The same; but it is `Busy`, and nothing was done, where it would have to wait. After any
        other error the connection is to be closed, which may have to wait too.
        """
        if not self._mutex.acquire(blocking=False):
            raise Busy("the connection is in use", sent=False)
        try:
            if self._file is None:
                raise Busy("the file is not open", sent=False)
            self._file.patience_s = 0
            try:
                return question(self._file)
            finally:
                self._file.patience_s = self._place.timeout_s
        finally:
            self._mutex.release()

    def close(self) -> None:
        with self._mutex:
            self._shut()

    def before_fork(self) -> None:
        self._mutex.acquire()
        self._shut()

    def after_fork(self) -> None:
        self._mutex.release()

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class Suspended(Protocol):
    """What must not be open across a fork."""

    def before_fork(self) -> None: ...
    def after_fork(self) -> None: ...


_connections: weakref.WeakSet[Suspended] = weakref.WeakSet()
_gate = threading.Lock()
"""Held while a connection comes into being, and over a fork."""
_suspended: list[Suspended] = []


def suspend_at_fork(connection: Suspended) -> None:
    """From now on, for as long as it exists."""
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
