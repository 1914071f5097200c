"""Whether a MySQL or MariaDB may be used as it is, what is worth knowing about it, and what its
schema is made of. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from oncekey._core.op import Op
from oncekey._core.policy import DEFAULTS
from oncekey._core.values import value
from oncekey.errors import StoreUnfit
from oncekey.stores.checks import (
    UNREAD_SCHEMA,
    Examination,
    Finding,
    Risk,
    Size,
    advice,
    connection_limit,
    unsafe,
)
from oncekey.stores.checks import schema as schema_finding
from oncekey.stores.mysql.statements import Question, Reply, Value, literal
from oncekey.stores.sql import Migration, migrations
from oncekey.stores.sql_batch import Denied

MYSQL_MIN = (8, 0)
MARIADB_MIN = (10, 6)
RISKS = (Risk.DURABILITY, Risk.PACKETS, Risk.CONNECTIONS)
PACKET_BYTES_MIN = 2 * (DEFAULTS.answer_bytes_max + 65_536)
"""For the longest answer that the default policy stores, and its headers: values are sent as
hexadecimal digits. A batch is cut to what the server takes.
"""
PACKET_BYTES = 16_777_216
"""What to set."""
_SYNCED = (1, 3)
"""With each commit; 3 is MariaDB's "1, and once more"."""

SETTINGS = {
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "time_zone": "'+00:00'",
    "autocommit": "1",
    "completion_type": "0",
    "sql_safe_updates": "0",
    "sql_select_limit": "18446744073709551615",
    "sql_big_selects": "1",
    "sql_auto_is_null": "0",
    "group_concat_max_len": "1048576",
}
"""Settings of each of our sessions: how SQL is read, values are written, results are limited."""

PREPARE = Question(
    (
        "SELECT VERSION(), @@GLOBAL.read_only, @@innodb_flush_log_at_trx_commit, @@log_bin, "
        "@@GLOBAL.sync_binlog, @@SESSION.max_allowed_packet, @@SESSION.max_user_connections, "
        "SLEEP(0.001), sysdate(6) > now(6)",  # lower case: `transactions` does not replace it
        "SELECT MAX(number), MAX(oldest_reader) FROM oncekey_schema",
        "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() "
        "AND table_name IN ('oncekey_claims', 'oncekey_steps', 'oncekey_fences', 'oncekey_held', "
        "'oncekey_outbox')",
    )
)


@value
class Server:
    """What a server reports."""

    version: str
    read_only: bool
    flush_log: int
    log_bin: bool
    sync_binlog: int
    packet_bytes_max: int
    other_engines: dict[str, str]
    """Our tables that are not in InnoDB, and their engine."""
    connections_max: int | None = None
    """The limit of the user."""
    reads_clock: bool = True
    """Whether `SYSDATE` is the time of evaluation, and not that of the statement's start."""

    def findings(self) -> Iterator[Finding]:
        """Check all that decides whether it may be used, but the schema."""
        yield _version(self.version)
        yield self._role()
        yield self._engines()
        yield self._durability()
        yield self._packets()
        yield self._clock()
        yield Finding(
            "settings", f"of each session: {', '.join(map(' = '.join, SETTINGS.items()))}"
        )
        do = "ALTER USER <user> WITH MAX_USER_CONNECTIONS 7 for each process"
        yield connection_limit(self.connections_max, "max_user_connections =", do)

    def _role(self) -> Finding:
        if self.read_only:
            return unsafe(
                "role",
                "read_only = 1",
                "as on a replica: nothing can be claimed, and its data may be old",
                "Name the primary, or SET GLOBAL read_only = 0 there",
            )
        return Finding("role", "read and write")

    def _engines(self) -> Finding:
        for table, engine in self.other_engines.items():
            why = "it has no transactions"
            do = f"ALTER TABLE {table} ENGINE = InnoDB"
            return unsafe("engine", f"{table} in {engine}", why, do)
        return Finding("engine", "InnoDB")

    def _durability(self) -> Finding:
        forgets = "a crash can forget what was acknowledged, and a retry would then run again"
        if self.flush_log not in _SYNCED:
            seen = f"innodb_flush_log_at_trx_commit = {self.flush_log}"
            do = "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration"
            return unsafe("durability", seen, forgets, do, Risk.DURABILITY)
        if self.log_bin and self.sync_binlog != 1:  # a transaction that it lacks is rolled back
            seen = f"sync_binlog = {self.sync_binlog}"
            do = "SET GLOBAL sync_binlog = 1, and in the server's configuration"
            return unsafe("durability", seen, forgets, do, Risk.DURABILITY)
        seen = f"innodb_flush_log_at_trx_commit = {self.flush_log}"
        return Finding(
            "durability", f"{seen}, {'sync_binlog = 1' if self.log_bin else 'no binary log'}"
        )

    @property
    def shows_early(self) -> bool:
        """Whether others see a commit before it is on disk."""
        return not self.log_bin and self.flush_log in _SYNCED

    def _packets(self) -> Finding:
        seen = f"max_allowed_packet = {self.packet_bytes_max:,}"
        if self.packet_bytes_max < PACKET_BYTES_MIN:
            longest = DEFAULTS.answer_bytes_max
            why = (
                f"an answer may have {longest:,} bytes and needs {PACKET_BYTES_MIN:,}; what does "
                "not fit is kept without its body, and no retry gets it"
            )
            do = f"SET GLOBAL max_allowed_packet = {PACKET_BYTES}, and in its configuration"
            return unsafe("packets", seen, why, do, Risk.PACKETS)
        return Finding("packets", seen)

    def _clock(self) -> Finding:
        if not self.reads_clock:
            return unsafe(
                "time of writing",
                "sysdate-is-now",
                "a statement that waited uses the time before: leases and records end early",
                "Take sysdate-is-now out of the server's configuration",
            )
        return Finding("time of writing", "SYSDATE reads the clock")


