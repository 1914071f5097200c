"""Writes the files of this folder, by the code of release 0.1:

    PYTHONPATH=<checkout of the release>/src:. python tests/releases/0.1/make.py

Each store gets the same records, one for every situation that a later release can find; beside it
is written how 0.1 itself reads them. `oncekey.zip` is the release without its edges, to be run
beside a later one.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import redis as redis_client
from psycopg import sql

import oncekey
from oncekey.clock import FakeClock
from oncekey.core.op import run
from oncekey.core.record import Answer, Record, State, Step
from oncekey.core.verbs import AppendStep, Purge, Scan, Steps, Tally
from oncekey.stores.base import Store
from oncekey.stores.sqlite import SqliteStore
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.releases.plain import plain_record, plain_steps
from tests.servers import start_postgres, start_redis
from tests.stores import elapse
from tests.web.client import ask_wsgi

HERE = Path(__file__).parent
CHECKOUT = Path(oncekey.__file__).parents[1]
EVERY_BYTE = bytes(range(256))
HEADERS = ((b"content-type", b"text/plain"), (b"link", b"</1>"), (b"link", b"\xff"), (b"x", b""))
DIGESTS = {"amount": "ab12", "währung": "cd34"}


# ----------------------------------------------------------------------------------- records


def write_records(store: Store, pass_time: Callable[[float], None]) -> dict[str, Any]:
    """One record for every situation, named by its key; how they are read."""
    serve_one(store)
    with closing(SyncFace(store)) as face:
        case = Case(Subject(store, elapse=pass_time), face)
        write_what_lapses(case)
        write_the_others(case)
        records = case.ask(Scan(100))
        return {
            (record.key or "purged"): {
                "record": plain_record(case.find(record.id)),
                "steps": plain_steps(case.ask(Steps(record.id))),
            }
            for record in records
        }


def serve_one(store: Store) -> None:
    """A request that a client may repeat after the deployment."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [("Content-Type", "text/plain"), ("Location", "/orders/7")])
        return [b"order 7"]

    policy = oncekey.Policy(field_digests=True)
    middleware = IdempotencyMiddleware(
        app, store=store, tenant=oncekey.single_tenant, policy=policy
    )
    reply = ask_wsgi(middleware, "served", {"amount": 5, "note": "blue"})
    assert reply.status == 201, reply
    middleware.close()


def begin(case: Case, key: str, **changes: Any) -> Record:
    return case.begin(case.claim(key=key, field_digests=DIGESTS, schema_version=3, **changes))


def keep_steps(case: Case, record: Record) -> None:
    for step in (Step("charge", EVERY_BYTE[:32], EVERY_BYTE), Step("mail", b"", None)):
        case.ask(AppendStep(record.id, record.fence, record.token, step))


def write_what_lapses(case: Case) -> None:
    for recovery in ("rerun", "block"):
        keep_steps(case, begin(case, f"lapsed, {recovery}", recovery=recovery))
    unknown, taken = begin(case, "unknown"), begin(case, "taken over")
    keep_steps(case, taken)
    case.done(case.complete(begin(case, "expired"), retention_s=10.0))
    case.lapse()
    case.done(case.doubt(unknown))
    case.done(case.take(taken, key="taken over", field_digests=DIGESTS))


def write_the_others(case: Case) -> None:
    keep_steps(case, begin(case, "running"))
    answers = {
        "completed": Answer(201, HEADERS, EVERY_BYTE),
        "completed, nothing": Answer(204, (), b""),
        "completed, too large": Answer(200, HEADERS, None),
    }
    for key, answer in answers.items():
        record = begin(case, key)
        keep_steps(case, record)
        case.done(case.complete(record, answer))
        case.ask(Tally({record.id: 3}, {record.id: 1}))
    keep_steps(case, released := begin(case, "released"))
    case.done(case.release(released))
    case.done(case.release(begin(case, "released, no effect"), no_effect=True))
    purged = begin(case, "to be purged", tenant="leaving")
    keep_steps(case, purged)
    case.done(case.complete(purged))
    case.ask(Purge("leaving", 10))
    assert {record.state for record in case.ask(Scan(100))} == set(State)


