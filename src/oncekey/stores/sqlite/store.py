"""Records in one SQLite file: the embedded default, for any number of processes on one machine.

A batch is one transaction: its verbs share one commit, and with it one sync of the disk. Reading
takes no write lock and writes nothing. A lone insert is tried before it reads, since most are new:
a replay may then hold the lock for a moment, but never waits for it.

Answers have a table of their own: the one that decides stays narrow, so that claiming and
completing touch few pages. Pages stay at 4 KB. Of 16 KB they would take 270 bytes less for a record
with an answer of 1 KB, but the log is written in whole pages: under load commits were a fifth to a
half slower.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from oncekey._core.op import Op
from oncekey._core.verbs import Count, Purge, Scan, Verb
from oncekey._system.clock import Clock, SystemClock
from oncekey.errors import Misuse
from oncekey.stores.base import Durability, Traits
from oncekey.stores.checks import (
    Examination,
    Finding,
    Sample,
    first_by_id,
    parse_risks,
    refuse_unsafe,
    schema,
)
from oncekey.stores.sql import check_schema, migrations
from oncekey.stores.sqlite import checks
from oncekey.stores.sqlite.async_connection import AsyncSqliteConnection, Brief
from oncekey.stores.sqlite.connection import Busy, Execute, File, Place, SqliteConnection
from oncekey.stores.sqlite.outbox import SqliteOutboxTable
from oncekey.stores.sqlite.transactions import TRANSACTIONS
from oncekey.stores.sqlite.verbs import (
    MUST_WRITE,
    WRITES,
    Batch,
    NotAll,
    Reader,
    Single,
    Writer,
    is_brief,
    is_single,
)

TIMEOUT_S, TIMEOUT_S_MAX = 5.0, 3600.0
DURABILITY = {
    "FULL": Durability(True, True, True, "every commit is synced to the disk"),
    "NORMAL": Durability(True, True, False, "a power cut can take the last commits with it"),
    "OFF": Durability(True, True, False, "a power cut can damage the whole file"),
}
OUR_SCHEMA = "SELECT 1 FROM sqlite_master WHERE name = 'oncekey_schema'"


class SqliteStore:
    """Records in one file, on a disk of this machine."""

    name = "sqlite"
    traits = Traits(one_writer=True)
    transactions = TRANSACTIONS

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = TIMEOUT_S,
        synchronous: str = "FULL",
        allow: Collection[str] = (),
        clock: Clock | None = None,
    ) -> None:
        if synchronous not in DURABILITY:
            raise Misuse(f"synchronous is FULL (the default), NORMAL or OFF, not {synchronous!r}")
        self.allowed = parse_risks(allow, checks.RISKS)
        if os.fspath(path) in ("", ":memory:"):
            raise Misuse(
                "each connection to :memory: would see records of its own: name a file, as in "
                "sqlite:///keys.db, or use memory:// for records that may go with the process"
            )
        if not 0 < timeout_s <= TIMEOUT_S_MAX:
            raise Misuse(f"timeout_s is in seconds, up to {TIMEOUT_S_MAX:g}, not {timeout_s!r}")
        self.durability = DURABILITY[synchronous]
        absolute = os.path.abspath(path)
        if "\0" in absolute:
            raise Misuse(f"{absolute!r}: a path holds no zero byte")
        if absolute.startswith("//"):  # as POSIX allows; in a URI a host would follow
            absolute = absolute[1:]
        self.place = Place(absolute, timeout_s, synchronous)
        self._clock = clock or SystemClock()
        self.outbox = SqliteOutboxTable(absolute, self._clock)
        self._opened = False

    def __repr__(self) -> str:
        return f"SqliteStore({self.place.path!r})"

    @property
    def location(self) -> Hashable:
        return self.name, os.path.realpath(self.place.path)

    def group(self, verb: Verb) -> Hashable:
        """All verbs share their commits, but reads of many records, which must not delay others."""
        return "survey" if type(verb) in (Scan, Count) else "all"

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        question = Brief if len(verbs) == 1 and is_brief(verbs[0]) else partial
        outcomes: list[Any] = yield question(_perform, verbs, self._clock)
        return outcomes

    def prepare(self) -> Op[None]:
        """Bring a new or older file up to date."""
        path = self.place.path
        refuse_unsafe(checks.findings(path, self.place.synchronous), path, self.allowed)
        yield from self.migrate()

    def migrate(self) -> Op[list[str]]:
        applied: list[str] = yield partial(_migrate, self.place.path)
        return applied

    # --------------------------------------------------------------------------- a thorough look

    def examine(self) -> Op[Examination]:
        """Look at the file as it is, without migrating it."""
        path = self.place.path
        applied, oldest_reader, records = yield _tables
        surroundings = yield partial(_look_around, path)
        newest = migrations("sqlite")[-1].number
        if applied is None or applied < newest:
            seen = "no tables yet" if applied is None else f"schema {applied}"
            noted = Finding("schema", f"{seen}: the first use makes it {newest}")
        else:
            noted = schema(applied, oldest_reader, newest, path)
        findings = [*checks.findings(path, self.place.synchronous), noted]
        findings += [Finding("isolation", "one writer at a time"), *surroundings.findings()]
        size = replace(surroundings.size(), records=records)
        readable = (applied or 0) >= newest >= (oldest_reader or 0)
        return Examination(findings[0].seen, findings, size, readable)

    def now(self) -> Op[float | None]:
        """Return None: SQLite has no clock of its own."""
        yield from ()
        return None

    def sample(self, limit: int) -> Op[Sample]:
        return first_by_id(self, limit)

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> SqliteConnection:
        self._create()
        connection = SqliteConnection(self.place)
        connection.ask(_open)
        return connection

    async def aconnect(self) -> AsyncSqliteConnection:
        self._create()
        connection = AsyncSqliteConnection(self.place)
        try:
            await connection.ask(_open)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Create the file once: if it is gone later, that is an error, not a fresh start."""
        if not self._opened:
            self.place.create()
            self._opened = True