def server(replies: list[Reply]) -> Server:
    """Read the replies to `PREPARE`, all but the schema's."""
    [row] = replies[0].rows
    version, read_only, flush_log, log_bin, sync_binlog, *others = row
    packet_bytes_max, connections_max, _, reads_clock = others
    engines = {_text(name): _text(engine) for name, engine in replies[2].rows}
    return Server(
        str(version),
        _is_on(read_only),
        int(str(flush_log)),
        _is_on(log_bin),
        int(str(sync_binlog)),
        int(str(packet_bytes_max)),
        {name: engine for name, engine in engines.items() if engine.lower() != "innodb"},
        int(str(connections_max)) or None,
        bool(reads_clock),
    )


def _text(given: Any) -> str:
    return given.decode() if isinstance(given, bytes) else str(given)


def _is_on(setting: Any) -> bool:
    return _text(setting).upper() not in ("0", "OFF")


def _version(version: str) -> Finding:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or "tidb" in version.lower():
        why = "it is neither MySQL nor MariaDB"
        return unsafe("version", version, why, "Name another server")
    name, least = ("MariaDB", MARIADB_MIN) if "mariadb" in version.lower() else ("MySQL", MYSQL_MIN)
    seen = f"{name} {version}"
    if (int(numbers[1]), int(numbers[2])) < least:
        why = f"the oldest that will do is {least[0]}.{least[1]}"
        return unsafe("version", seen, why, "Upgrade the server")
    return Finding("version", seen)


# ------------------------------------------------------------------------------- a thorough look

_VARIABLES = (
    *("max_connections", "innodb_doublewrite", "wsrep_on"),
    *("group_replication_single_primary_mode", "group_replication_group_name"),
    *("transaction_isolation", "tx_isolation"),
)
_LOOK = Question(
    (
        f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {_VARIABLES}",
        "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', 'wsrep_cluster_size')",
        "SELECT table_name, table_rows, data_length + index_length FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_name LIKE 'oncekey%'",
    ),
    chore=True,
)
_NOW = Question(("SELECT UNIX_TIMESTAMP(SYSDATE(6))",))
_PROBES = {
    "SELECT": ("SELECT 1 FROM {0} WHERE 1 = 0", "schema claims steps fences"),
    "INSERT": ("INSERT INTO {0} SELECT * FROM {0} WHERE 1 = 0", "claims steps"),
    "UPDATE": ("UPDATE {0} SET {1} = {1} WHERE 1 = 0", "claims steps fences"),
    "DELETE": ("DELETE FROM {0} WHERE 1 = 0", "claims steps"),
}
"""They change nothing, and need the privileges that the verbs need."""

BUSY_SHARE = 0.8


