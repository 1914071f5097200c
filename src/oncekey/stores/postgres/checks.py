"""Whether a PostgreSQL may be used as it is, and what is worth knowing about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oncekey._core.op import Op
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
from oncekey.stores.postgres.statements import STATEMENTS
from oncekey.stores.postgres.verbs import Question
from oncekey.stores.sql import migrations
from oncekey.stores.sql_batch import Denied

VERSION_MIN = 13
ENCODINGS = ("UTF8", "SQL_ASCII")
"""Those that can store any text."""
RISKS = (Risk.DURABILITY, Risk.CONNECTIONS)

NEEDED = {
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "datestyle": "ISO, MDY",
}
"""Settings for reading SQL and writing values, as our connections set them. A role or a database
may have others, for an old application. The statements of this release mean the same under any of
them; those of release 0.1 and its functions do not. Through a pooler they cannot be set, so they
are checked.
"""

_SETTINGS = """
    current_setting('server_version_num')::int,
    pg_is_in_recovery(),
    current_setting('transaction_read_only')::bool,
    current_setting('transaction_isolation'),
    current_setting('server_encoding'),
    current_setting('fsync')::bool,
    current_setting('synchronous_commit'),
    (SELECT string_agg(relname, ', ' ORDER BY relname) FROM pg_class
     WHERE starts_with(relname, 'oncekey_') AND relkind = 'r' AND relpersistence = 'u'
     AND pg_table_is_visible(oid))"""
_OTHERWISE = "concat_ws(', ', {})".format(
    ", ".join(
        f"CASE WHEN split_part(current_setting('{name}'), ',', 1) <> '{value.partition(',')[0]}' "
        f"THEN '{name} = ' || current_setting('{name}') END"
        for name, value in NEEDED.items()
    )
)
_UNHEARD = """current_setting('client_min_messages') IN ('error', 'fatal', 'panic')
    AND current_setting('synchronous_standby_names') <> ''"""
_CONNECTIONS = """
    (SELECT min(few) FROM pg_roles, pg_database, unnest(ARRAY[rolconnlimit, datconnlimit]) few
     WHERE rolname = session_user AND NOT rolsuper AND datname = current_database() AND few >= 0)"""
PREPARE = f"""SELECT {_SETTINGS},
    (SELECT max(number) FROM oncekey_schema),
    (SELECT max(oldest_reader) FROM oncekey_schema),
    {_CONNECTIONS}, {_OTHERWISE}, {_UNHEARD}"""  # noqa: S608
_WITHOUT_TABLES = (
    f"SELECT {_SETTINGS}, NULL::int, NULL::int, {_CONNECTIONS}, {_OTHERWISE}, {_UNHEARD}"
)


@value
class Server:
    """What a server reports, in the order of `PREPARE`."""

    version: int
    standby: bool
    read_only: bool
    isolation: str
    encoding: str
    fsync: bool
    synchronous_commit: str
    unlogged: str | None
    """Our unlogged tables, which a crash empties."""
    applied: int | None
    oldest_reader: int | None
    connections_max: int | None = None
    """The role's in this database, or the database's."""
    settings: str = ""
    """Those of `NEEDED` that have another value in this session."""
    unheard: bool = False
    """Whether the warning is lost that a commit was cut short while it waited for a standby."""

    def findings(self, address: str, *, pooled: bool = False) -> Iterator[Finding]:
        """Check what decides whether it may be used. `pooled`: a pooler shares its connections."""
        yield self._version()
        yield self._role()
        yield self._isolation()
        yield self._encoding()
        yield self._read_and_written()
        yield self._durability()
        if not pooled:
            do = "ALTER ROLE <role>, or ALTER DATABASE <name>, CONNECTION LIMIT 7 for each process"
            yield connection_limit(self.connections_max, "CONNECTION LIMIT", do)
        newest = migrations("postgres")[-1].number
        yield schema_finding(self.applied, self.oldest_reader, newest, address)

    def _version(self) -> Finding:
        seen = f"PostgreSQL {self.version // 10_000}.{self.version % 10_000}"
        if self.version < VERSION_MIN * 10_000:
            why = f"the oldest that will do is {VERSION_MIN}"
            return unsafe("version", seen, why, "Upgrade the server")
        return Finding("version", seen)

    def _role(self) -> Finding:
        if self.standby:
            return unsafe(
                "role",
                "a standby",
                "it cannot be written to, and what it shows may be old",
                "Name the primary, or all hosts (postgresql://user@one,two/database) and "
                "target_session_attrs=read-write",
            )
        if self.read_only:
            return unsafe(
                "role",
                "read-only for this role",
                "nothing can be claimed",
                "ALTER ROLE <role> SET default_transaction_read_only = off",
            )
        return Finding("role", "primary, read and write")

    def _isolation(self) -> Finding:
        if self.isolation != "read committed":
            return unsafe(
                "isolation",
                self.isolation,
                "concurrent claims fail under it",
                "ALTER ROLE <role> SET default_transaction_isolation = 'read committed'",
            )
        return Finding("isolation", self.isolation)

    def _encoding(self) -> Finding:
        if self.encoding not in ENCODINGS:
            return unsafe(
                "encoding",
                self.encoding,
                "it lacks characters: an answer whose resource id has others is lost",
                "CREATE DATABASE <name> ENCODING 'UTF8' TEMPLATE template0, and name that",
            )
        return Finding("encoding", self.encoding)

    def _read_and_written(self) -> Finding:
        if self.settings:
            name = self.settings.partition(" = ")[0]
            return advice(
                "settings",
                self.settings,
                "a role or database has this set, and a pooler passes on no settings of ours: this "
                "release does not depend on it, but a process of release 0.1 beside it may run a "
                "key twice",
                f"ALTER ROLE <role> SET {name} = '{NEEDED[name]}', or ALTER DATABASE <name>",
            )
        return Finding("settings", ", ".join(f"{name} = {was}" for name, was in NEEDED.items()))

    def _durability(self) -> Finding:
        forgets = "a crash can forget what was acknowledged, and a retry would then run again"
        if not self.fsync:
            do = "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()"
            return unsafe("durability", "fsync = off", forgets, do, Risk.DURABILITY)
        if self.synchronous_commit == "off":
            do = "ALTER ROLE <role> SET synchronous_commit = on"
            return unsafe("durability", "synchronous_commit = off", forgets, do, Risk.DURABILITY)
        if self.unheard:
            return unsafe(
                "durability",
                "client_min_messages is above warning",
                "through a pooler, a commit that was cut short while it waited for a standby looks "
                "as if it was done: a failover can forget it, and a retry would then run again",
                "ALTER ROLE <role> SET client_min_messages = 'warning', or ALTER DATABASE <name>",
                Risk.DURABILITY,
            )
        if self.unlogged:
            return unsafe(
                "durability",
                f"unlogged: {self.unlogged}",
                "a crash empties such a table, and retries would then run again",
                f"ALTER TABLE {self.unlogged.partition(',')[0]} SET LOGGED",
                Risk.DURABILITY,
            )
        seen = f"fsync = on, synchronous_commit = {self.synchronous_commit}"
        return Finding("durability", seen)


# ------------------------------------------------------------------------------- a thorough look

_STATISTICS = """SELECT
    current_setting('full_page_writes')::bool,
    current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication)::int,
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
    ARRAY(
        SELECT p || ' on ' || t
        FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p,
            unnest(ARRAY[
                'oncekey_claims', 'oncekey_answers', 'oncekey_steps', 'oncekey_schema',
                'oncekey_steps_by_day', 'oncekey_requests_by_day'
            ]) t
        WHERE to_regclass(t) IS NOT NULL AND NOT has_table_privilege(to_regclass(t), p)
        AND NOT (t = 'oncekey_schema' AND p <> 'SELECT')
        ORDER BY t, p
    ) || ARRAY(
        SELECT 'USAGE on SEQUENCE oncekey_fences' WHERE to_regclass('oncekey_fences') IS NOT NULL
        AND NOT has_sequence_privilege(to_regclass('oncekey_fences'), 'USAGE')
    ),
    current_setting('max_connections')::int,
    (SELECT sum(numbackends) FROM pg_stat_database)::int,
    coalesce(extract(epoch FROM clock_timestamp() - (
        SELECT min(xact_start) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
    )), 0)::float8,
    (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database())::bigint,
    (SELECT sum(n_live_tup) FROM pg_stat_user_tables WHERE relname = 'oncekey_claims')::bigint,
    (SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname = 'oncekey_claims')::bigint,
    (SELECT sum(pg_total_relation_size(oid)) FROM pg_class
     WHERE starts_with(relname, 'oncekey_') AND relkind = 'r' AND pg_table_is_visible(oid))::bigint,
    (SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass('oncekey_claims'))"""
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"

BUSY_SHARE = 0.8
LONG_TRANSACTION_S = 600.0
XID_AGE_MAX = 1_000_000_000


def examine(address: str, *, pooled: bool = False) -> Op[Examination]:
    """Check everything, also what is no reason to refuse the server."""
    denied = False
    try:
        [row] = yield Question(PREPARE)
    except StoreUnfit as unfit:
        denied = isinstance(unfit, Denied)
        [row] = yield Question(_WITHOUT_TABLES)
    server = Server(*row)
    [row] = yield Question(_STATISTICS, chore=True)
    statistics = Statistics(*row)
    findings = [*server.findings(address, pooled=pooled), *statistics.findings()]
    if denied:
        findings = [UNREAD_SCHEMA if each.what == "schema" else each for each in findings]
    newest = migrations("postgres")[-1].number
    readable = (server.applied or 0) >= newest >= (server.oldest_reader or 0)
    if readable:
        [(layout, _)] = yield Question(STATEMENTS["layout"])
        findings.append(Finding("layout", f"answers {layout}"))
    return Examination(findings[0].seen, findings, statistics.size(), readable)


def now() -> Op[float | None]:
    [row] = yield Question(_NOW)
    seconds: float = row[0]
    return seconds


@value
class Statistics:
    """What `examine` asks besides, in the order of its query."""

    full_page_writes: bool
    synchronous_standby_names: str
    standbys: int
    superuser: bool | None
    missing_privileges: Sequence[Any]
    connections_max: int
    connections: int
    oldest_transaction_s: float
    xid_age: int
    live_rows: int | None
    dead_rows: int | None
    bytes: int | None
    rows: int | None

    def size(self) -> Size:
        """Return the size; without gathered statistics the number of rows is not known."""
        known = max(self.rows or 0, self.live_rows or 0)
        return Size(self.bytes, known or None, "tables and indexes")

    def findings(self) -> Iterator[Finding]:
        yield self._privileges()
        yield self._torn_pages()
        yield self._replication()
        yield self._connections()
        yield self._vacuum()

    def _privileges(self) -> Finding:
        if self.missing_privileges:
            missing = ", ".join(self.missing_privileges)
            grants = "; ".join(f"GRANT {each} TO <role>" for each in self.missing_privileges)
            why = "what needs them fails"
            return unsafe("privileges", f"missing: {missing}", why, grants)
        if self.superuser:
            return advice(
                "privileges",
                "this role is a superuser",
                "a leaked URL gives access to the whole server",
                "Use a role with SELECT, INSERT, UPDATE and DELETE on the oncekey tables",
            )
        return Finding("privileges", "all that is needed")

    def _torn_pages(self) -> Finding:
        if not self.full_page_writes:
            return advice(
                "torn pages",
                "full_page_writes = off",
                "a loss of power can damage pages, unless the file system writes them whole (ZFS)",
                "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
            )
        return Finding("torn pages", "full_page_writes = on")

    def _replication(self) -> Finding:
        if self.standbys and not self.synchronous_standby_names:
            return advice(
                "replication",
                f"standbys: {self.standbys}, none of them synchronous",
                "a failover forgets what the standby had not received, and retries run again",
                "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()",
            )
        names = self.synchronous_standby_names
        return Finding("replication", f"synchronous_standby_names = '{names}'" if names else "none")

    def _connections(self) -> Finding:
        seen = f"{self.connections} of max_connections = {self.connections_max}"
        if self.connections > BUSY_SHARE * self.connections_max:
            return advice(
                "connections",
                seen,
                "a process that cannot connect refuses its requests; each takes up to seven",
                "Raise max_connections, or put PgBouncer in between and add pgbouncer=true",
            )
        return Finding("connections", seen)

    def _vacuum(self) -> Finding:
        if self.oldest_transaction_s > LONG_TRANSACTION_S:
            return advice(
                "vacuum",
                f"a transaction has been open for {self.oldest_transaction_s:.0f} s",
                "rows deleted since then cannot be vacuumed, and tables grow",
                "SELECT pid, query FROM pg_stat_activity ORDER BY xact_start LIMIT 5",
            )
        if self.xid_age > XID_AGE_MAX:
            return advice(
                "vacuum",
                f"the oldest transaction id is {self.xid_age:,} old",
                "at 2,000,000,000 the server stops taking writes",
                "VACUUM (FREEZE) oncekey_claims",
            )
        live, dead = self.live_rows or 0, self.dead_rows or 0
        seen = f"{dead:,} dead rows beside {live:,} live ones"
        if dead > max(live, 10_000):
            why = "autovacuum does not keep up, and every query passes over them"
            return advice("vacuum", seen, why, "VACUUM oncekey_claims")
        return Finding("vacuum", seen)
