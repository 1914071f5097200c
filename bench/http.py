"""HTTP: an application behind the middleware against the same application without it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from bench import load, no_key, postgres, redis
from bench.app_process import AppProcess
from bench.rounds import WARMED_UP, Settings, contest, cpu_row
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from bench.work import migrate
from oncekey.stores.postgres import store as postgres_store
from tests.servers import find_tool, folders

CONNECTIONS = (1, 64)
KEYS_REPLAYED = 1_000
FIRST = Goal(0.4, aim=0.5)
REPLAY = Goal(0.7, aim=1.0)
NO_KEY_PAIRS = 200
HOW = (
    "Starlette on uvicorn (uvloop, httptools), one worker process; the handler reads a small "
    "JSON order and answers. Load by wrk. *First*: every request has a new key; *replay*: a "
    "thousand keys whose requests have completed, in turn. The limit is the same application "
    "without the middleware; *by hand*: the same application whose handler writes one row (or "
    "value) before and one after, durably, with the plain driver and none of the promises; "
    "*relaxed*: both collect garbage less often, after `gc.set_threshold(20_000, 20, 50)`. "
    "PostgreSQL with `fsync` and `synchronous_commit` on, Redis appending to its file and "
    "syncing it every second without rewriting it meanwhile, SQLite with `synchronous=FULL`."
)


@contextmanager
def _postgres() -> Iterator[str]:
    with postgres.start() as server:
        migrate(postgres_store.open_url(server.url))
        yield server.url


@contextmanager
def _sqlite() -> Iterator[str]:
    yield f"sqlite:///{folders.private('sqlite') / 'keys.db'}"


@contextmanager
def _redis() -> Iterator[str]:
    with redis.start() as server:
        yield server.url


STORES = {"PostgreSQL": _postgres, "SQLite": _sqlite, "Redis": _redis}


def section(settings: Settings) -> Section:
    rows = []
    for name, start in STORES.items():
        rows += try_rows(f"HTTP on {name}", partial(_rows, name, start, settings))
    pairs = 20 if settings.quick else NO_KEY_PAIRS
    rows += try_rows("requests without a key", lambda: no_key.rows(pairs))
    return Section("HTTP", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    return len(STORES) * (
        len(CONNECTIONS) * (settings.estimate_s(4) + 3) + settings.estimate_s(2) + 10
    )


def _rows(
    name: str, start: Callable[[], AbstractContextManager[str]], settings: Settings
) -> list[Row]:
    find_tool("wrk")
    with (
        start() as url,
        AppProcess() as plain,
        AppProcess(url) as guarded,
        AppProcess(url, by_hand=True) as by_hand,
    ):
        served = {"without": plain, "first": guarded, "by hand": by_hand}
        rows = [
            row
            for connections in CONNECTIONS
            for row in _contest(name, connections, served, settings)
        ]
    with (
        start() as url,
        AppProcess(relaxed=True) as plain,
        AppProcess(url, relaxed=True) as guarded,
    ):
        return [*rows, *_relaxed_rows(name, plain, guarded, settings)]


def _title(name: str, connections: int) -> str:
    return f"{name}, {connections} connection{'s' if connections > 1 else ''}"


def _contest(
    name: str, connections: int, served: dict[str, AppProcess], settings: Settings
) -> list[Row]:
    title, guarded = _title(name, connections), served["first"]
    prefix = f"{uuid.uuid4().hex}-"
    for number in range(KEYS_REPLAYED):
        guarded.order(f"{prefix}{number}")
    assert guarded.order(f"{prefix}0"), "a completed request was not replayed"
    loads = {each: _Load(by, connections) for each, by in served.items()}
    loads["replay"] = _Load(guarded, connections, prefix, KEYS_REPLAYED)
    result = contest(title, loads, settings)
    rows = [
        result.row(f"{title}, first", "first", "without", FIRST),
        result.row(f"{title}, replay", "replay", "without", REPLAY),
        result.row(f"{title}, first, against two plain writes by hand", "first", "by hand", None),
    ]
    if connections > 1:  # a lone client leaves the worker idle: what it then costs says little
        rows += [
            _cpu_row(title, name, loads[name], loads["without"]) for name in ("first", "replay")
        ]
    return rows


def _relaxed_rows(
    name: str, plain: AppProcess, guarded: AppProcess, settings: Settings
) -> list[Row]:
    """A crowd of requests that wait for the store are many objects that are no garbage yet."""
    title = f"{_title(name, CONNECTIONS[-1])}, relaxed"
    loads = {
        "without": _Load(plain, CONNECTIONS[-1]),
        "first": _Load(guarded, CONNECTIONS[-1]),
    }
    result = contest(title, loads, settings)
    return [
        result.row(f"{title}, first", "first", "without", None),
        _cpu_row(title, "first", loads["first"], loads["without"]),
    ]


def _cpu_row(title: str, name: str, ours: _Load, limit: _Load) -> Row:
    what = f"{title}, {name}: CPU of the worker for each"
    return cpu_row(what, ours.cpu_us[WARMED_UP:], limit.cpu_us[WARMED_UP:])


class _Load:
    """A contender: requests of one kind, checked to be what they should."""

    def __init__(
        self, served: AppProcess, connections: int, prefix: str = "", keys: int = 0
    ) -> None:
        self._served = served
        self._connections = connections
        self._prefix = prefix
        self._keys = keys
        self.cpu_us: list[float] = []
        """What the worker used for each request, by round."""

    def __call__(self, seconds: float) -> float:
        runs, cpu_s = self._served.runs(), self._served.cpu_s()
        seen = load.wrk(
            self._served.port,
            connections=self._connections,
            seconds=seconds,
            prefix=self._prefix,
            keys=self._keys,
        )
        runs = self._served.runs() - runs
        self.cpu_us.append((self._served.cpu_s() - cpu_s) / seen.requests * 1e6)
        # Some more may have run than were answered: those under way when the time was over.
        most = seen.requests + self._connections
        expected = range(1) if self._keys else range(seen.requests, most + 1)
        assert runs in expected, f"the handler ran {runs} times for {seen}"
        assert not seen.refused, f"some were refused: {seen}"
        assert not seen.broken, f"some got no answer: {seen}"
        return seen.rate
