"""Records in PostgreSQL 13 or later: the durable store for more than one machine.

`queries.sql` holds the statements and says why they are safe, `verbs` asks them, `connection` knows
the drivers.
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
from oncekey.stores.postgres import checks
from oncekey.stores.postgres import verbs as postgres_verbs
from oncekey.stores.postgres.connection import (
    Address,
    AsyncPostgresConnection,
    PostgresConnection,
    PostgresDriver,
    split,
    with_application_name,
)
from oncekey.stores.postgres.layouts import begin_inline
from oncekey.stores.postgres.outbox import PostgresOutboxTable
from oncekey.stores.postgres.statements import STATEMENTS
from oncekey.stores.postgres.transactions import TRANSACTIONS
from oncekey.stores.postgres.verbs import Limits, Question
from oncekey.stores.sql import Migration, check_waits, migrations
from oncekey.stores.sql_batch import RowHeld, group

MIGRATORS = 31360989905909113
"""The advisory lock of a migration."""

DURABILITY = Durability(
    *(True, True, True),
    "a commit is on disk before it is acknowledged; a failover to an asynchronous standby can "
    "forget the last ones",
)
UNSAFE_DURABILITY = Durability(
    *(True, False, False),
    "fsync or synchronous_commit may be off: a crash can forget what was acknowledged",
)


def open_url(url: str) -> PostgresStore:
    """A store from `postgresql://user:password@host/database`, with any parameter of libpq's, and
    of our own: `pgbouncer=true`, `allow=unsafe-durability`, `timeout_s`, `connect_timeout_s`.
    """
    libpq, options = split(url)
    return PostgresStore(libpq, **options)


class PostgresStore:
    """Records in PostgreSQL."""

    name = "postgres"
    traits = Traits()
    transactions = TRANSACTIONS
    outbox = PostgresOutboxTable()

    def __init__(
        self,
        url: str,
        *,
        pgbouncer: bool = False,
        allow: Collection[str] = (),
        timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        check_waits(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        self.allowed = parse_risks(allow, checks.RISKS)
        self.durability = UNSAFE_DURABILITY if Risk.DURABILITY in self.allowed else DURABILITY
        self.address = Address(with_application_name(url))
        self.limits = Limits(timeout_s)
        self.driver = PostgresDriver(
            self.address, self.limits, connect_timeout_s, pgbouncer=pgbouncer
        )

    def __repr__(self) -> str:
        return f"PostgresStore({self.address.safe_url!r})"

    @property
    def location(self) -> Hashable:
        return self.name, *self.address.location

    def group(self, verb: Verb) -> Hashable:
        return group(verb)

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        return postgres_verbs.perform(verbs, self.limits)

    # ----------------------------------------------------------------------- checks and schema

    def prepare(self) -> Op[None]:
        [row] = yield Question(checks.PREPARE)
        safe_url = self.address.safe_url
        findings = checks.Server(*row).findings(safe_url, pooled=self.driver.pgbouncer)
        refuse_unsafe(findings, safe_url, self.allowed)

    def examine(self) -> Op[Examination]:
        return checks.examine(self.address.safe_url, pooled=self.driver.pgbouncer)

    def now(self) -> Op[float | None]:
        return checks.now()

    def sample(self, limit: int) -> Op[Sample]:
        return first_by_id(self, limit)

    def migrate(self) -> Op[list[str]]:
        known, applied = migrations(self.name), []
        for migration in known:
            yield Question("BEGIN", script=True)
            try:
                applied += yield from self._migrate(migration, known)
                yield Question("COMMIT", script=True)
            except Exception as error:
                with contextlib.suppress(StoreError):
                    yield Question("ROLLBACK", script=True)
                if isinstance(error, RowHeld):
                    raise self.driver.unavailable(_TABLE_HELD, sent=False) from error
                raise
        return applied

    def _migrate(self, migration: Migration, known: list[Migration]) -> Op[list[str]]:
        """Apply a missing one. A new database gets all of them at once: interrupted in between it
        would be taken for an older one, whose layout other processes rely on.
        """
        yield Question(STATEMENTS["one_migrator"], (MIGRATORS,), chore=True)
        yield Question(STATEMENTS["notebook"], script=True)
        noted = {row[0] for row in (yield Question(STATEMENTS["noted"]))}
        wanted = [migration] if noted else known
        missing = [each for each in wanted if each.number not in noted]
        for each in missing:
            note = (each.number, each.name, each.oldest_reader)
            yield Question(each.sql, chore=True, script=True)
            yield Question(STATEMENTS["note"], note)
        if not noted:
            yield from begin_inline()
        return [f"{each.number:04}_{each.name}" for each in missing]

    # ----------------------------------------------------------------------------- connections

    def connect(self) -> PostgresConnection:
        return self.driver.connect()

    async def aconnect(self) -> AsyncPostgresConnection:
        return await self.driver.aconnect()


_TABLE_HELD = (
    "a transaction that stays open keeps the tables from being changed, and others would soon wait "
    "behind the change: find it in pg_stat_activity, then migrate again"
)
