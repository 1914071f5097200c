"""Records in MySQL 8.0 or MariaDB 10.6 or later: what both can do, and nothing that only one can.

`statements` spells values, `verbs` and `writes` ask the verbs and say why that is safe,
`durability` sees to it that what is answered is on disk, `connection` knows the drivers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey._core.verbs import Verb
from oncekey.errors import StoreError
from oncekey.stores.base import Durability, Traits
from oncekey.stores.checks import Examination, Risk, Sample, first_by_id, parse_risks, refuse_unsafe
from oncekey.stores.mysql import checks, durability
from oncekey.stores.mysql import verbs as mysql_verbs
from oncekey.stores.mysql.connection import (
    Address,
    AsyncMySQLConnection,
    MySQLConnection,
    MySQLDriver,
    parse_url,
)
from oncekey.stores.mysql.outbox import MySQLOutboxTable
from oncekey.stores.mysql.statements import Question
from oncekey.stores.mysql.transactions import TRANSACTIONS
from oncekey.stores.mysql.writes import Limits
from oncekey.stores.sql import check_schema, check_waits, migrations
from oncekey.stores.sql_batch import CHORE_TIMEOUT_S, RowHeld, group

DURABILITY = Durability(
    *(True, True, True),
    "a commit is on disk before it is acknowledged; a failover to an asynchronous replica can "
    "forget the last ones",
)
UNSAFE_DURABILITY = Durability(
    *(True, False, False),
    "innodb_flush_log_at_trx_commit or sync_binlog may not be 1: a crash can forget what was "
    "acknowledged",
)


def open_url(url: str) -> MySQLStore:
    """A store from `mysql://user:password@host/database`, or `mariadb://…`, with `tls=true`,
    `tls_ca`, `unix_socket`, `allow=unsafe-durability`, `timeout_s`, `connect_timeout_s`.
    """
    address, options = parse_url(url)
    return MySQLStore(address, **options)


class MySQLStore:
    """Records in MySQL or MariaDB."""

    name = "mysql"
    traits = Traits()
    transactions = TRANSACTIONS
    outbox = MySQLOutboxTable()

    def __init__(
        self,
        address: Address,
        *,
        allow: Collection[str] = (),
        timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        check_waits(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        self.allowed = parse_risks(allow, checks.RISKS)
        self.durability = UNSAFE_DURABILITY if Risk.DURABILITY in self.allowed else DURABILITY
        self.address = address
        self.limits = Limits(timeout_s)
        self.driver = MySQLDriver(address, self.limits, connect_timeout_s)

    def __repr__(self) -> str:
        return f"MySQLStore({self.address.safe_url!r})"

    @property
    def location(self) -> Hashable:
        return self.name, *self.address.location

    def group(self, verb: Verb) -> Hashable:
        return group(verb)

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        op = mysql_verbs.perform(verbs, self.limits)
        return durability.answer_durably(verbs, op) if self.driver.shows_early else op

    # ----------------------------------------------------------------------- checks and schema

    def prepare(self) -> Op[None]:
        replies = yield checks.PREPARE
        safe_url = self.address.safe_url
        server = checks.server(replies)
        refuse_unsafe(server.findings(), safe_url, self.allowed)
        self.driver.shows_early = server.shows_early
        [(applied, oldest_reader)] = replies[1].rows
        check_schema(self.name, applied, oldest_reader, safe_url)

    def examine(self) -> Op[Examination]:
        return checks.examine(self.address.safe_url)

    def now(self) -> Op[float | None]:
        return checks.now()

    def sample(self, limit: int) -> Op[Sample]:
        return first_by_id(self, limit)

    def migrate(self) -> Op[list[str]]:
        mutex = checks.ONE_MIGRATOR
        wait_s = int(CHORE_TIMEOUT_S / 2)
        [reply] = yield Question((f"SELECT GET_LOCK({mutex}, {wait_s})",), chore=True)
        if reply.rows[0][0] != 1:
            raise self.driver.unavailable("another migration is in progress", sent=False)
        release = Question((f"SELECT RELEASE_LOCK({mutex})",))
        try:
            applied = yield from self._migrate()
        except Exception as error:
            with contextlib.suppress(StoreError):
                yield release
            if isinstance(error, RowHeld):
                raise self.driver.unavailable(_TABLE_HELD, sent=False) from error
            raise
        yield release
        return applied

    def _migrate(self) -> Op[list[str]]:
        """Each statement commits by itself and can be repeated: migrations can be resumed."""
        yield Question((checks.NOTEBOOK,), chore=True)
        [reply] = yield Question(("SELECT number FROM oncekey_schema",))
        noted = {row[0] for row in reply.rows}
        applied = []
        for migration in migrations(self.name):
            if migration.number not in noted:
                for statement in checks.statements(migration):
                    yield Question((statement,), chore=True)
                yield Question((checks.note(migration),))
                applied.append(f"{migration.number:04}_{migration.name}")
        return applied

    # ----------------------------------------------------------------------------- connections

    def connect(self) -> MySQLConnection:
        return self.driver.connect()

    async def aconnect(self) -> AsyncMySQLConnection:
        return await self.driver.aconnect()


_TABLE_HELD = (
    "a transaction that stays open keeps the tables from being changed, and others would soon wait "
    "behind the change: find it in SHOW PROCESSLIST, then migrate again"
)
