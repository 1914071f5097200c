"""The client: a request through our transport against the same request with a key made by hand.

A key has to be sent by whoever may retry, so the limit is a client that makes one and sends it.
What it costs beside a client that sends none stands below it. All are of the same library and ask
the same server, which is a process of its own, in turn. With a journal: against the same request
and one row that is committed by hand before it.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import httpx
import httpx2
import requests

from bench.app_process import AppProcess
from bench.rounds import WARMED_UP, Contender, Settings, contest, cpu_row
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from oncekey.client import Client, Journal, retrying
from tests.servers import folders

LIBRARIES = ("httpx2", "httpx2, async", "httpx", "httpx, async", "requests")
GOAL = Goal(1.05, at_least=False, of_time=True)
TIMEOUT_S = 30.0
ORDER: dict[str, Any] = {"item": "tea", "quantity": 2, "note": "to be delivered before noon"}
BATCH = 20
TURNS = 8
"""Short ones: the less changes between those that are compared."""
HOW = (
    "One caller, one connection, a POST of a small JSON order to Starlette on uvicorn in another "
    "process; every request gets a key, and none has to be retried. The limit is the same client "
    "without our transport, which is given a new key with each request (`str(uuid.uuid4())`): one "
    "has to be sent anyway. *Beside none*: against a client that sends no key, which has less to "
    "write, to send, and to be read. *CPU*: of the calling process alone, which says more than "
    "the time if others use the machine. *With a journal*: each request is an intent, on disk "
    "before it leaves; the limit is a request with a key after one row was committed to a SQLite "
    "file (`synchronous=FULL`) by hand."
)

BARE, BY_HAND, OURS = "bare", "by hand", "with keys"

Send = Callable[[int], None]
"""Sends so many requests, one after the other."""


def section(settings: Settings) -> Section:
    rows: list[Row] = []
    for library in LIBRARIES:
        rows += try_rows(f"client, {library}", partial(_library_rows, library, settings))
    rows += try_rows("client with a journal", partial(_journal_rows, settings))
    return Section("Client", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    return len(LIBRARIES) * (settings.estimate_s(3) + 2) + settings.estimate_s(2) + 2


class Caller:
    """A contender: requests by one client, and the CPU time that each of them took here."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.cpu_us: list[float] = []

    def __call__(self, seconds: float) -> float:
        done, started, cpu_s = 0, time.monotonic(), time.process_time()
        while time.monotonic() < started + seconds:
            self._send(BATCH)
            done += BATCH
        self.cpu_us.append((time.process_time() - cpu_s) / done * 1e6)
        return done / (time.monotonic() - started)


# ------------------------------------------------------------------------------------- transports


def _library_rows(library: str, settings: Settings) -> list[Row]:
    with AppProcess() as served, ExitStack() as stack:
        callers = {
            way: Caller(stack.enter_context(_sender(library, served, way)))
            for way in (BARE, BY_HAND, OURS)
        }
        return _rows_of(library, callers, settings, GOAL)


@contextmanager
def _sender(library: str, served: AppProcess, way: str) -> Iterator[Send]:
    url = f"http://127.0.0.1:{served.port}/orders"
    wrap: Callable[[Any], Any] = retrying if way == OURS else lambda inner: inner
    keyed = _with_key if way == BY_HAND else lambda post: post
    if library == "requests":
        with requests.Session() as session:
            session.mount("http://", wrap(requests.adapters.HTTPAdapter()))
            yield partial(_each, keyed(partial(session.post, url, json=ORDER, timeout=TIMEOUT_S)))
        return
    module: Any = httpx2 if library.startswith("httpx2") else httpx
    if library.endswith("async"):
        with asyncio.Runner() as runner:
            client = module.AsyncClient(transport=wrap(module.AsyncHTTPTransport()))
            post = keyed(partial(client.post, url, json=ORDER, timeout=TIMEOUT_S))
            yield lambda times: runner.run(_each_async(post, times))
            runner.run(client.aclose())
        return
    with module.Client(transport=wrap(module.HTTPTransport())) as blocking:
        yield partial(_each, keyed(partial(blocking.post, url, json=ORDER, timeout=TIMEOUT_S)))


def _with_key(post: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: post(headers={"Idempotency-Key": str(uuid.uuid4())})


def _each(post: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        assert post().status_code == 200


async def _each_async(post: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        assert (await post()).status_code == 200


# ---------------------------------------------------------------------------------------- journal


def _journal_rows(settings: Settings) -> list[Row]:
    folder, numbers = folders.private("journal"), itertools.count()
    by_hand = sqlite3.connect(folder / "by-hand.db", isolation_level=None)
    by_hand.execute("PRAGMA synchronous = FULL")
    by_hand.execute("CREATE TABLE intents (name TEXT PRIMARY KEY, key TEXT) WITHOUT ROWID")
    with (
        AppProcess() as served,
        Journal(folder / "intents.db") as journal,
        Client(base_url=f"http://127.0.0.1:{served.port}", journal=journal) as api,
        httpx2.Client(base_url=f"http://127.0.0.1:{served.port}") as bare,
    ):

        def post_after_row() -> Any:
            key = str(uuid.uuid4())
            by_hand.execute("INSERT INTO intents VALUES (?, ?)", (f"o{next(numbers)}", key))
            return bare.post("/orders", json=ORDER, headers={"Idempotency-Key": key})

        def post_intent() -> Any:
            name = f"o{next(numbers)}"
            answer = api.post("/orders", json=ORDER, intent=name)
            journal.settle(name)
            return answer

        callers = {
            BY_HAND: Caller(partial(_each, post_after_row)),
            OURS: Caller(partial(_each, post_intent)),
        }
        return _rows_of("httpx2, with a journal", callers, settings, None)


def _rows_of(
    name: str, callers: dict[str, Caller], settings: Settings, goal: Goal | None
) -> list[Row]:
    contenders: dict[str, Contender] = {**callers}
    result = contest(name, contenders, settings, turns=TURNS)
    ours, theirs = _by_round(callers[OURS]), _by_round(callers[BY_HAND])
    beside_none = (
        [replace(result.row(f"{name}: a request, beside none", OURS, BARE, GOAL), goal=None)]
        if BARE in callers
        else []
    )
    return [
        replace(result.row(f"{name}: a request", OURS, BY_HAND, GOAL), goal=goal),
        *beside_none,
        cpu_row(f"{name}: CPU of a request", ours, theirs),
    ]


def _by_round(caller: Caller) -> list[float]:
    """As the contest counts them: the median of the turns, without the warm-up."""
    counted = caller.cpu_us[WARMED_UP:]
    return [median(counted[n : n + TURNS]) for n in range(0, len(counted), TURNS)]
