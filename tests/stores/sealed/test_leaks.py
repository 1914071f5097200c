"""A leaked table: the files of a sealed store's engine reveal nothing. Each engine is used with
words that occur nowhere else, stopped, and all its files are searched for them: its tables, logs
and journals. The same search finds every word of an unsealed store.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import LiteralString
from urllib.parse import quote

import psycopg
import pytest

from oncekey import open_store
from oncekey._core import lifecycle
from oncekey._core.key import record_id
from oncekey._core.record import Answer, Claim, State, Step
from oncekey._core.verbs import AppendStep, Find, Insert, Purge, Requested, Scan, Steps, Tally
from oncekey.stores.base import Store
from oncekey.stores.postgres.layouts import INLINE, PARTITIONED, SEPARATE, move
from oncekey.stores.urls import migrate
from oncekey.testing.contract.subject import new_id, new_token
from tests.servers import Postgres, start_mariadb, start_mysql, start_postgres, start_redis
from tests.servers.mariadb import MySQLFamily, mysql_connection
from tests.servers.ministack import start_ministack, table_url
from tests.servers.mysql import wanted
from tests.servers.process import Server
from tests.servers.redis_cluster import start_redis_cluster
from tests.servers.redis_sentinel import start_watched_redis
from tests.servers.skipping import or_skip
from tests.stores.dynamodb import kit
from tests.stores.postgres.kit import ignore_progress
from tests.stores.sealed.kit import SECOND, SECRET, ask

pytestmark = pytest.mark.slow

_NAMES = ("key", "tenant", "body", "header", "resource", "step", "result", "request", "field")


def _word(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex}"


@dataclass
class Words:
    """Words that must not be found; the operation may, it stays readable."""

    secret: dict[str, str] = field(default_factory=lambda: {name: _word(name) for name in _NAMES})
    operation: str = field(default_factory=lambda: _word("operation"))
    fingerprint: bytes = field(default_factory=new_id)
    ids: list[bytes] = field(default_factory=list)

    def claim(self, number: int, recovery: str = "rerun") -> Claim:
        key = f"{self.secret['key']}-{number}"
        self.ids.append(record_id(self.secret["tenant"], self.operation, key))
        return Claim(
            id=self.ids[-1],
            token=new_token(),
            tenant=self.secret["tenant"],
            operation=self.operation,
            key=key,
            fingerprint=self.fingerprint,
            fingerprint_version=1,
            lease_s=3600.0,
            retention_s=86_400.0,
            recovery=recovery,
            field_digests={self.secret["field"]: "ab"},
            request=None if recovery == "rerun" else self.secret["request"].encode(),
        )

    @property
    def answer(self) -> Answer:
        header = (b"x-secret", self.secret["header"].encode())
        return Answer(201, (header,), f"{self.secret['body']} ".encode() * 20)

    def traces(self) -> dict[str, bytes]:
        """Return every form in which an attacker would search for the words."""
        found: dict[str, bytes] = {"fingerprint": self.fingerprint}
        found |= {f"id {number}": each for number, each in enumerate(self.ids)}
        for name, word in self.secret.items():
            found[name] = word.encode()
            found[f"{name}, sha256"] = hashlib.sha256(word.encode()).digest()
            found[f"{name}, base64"] = base64.b64encode(word.encode())[:-4]
        hexadecimal = {f"{name}, hex": trace.hex().encode() for name, trace in found.items()}
        return found | hexadecimal


def use(store: Store, words: Words) -> None:
    """Write to the store in every possible way, in every state."""
    running, done, doubtful, leaving = (
        words.claim(number, recovery) for number, recovery in enumerate(["resume", *["rerun"] * 3])
    )
    fences = [found.fence for found in ask(store, *map(Insert, (running, done, doubtful, leaving)))]
    steps = [
        AppendStep(each.id, fence, each.token, Step(words.secret["step"], b"d", result))
        for each, fence in ((running, fences[0]), (leaving, fences[3]))
        for result in (None, words.secret["result"].encode())
    ]
    held = [
        lifecycle.Held(each.id, fence, each.token)
        for each, fence in zip((done, doubtful, leaving), fences[1:], strict=True)
    ]
    completions = [
        lifecycle.complete(
            each, words.answer, retention_s=86_400.0, resource_id=words.secret["resource"]
        )
        for each in (held[0], held[2])
    ]
    give_up = lifecycle.give_up(held[1], new_token=new_token(), lapses=1, retention_s=86_400.0)
    ask(store, *steps, *completions, give_up, Tally({done.id: 1}, {done.id: 1}))
    [[unknown]] = ask(store, Scan(10, state=State.UNKNOWN))
    resolve = lifecycle.resolve(
        unknown, new_token=new_token(), answer=words.answer, retention_s=86_400.0
    )
    ask(store, resolve)
    for _ in range(4):  # often enough to be copied, where copies are made
        ask(store, Insert(replace(done, token=new_token())))
    replay, request, kept = ask(store, Find(done.id), Requested(running.id), Steps(running.id))
    assert (replay.answer, request) == (words.answer, words.secret["request"].encode())
    assert kept == [Step(words.secret["step"], b"d", words.secret["result"].encode())]
    assert ask(store, Find(doubtful.id))[0].answer == words.answer


# ------------------------------------------------------------------------------------- engines


@dataclass
class Engine:
    """Two stores of one kind, and the files that both leave behind."""

    urls: tuple[str, str]
    """One to be sealed, one that is not."""
    raw: Callable[[], Iterator[bytes]]


def _files(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.read_bytes()


def _stopped(*servers: Server) -> Iterator[bytes]:
    for server in servers:
        server.stop()
        yield from _files(server.folder)


@contextmanager
def sqlite_engine(tmp_path: Path) -> Iterator[Engine]:
    urls = (f"sqlite:///{tmp_path / 'sealed.db'}", f"sqlite:///{tmp_path / 'plain.db'}")
    yield Engine(urls, lambda: _files(tmp_path))


@contextmanager
def postgres_engine(tmp_path: Path, layout: str = INLINE) -> Iterator[Engine]:
    with start_postgres() as server:
        urls = _two_databases(server)
        for url in urls:
            store = open_store(url)
            migrate(store)
            move(store, layout, ignore_progress)
        yield Engine(urls, lambda: _stopped(server))


def _two_databases(server: Postgres | MySQLFamily) -> tuple[str, str]:
    second: LiteralString = "CREATE DATABASE plain"
    if isinstance(server, Postgres):
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(second)
    else:
        with mysql_connection(server.url) as db, db.cursor() as cursor:
            cursor.execute(second)
    plain = f"{server.url.rpartition('/')[0]}/plain"
    allowed = "?allow=unsafe-durability"
    return server.url + allowed, plain + allowed


@contextmanager
def tiered_engine(
    tmp_path: Path, start: Callable[[], Postgres | MySQLFamily] = start_postgres
) -> Iterator[Engine]:
    """Return the files of both tiers."""
    with start() as truth, start_redis() as cache:

        def tiered(url: str, prefix: str) -> str:
            return f"tiered+{url}&cache={quote(f'{cache.url}?prefix={prefix}', safe='')}"

        sealed, plain = _two_databases(truth)
        urls = (tiered(sealed, "sealed"), tiered(plain, "plain"))

        def raw() -> Iterator[bytes]:
            copies = list(_stopped(cache))
            assert any(re.search(rb"sealed:tiered:[0-9a-f]{64}", each) for each in copies)
            yield from copies
            yield from _stopped(truth)

        yield Engine(urls, raw)


@contextmanager
def redis_engine(tmp_path: Path) -> Iterator[Engine]:
    with start_redis() as server:
        urls = (f"{server.url}?prefix=sealed", f"{server.url}?prefix=plain")
        yield Engine(urls, lambda: _stopped(server))


@contextmanager
def cluster_engine(tmp_path: Path) -> Iterator[Engine]:
    with start_redis_cluster(replicas=0) as cluster:
        urls = (f"{cluster.url}?prefix=sealed", f"{cluster.url}?prefix=plain")
        yield Engine(urls, lambda: _stopped(*cluster.nodes))


@contextmanager
def sentinel_engine(tmp_path: Path) -> Iterator[Engine]:
    """Include the replica's files."""
    with start_watched_redis() as watched:
        urls = (f"{watched.url}&prefix=sealed", f"{watched.url}&prefix=plain")
        yield Engine(urls, lambda: _stopped(watched.sentinel, watched.first, watched.second))