def examine(address: str) -> Op[Examination]:
    """Check everything, also what is no reason to refuse the server."""
    denied = False
    try:
        replies = yield PREPARE
        [(applied, oldest_reader)] = replies[1].rows
    except StoreUnfit as unfit:
        denied = isinstance(unfit, Denied)
        first, _, last = PREPARE.statements
        found = yield Question((first, last))
        replies, applied, oldest_reader = [found[0], found[0], found[1]], None, None
    told = server(replies)
    variables, status, tables = yield _LOOK
    newest = migrations("mysql")[-1].number
    readable = (applied or 0) >= newest >= (oldest_reader or 0)
    findings = [
        *told.findings(),
        UNREAD_SCHEMA if denied else schema_finding(applied, oldest_reader, newest, address),
        *_beyond({_text(k): _text(v) for k, v in (*variables.rows, *status.rows)}),
    ]
    if (readable or denied) and not told.read_only:
        findings.append((yield from _privileges()))
    sizes = {_text(name): (int(rows or 0), int(size or 0)) for name, rows, size in tables.rows}
    rows = sizes.get("oncekey_claims", (0, 0))[0]
    size = Size(sum(each for _, each in sizes.values()), rows or None, "as the statistics have it")
    return Examination(findings[0].seen, findings, size, readable)


def now() -> Op[float | None]:
    [reply] = yield _NOW
    return float(reply.rows[0][0])


def _privileges() -> Op[Finding]:
    missing = []
    for name, (probe, tables) in _PROBES.items():
        asked = [
            probe.format(f"oncekey_{table}", "removed" if table == "fences" else "id")
            for table in tables.split()
        ]
        try:
            yield Question(tuple(asked))
        except StoreUnfit:
            missing.append(name)
    if missing:
        seen, what = f"missing: {', '.join(missing)}", ", ".join(missing)
        do = f"GRANT {what} ON <database>.* TO <user>"
        return unsafe("privileges", seen, "what needs them fails", do)
    return Finding("privileges", "all that is needed")


def _beyond(told: Mapping[str, str]) -> Iterator[Finding]:
    isolation = told.get("transaction_isolation") or told.get("tx_isolation", "?")
    yield Finding("isolation", f"READ COMMITTED in our sessions (the server's: {isolation})")
    yield _several_writers(told)
    if told.get("innodb_doublewrite", "ON").upper() in ("OFF", "0"):
        yield advice(
            "torn pages",
            "innodb_doublewrite = OFF",
            "a loss of power can damage pages, unless the file system writes them whole (ZFS)",
            "Set innodb_doublewrite = ON in the server's configuration",
        )
    else:
        yield Finding("torn pages", f"innodb_doublewrite = {told.get('innodb_doublewrite', '?')}")
    yield _connections(int(told.get("Threads_connected", 0)), int(told.get("max_connections", 0)))


def _several_writers(told: Mapping[str, str]) -> Finding:
    if told.get("wsrep_on", "OFF").upper() in ("ON", "1"):
        return advice(
            "replication",
            f"a Galera cluster of {told.get('wsrep_cluster_size', '?')} nodes",
            "another node may not know yet what this one acknowledged",
            "Name the same node in the URL of every process",
        )
    if (
        told.get("group_replication_group_name")
        and told.get("group_replication_single_primary_mode") == "OFF"
    ):
        return advice(
            "replication",
            "group_replication_single_primary_mode = OFF",
            "another member may not know yet what this one acknowledged",
            "Name the same member in the URL of every process",
        )
    return Finding(
        "replication", "one server writes; a failover to an asynchronous replica forgets"
    )


def _connections(open_now: int, most: int) -> Finding:
    seen = f"{open_now} of max_connections = {most}"
    if open_now > BUSY_SHARE * most:
        why = "a process that cannot connect refuses its requests; each takes up to seven"
        return advice("connections", seen, why, "Raise max_connections")
    return Finding("connections", seen)


# ------------------------------------------------------------------------------------------ schema

ONE_MIGRATOR = "LEFT(CONCAT('oncekey migrate ', DATABASE()), 64)"
"""The name of a session's lock: statements that create tables end every transaction."""
NOTEBOOK = """\
CREATE TABLE IF NOT EXISTS oncekey_schema (
    number        INT NOT NULL PRIMARY KEY,
    name          VARBINARY(255) NOT NULL,
    oldest_reader INT NOT NULL,
    applied       DATETIME(6) NOT NULL
) ENGINE = InnoDB"""


def statements(migration: Migration) -> list[str]:
    """Return the statements of a migration, without comments."""
    bare = re.sub(r"--.*", "", migration.sql)
    return [statement.strip() for statement in bare.split(";") if statement.strip()]


def note(migration: Migration) -> str:
    given: tuple[Value, ...] = (migration.number, migration.name, migration.oldest_reader)
    values = ", ".join(map(literal, given))
    return (
        "INSERT INTO oncekey_schema (number, name, oldest_reader, applied) "  # noqa: S608
        f"VALUES ({values}, UTC_TIMESTAMP(6))"
    )
