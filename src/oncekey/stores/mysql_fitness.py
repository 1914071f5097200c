"""Whether a MySQL or MariaDB may be used as it is, and what its schema is made of. Pure."""

from __future__ import annotations

import re
from typing import Any

from oncekey.core.value import value
from oncekey.stores.mysql_address import UNSAFE
from oncekey.stores.mysql_text import Question, Reply, Value, literal
from oncekey.stores.sql import Migration

MYSQL_MIN = (8, 0)
MARIADB_MIN = (10, 6)

PREPARE = Question(
    (
        "SELECT VERSION(), @@GLOBAL.read_only, @@innodb_flush_log_at_trx_commit, @@log_bin, "
        "@@GLOBAL.sync_binlog",
        "SELECT MAX(number), MAX(oldest_reader) FROM oncekey_schema",
        "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() "
        "AND table_name IN ('oncekey_claims', 'oncekey_steps', 'oncekey_fences')",
    )
)


@value
class Server:
    """What a server says of itself."""

    version: str
    read_only: bool
    flush_log: int
    log_bin: bool
    sync_binlog: int
    other_engines: dict[str, str]
    """Our tables that are not in InnoDB."""

    def unfit(self, *, unsafe_durability: bool) -> str | None:
        """Why it must not be used, if it must not."""
        if why := _too_old(self.version):
            return why
        if self.read_only:
            return "is read-only, as replicas are: name the primary, or set read_only = 0 there"
        for table, engine in self.other_engines.items():
            return (
                f"keeps {table} in {engine}, which has no transactions: ALTER TABLE {table} "
                "ENGINE = InnoDB"
            )
        if (setting := self._forgetful()) and not unsafe_durability:
            return (
                f"has {setting}: a crash can forget what was told, and a retry would then run "
                f"again. Set it to 1, or accept that by adding allow={UNSAFE} to the URL"
            )
        return None

    def _forgetful(self) -> str | None:
        if self.flush_log not in (1, 3):  # 3 is MariaDB's "1, and once more"
            return f"innodb_flush_log_at_trx_commit = {self.flush_log}"
        if self.log_bin and self.sync_binlog != 1:  # a transaction that it lacks is rolled back
            return f"sync_binlog = {self.sync_binlog}"
        return None


def server(replies: list[Reply]) -> Server:
    """The answers to `PREPARE`, but for the schema's."""
    [row] = replies[0].rows
    version, read_only, flush_log, log_bin, sync_binlog = row
    engines = {_text(name): _text(engine) for name, engine in replies[2].rows}
    return Server(
        str(version),
        _is_on(read_only),
        int(str(flush_log)),
        _is_on(log_bin),
        int(str(sync_binlog)),
        {name: engine for name, engine in engines.items() if engine.lower() != "innodb"},
    )


def _text(given: Any) -> str:
    return given.decode() if isinstance(given, bytes) else str(given)


def _is_on(setting: Any) -> bool:
    return _text(setting).upper() not in ("0", "OFF")


def _too_old(version: str) -> str | None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or "tidb" in version.lower():
        return f"is {version}, which is neither MySQL nor MariaDB"
    name, least = ("MariaDB", MARIADB_MIN) if "mariadb" in version.lower() else ("MySQL", MYSQL_MIN)
    if (int(numbers[1]), int(numbers[2])) < least:
        return f"is {name} {version}; the oldest that will do is {least[0]}.{least[1]}"
    return None


# ------------------------------------------------------------------------------------------ schema

ONE_MIGRATOR = "LEFT(CONCAT('oncekey migrate ', DATABASE()), 64)"
"""The name of a lock that belongs to the session: what creates tables ends every transaction."""
NOTEBOOK = """\
CREATE TABLE IF NOT EXISTS oncekey_schema (
    number        INT NOT NULL PRIMARY KEY,
    name          VARBINARY(255) NOT NULL,
    oldest_reader INT NOT NULL,
    applied       DATETIME(6) NOT NULL
) ENGINE = InnoDB"""


def statements(migration: Migration) -> list[str]:
    """The statements of a migration, one by one, without comments."""
    bare = re.sub(r"--.*", "", migration.sql)
    return [statement.strip() for statement in bare.split(";") if statement.strip()]


def note(migration: Migration) -> str:
    given: tuple[Value, ...] = (migration.number, migration.name, migration.oldest_reader)
    values = ", ".join(map(literal, given))
    return (
        "INSERT INTO oncekey_schema (number, name, oldest_reader, applied) "  # noqa: S608
        f"VALUES ({values}, UTC_TIMESTAMP(6))"
    )