@contextmanager
def mariadb_engine(
    tmp_path: Path, start: Callable[[], MySQLFamily] = start_mariadb
) -> Iterator[Engine]:
    with start() as server:
        yield Engine(_two_databases(server), lambda: _stopped(server))


@contextmanager
def dynamodb_engine(tmp_path: Path) -> Iterator[Engine]:
    """The emulator has no files: read every item over its protocol."""
    with start_ministack() as server:
        urls = (table_url(server.url, "sealed"), table_url(server.url, "plain"))

        def items() -> Iterator[bytes]:
            for url in urls:
                paginator = kit.client(url).get_paginator("scan")
                for page in paginator.paginate(TableName=kit.name_of(url)):
                    for item in page["Items"]:
                        for name, kept in item.items():
                            [content] = kept.values()
                            yield name.encode()
                            yield content if isinstance(content, bytes) else str(content).encode()

        yield Engine(urls, items)


ENGINES: dict[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "sqlite": sqlite_engine,
    "postgres": postgres_engine,
    "redis": redis_engine,
    "mariadb": mariadb_engine,
    "dynamodb": dynamodb_engine,
}
MORE: dict[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "separate": partial(postgres_engine, layout=SEPARATE),
    "partitioned": partial(postgres_engine, layout=PARTITIONED),
    "cluster": cluster_engine,
    "sentinel": sentinel_engine,
    "tiered": tiered_engine,
    "tiered over mariadb": partial(tiered_engine, start=start_mariadb),
}
if wanted():
    ENGINES["mysql"] = partial(mariadb_engine, start=start_mysql)