def open_url(url: str) -> SqliteStore:
    """`sqlite:///keys.db`, `sqlite:////folder/keys.db`; options `timeout_s`, `synchronous` and
    `allow`.
    """
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/"):
        raise Misuse(
            f"{url}: write sqlite:///keys.db for a file in the working folder, "
            "or sqlite:////folder/keys.db with four slashes"
        )
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if unknown := options.keys() - {"timeout_s", "synchronous", "allow"}:
        raise Misuse(
            f"{url}: no option is called {min(unknown)}, only timeout_s, synchronous and allow"
        )
    if "allow" in options:
        options["allow"] = options["allow"].split(",")
    if "timeout_s" in options:
        try:
            options["timeout_s"] = float(options["timeout_s"])
        except ValueError:
            raise Misuse(f"{url}: timeout_s is a number of seconds") from None
    return SqliteStore(unquote(parts.path[1:]), **options)


def may_hold_records(path: os.PathLike[str]) -> bool:
    """Return False if a file certainly has none of our tables, without changing it.

    A file that cannot be read may be ours; opening it says what is wrong.
    """
    try:
        address = f"file:{quote(os.fsencode(path))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as db:
            return bool(db.execute(OUR_SCHEMA).fetchone())
    except sqlite3.Error:
        return True


# --------------------------------------------------------------------------------- questions


def _open(file: File) -> None:
    """Open the file and do nothing else."""


def _look_around(path: str, file: File) -> checks.Surroundings:
    return checks.look_around(path)


def _tables(file: File) -> tuple[int | None, int | None, int | None]:
    """Return the schema, and an upper bound of the number of records."""

    def look(execute: Execute) -> tuple[int | None, int | None, int | None]:
        applied, oldest_reader = _schema(execute)
        if applied is None:
            return None, None, None
        first, last = execute("SELECT min(n), max(n) FROM oncekey_claims").fetchone()
        return applied, oldest_reader, 0 if last is None else last - first + 1

    return file.read(look)


def _perform(verbs: Sequence[Verb], clock: Clock, file: File) -> list[Any]:
    """Carry out one batch: first all that reading can answer, then the rest in one transaction.

    A lone verb is mostly a new key or a renewal, and is carried out at once unless another process
    writes.
    """
    if len(verbs) == 1 and is_single(verbs[0]):
        with suppress(NotAll, Busy):
            return file.write_at_once(lambda execute: Single(clock, execute).carry_out(verbs))
    if WRITES.issuperset(map(type, verbs)):
        return _write(verbs, clock, file)
    outcomes = file.read(lambda execute: Reader(clock, execute).carry_out(verbs))
    left = [at for at, outcome in enumerate(outcomes) if outcome is MUST_WRITE]
    if left:
        written = _write([verbs[at] for at in left], clock, file)
        for at, outcome in zip(left, written, strict=True):
            outcomes[at] = outcome
    return outcomes


def _write(verbs: Sequence[Verb], clock: Clock, file: File) -> list[Any]:
    def work(execute: Execute) -> list[Any]:
        return how(clock, execute).carry_out(verbs)

    alone = len(verbs) == 1
    how = Writer if alone else Batch
    try:
        outcomes = file.write(work, little=alone and is_brief(verbs[0]))
    except NotAll:
        how = Writer
        outcomes = file.write(work)
    if any(type(verb) is Purge for verb in verbs):
        file.erase_wal()
    return outcomes


def _migrate(path: str, file: File) -> list[str]:
    """Migrate. A file that is up to date is only read, without waiting for a writer."""
    known = migrations("sqlite")
    applied, oldest_reader = file.read(_schema)
    if applied is not None and applied >= known[-1].number:
        check_schema("sqlite", applied, oldest_reader, path)
        return []

    def work(execute: Execute) -> list[str]:
        applied, _ = _schema(execute)
        missing = [migration for migration in known if migration.number > (applied or 0)]
        for migration in missing:
            for statement in _statements(migration.sql):
                execute(statement)
            noted = (migration.number, migration.name, migration.oldest_reader)
            execute("INSERT INTO oncekey_schema VALUES (?, ?, ?)", noted)
        check_schema("sqlite", *_schema(execute), path)
        return [migration.name for migration in missing]

    return file.write(work)


def _schema(execute: Execute) -> tuple[int | None, int | None]:
    """Return the newest schema applied, and the oldest that code must know to use it."""
    if not execute(OUR_SCHEMA).fetchone():
        return None, None
    noted = execute("SELECT max(number), max(oldest_reader) FROM oncekey_schema").fetchone()
    applied, oldest_reader = noted
    return applied, oldest_reader


def _statements(script: str) -> Iterator[str]:
    """Yield the statements one by one: `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