def write_expected(name: str, made: float, records: dict[str, Any]) -> None:
    text = json.dumps({"made": made, "records": records}, indent=1, sort_keys=True)
    (HERE / f"{name}.expected.json").write_text(text + "\n")


# ------------------------------------------------------------------------------------ stores


def make_sqlite() -> None:
    path = HERE / "keys.sqlite"
    path.unlink(missing_ok=True)
    clock = FakeClock()
    records = write_records(SqliteStore(path, clock=clock), clock.advance)
    write_expected("sqlite", clock.wall(), records)


def make_postgres() -> None:
    with start_postgres(durable=True) as server:
        store = oncekey.open_store(server.url)
        with closing(store.connect()) as connection:
            run(store.migrate(), connection.ask)
        records = write_records(store, partial(elapse.postgres, server.url))
        write_expected("postgres", time.time(), records)
        with psycopg.connect(server.url) as db:
            (HERE / "postgres.sql").write_text(dump(db))


def dump(db: psycopg.Connection[Any]) -> str:
    """The migrations as they were, and every row as an INSERT."""
    folder = CHECKOUT / "oncekey/stores/schema/postgres"
    queries = (folder / "queries.sql").read_text()
    notebook = queries.partition("-- name: notebook\n")[2].partition("\n-- name:")[0].strip()
    text = [f"{notebook};", (folder / "0001_first.sql").read_text()]
    for table in ("schema", "claims", "answers", "steps"):
        name = sql.Identifier(f"oncekey_{table}")
        query = sql.SQL("SELECT * FROM {} ORDER BY 1, 2").format(name)
        cursor = db.execute(query)
        columns = [column.name for column in cursor.description or ()]
        insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({});")
        for row in cursor.fetchall():
            named = sql.SQL(", ").join(map(sql.Identifier, columns))
            values = sql.SQL(", ").join(map(sql.Literal, row))
            text.append(insert.format(name, named, values).as_string(db))
    for sequence in ("oncekey_fences", "oncekey_steps_position_seq"):
        [(last,)] = db.execute(f"SELECT last_value FROM {sequence}".encode()).fetchall()
        text.append(f"SELECT setval('{sequence}', {last});")
    return "\n".join(text) + "\n"


def make_redis() -> None:
    with start_redis() as server:
        store = oncekey.open_store(server.url)
        records = write_records(store, partial(elapse.redis, server.url, "oncekey"))
        write_expected("redis", time.time(), records)
        with redis_client.Redis.from_url(server.url) as client:
            keys = {key.decode(): contents(client, key) for key in sorted(client.keys())}
    text = json.dumps(keys, indent=1, sort_keys=True)
    (HERE / "redis.json").write_text(text + "\n")


def contents(client: Any, key: bytes) -> dict[str, Any]:
    """A hash, each byte as the character of its number, and how long it is kept."""
    fields = {
        name.decode("latin-1"): text.decode("latin-1") for name, text in client.hgetall(key).items()
    }
    return {"fields": fields, "pttl": client.pttl(key)}


# ----------------------------------------------------------------------------------- release


def make_zip() -> None:
    """Only what the stores need, under an empty package; the same bytes each time."""
    package = CHECKOUT / "oncekey"
    wanted = [*package.glob("*.py"), *package.glob("core/*.py"), *package.glob("stores/**/*")]
    names = {"clock.py", "errors.py", "probes.py"}
    with zipfile.ZipFile(HERE / "oncekey.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr(zipfile.ZipInfo("oncekey/__init__.py"), b"")
        for path in sorted(wanted):
            top = path.parent == package
            if path.is_file() and path.suffix != ".pyc" and (not top or path.name in names):
                entry = zipfile.ZipInfo(str(path.relative_to(CHECKOUT)))
                file.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    make_sqlite()
    make_postgres()
    make_redis()
    make_zip()