_PARAMETERS = [*ENGINES, *(pytest.param(name, marks=pytest.mark.long) for name in MORE)]


@pytest.fixture(params=_PARAMETERS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with or_skip(), (ENGINES | MORE)[request.param](tmp_path) as engine:
        yield engine


@pytest.mark.timeout(180)
def test_p12_e64_a_leaked_table_tells_nothing(engine: Engine) -> None:
    """Neither keys, accounts, responses, steps and requests, nor anything that identifies them to
    an attacker who guesses, such as plain hashes.
    """
    store = open_store(engine.urls[0], secrets=[SECRET])
    rotated = open_store(engine.urls[0], secrets=[SECOND, SECRET])
    plain = open_store(engine.urls[1])
    for each in (store, rotated, plain):
        migrate(each)
    sealed_words, later_words, plain_words, purged_words = (Words() for _ in range(4))
    use(store, sealed_words)
    use(rotated, later_words)
    use(plain, plain_words)
    use(store, purged_words)
    assert ask(rotated, Purge(purged_words.secret["tenant"], 100)) == [3]
    keys = {"a secret": SECRET.encode(), "the id key": store._id_key}  # type: ignore[attr-defined]

    sealed = {
        f"{name} of {number}": trace
        for number, words in enumerate((sealed_words, later_words, purged_words))
        for name, trace in words.traces().items()
    }
    controls = {
        "operation, sealed": sealed_words.operation.encode(),
        **{f"{name}, plain": word.encode() for name, word in plain_words.secret.items()},
        "id, plain": plain_words.ids[0],
    }
    found = _search(engine.raw(), sealed | controls | keys)

    assert found == _seen(controls, engine.urls[0])


def _search(contents: Iterator[bytes], wanted: dict[str, bytes]) -> set[str]:
    found: set[str] = set()
    for content in contents:
        found |= {name for name, trace in wanted.items() if name not in found and trace in content}
    return found


def _seen(controls: dict[str, bytes], url: str) -> set[str]:
    """Return what the search has to find. Redis names its keys by the digits of the ids."""
    left_out = {"id, plain"} if url.startswith("redis") else set()
    return controls.keys() - left_out
