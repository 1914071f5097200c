"""PostgreSQL: the library against pgbench, and against one round trip of asyncpg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import psycopg

from bench.limits import pgbench
from bench.rounds import Contender, Settings, contest
from bench.subject import try_rows
from bench.table import Goal, Row
from bench.work import (
    ANSWER,
    COMPLETE,
    FOUND,
    NEW,
    PEEK,
    RENEW,
    Item,
    Library,
    alone_row,
    alone_rows,
    migrate,
)
from oncekey._core.record import encode_headers
from oncekey.stores.postgres import store as postgres_store
from tests.servers import Postgres, start_postgres

SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
INSERTS = "PostgreSQL, 32 at a time, inserts"
PAIRS = "PostgreSQL, 32 at a time, insert and complete"
INSERTS_GOAL, PAIRS_GOAL = Goal(2.0), Goal(1.5)
ROUND_TRIP = Goal(1.5, at_least=False, of_time=True)

# One row each, as one would write them by hand for the same tables; but for the state, which is
# compared so that the partial index on running records is no candidate. The planner prefers it to
# the primary key when its statistics say that hardly anything runs, and then reads all that does.
_INSERT = """
INSERT INTO oncekey_claims (
    id, token, tenant, operation, key, fingerprint, fingerprint_version, lease_s, retention_s,
    state, fence, created, lease_until, expires
) VALUES (
    {id}, {owner}, {tenant}, {operation}, {key}, {fingerprint}, 1, 30, 86400,
    'running', nextval('oncekey_fences'), now(), now() + interval '30 s', now() + interval '1 day'
)
ON CONFLICT (id) DO NOTHING
RETURNING fence
"""
_COMPLETE = """
UPDATE oncekey_claims
SET state = 'completed', lease_until = NULL, expires = now() + interval '1 day', beat = 1,
    status = 201, headers = {headers}, body = {body}
WHERE id = {id} AND CASE state WHEN 'running' THEN fence END = {fence} AND token = {owner}
"""
_RENEW = """
UPDATE oncekey_claims
SET lease_until = now() + interval '30 s', expires = now() + interval '1 day', beat = beat + 1
WHERE id = $1 AND CASE state WHEN 'running' THEN fence END = $2 AND token = $3
RETURNING fence
"""
_FIND = """
SELECT * FROM oncekey_claims WHERE id = $1
"""
_PEEK = "SELECT state, fence, lease_until FROM oncekey_claims WHERE id = $1"

_BARE = {
    NEW: _INSERT.format(
        id="$1", owner="$2", tenant="$3", operation="$4", key="$5", fingerprint="$6"
    ),
    FOUND: _FIND,
    COMPLETE: _COMPLETE.format(id="$1", fence="$2", owner="$3", headers="$4", body="$5"),
    RENEW: _RENEW,
    PEEK: _PEEK,
}


def _literal(value: bytes) -> str:
    return f"'\\x{value.hex()}'"


_PGBENCH_ID = "sha256(int8send(:number))"
_PGBENCH_INSERT = "\\set number random(1, 4611686018427387904)\n" + _INSERT.strip().format(
    id=_PGBENCH_ID,
    owner=_literal(bytes(16)),
    tenant="'single'",
    operation="'POST /orders'",
    key="'8e03978e-40d5-43e8-bc93-6894a57f9324'",
    fingerprint=_literal(bytes(32)),
)
_PGBENCH_PAIR = f"{_PGBENCH_INSERT} \\gset\n" + _COMPLETE.strip().format(
    id=_PGBENCH_ID,
    fence=":fence",
    owner=_literal(bytes(16)),
    headers=_literal(encode_headers(ANSWER.headers)),
    body=_literal(ANSWER.body or b""),
)


def start() -> Postgres:
    """A server that keeps what it acknowledges."""
    return start_postgres(durable=True, settings=SETTINGS)


def rows(settings: Settings) -> list[Row]:
    with start() as server:
        store = postgres_store.open_url(server.url)
        migrate(store)
        with Library(store) as library:
            return [
                *try_rows(INSERTS, lambda: _insert_rows(server, library, settings), INSERTS_GOAL),
                *try_rows(PAIRS, lambda: _pair_rows(server, library, settings), PAIRS_GOAL),
                *_alone_rows(server, library, settings),
            ]


def estimate_s(settings: Settings) -> float:
    return 2 * settings.estimate_s(3) + 6 * settings.estimate_s(2, 0.25)


def _insert_rows(server: Postgres, library: Library, settings: Settings) -> list[Row]:
    script = _write_script(server.folder / "insert.sql", _PGBENCH_INSERT)
    contenders: dict[str, Contender] = {
        "pgbench": lambda seconds: pgbench(server.url, script, seconds),
        "store verbs": lambda seconds: library.crowd(library.insert, seconds),
        "Guard": lambda seconds: library.crowd(library.begin, seconds),
    }
    return _against_pgbench(INSERTS, server, contenders, INSERTS_GOAL, settings)


def _pair_rows(server: Postgres, library: Library, settings: Settings) -> list[Row]:
    script = _write_script(server.folder / "pair.sql", _PGBENCH_PAIR)
    contenders: dict[str, Contender] = {
        "pgbench": lambda seconds: pgbench(server.url, script, seconds),
        "store verbs": lambda seconds: library.crowd(library.insert_and_complete, seconds),
        "Guard": lambda seconds: library.crowd(library.begin_and_finish, seconds),
    }
    return _against_pgbench(PAIRS, server, contenders, PAIRS_GOAL, settings)


def _against_pgbench(
    title: str,
    server: Postgres,
    contenders: dict[str, Contender],
    goal: Goal,
    settings: Settings,
) -> list[Row]:
    result = contest(title, contenders, settings, before_round=lambda: _empty(server.url))
    return [
        result.row(f"{title}: {name}", name, "pgbench", goal) for name in ("store verbs", "Guard")
    ]


def _alone_rows(server: Postgres, library: Library, settings: Settings) -> list[Row]:
    _empty(server.url)  # before preparing: that takes shared locks until the first execution
    connection = library.run(asyncpg.connect(server.url))
    statements = {name: library.run(connection.prepare(sql)) for name, sql in _BARE.items()}

    def bare(name: str, items: list[Item]) -> float:
        fetch = statements[name].fetch
        return library.median_rate(
            lambda arguments: fetch(*arguments), [_arguments(name, item) for item in items]
        )

    try:
        common = "PostgreSQL", library, bare
        # Who does not know whether a record is there cannot begin with a look: a retry's insert is
        # to be compared with an insert too.
        found = alone_row(*common, (FOUND, NEW), ROUND_TRIP, settings)
        return [*alone_rows(*common, lambda _: ROUND_TRIP, settings), found]
    finally:
        library.run(connection.close())


def _arguments(name: str, item: Item) -> tuple[Any, ...]:
    claim = item.claim
    if name == NEW:
        common = (claim.tenant, claim.operation, claim.key, claim.fingerprint)
        return (claim.id, claim.token, *common)
    if name in (FOUND, PEEK):
        return (claim.id,)
    owned = (claim.id, item.fence, claim.token)
    return owned if name == RENEW else (*owned, encode_headers(ANSWER.headers), ANSWER.body)


def _write_script(path: Path, script: str) -> Path:
    path.write_text(f"{script};\n" if not script.endswith("\\gset") else f"{script}\n")
    return path


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("TRUNCATE oncekey_claims, oncekey_answers, oncekey_steps")
