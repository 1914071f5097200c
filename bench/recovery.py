"""Recovery: how long a killed worker's operations stay unfinished.

A worker is killed with many requests running. Their clients retry at another worker; or nobody
retries, and `oncekey recover` finishes them. Measured from the kill, less one lease, during which
nobody may touch them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from bench.http import STORES
from bench.machine import ForeignCpu
from bench.rounds import Settings, say
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from oncekey import open_store
from oncekey._core.key import record_id
from oncekey._core.record import State
from oncekey._core.verbs import Peek
from oncekey.stores.connection import StoreConnection
from tests.crash.child import ROOT, Child, serving
from tests.servers import folders

REQUESTS = 100
LEASE_S = 3.0
POLL_S = 0.05
ENDS_S_MAX = 30.0
TAKE_OVER = Goal(0.5, at_least=False, unit="s")
ORPHAN = Goal(5.0, at_least=False, unit="s")
HOW = (
    f"A worker is killed with {REQUESTS} requests under way, under a lease of {LEASE_S:g} s. "
    f"*Taken over*: their clients retry at another worker every {POLL_S:g} s. "
    "*Orphans*: nobody retries, and `oncekey recover` finishes them. "
    "The result is the 99th percentile of the time from the kill "
    "to the recorded answer, less one lease; below 0 means that the lease had been running for a "
    "while."
)
POLICY: dict[str, Any] = {"recovery": "resume", "lease_s": LEASE_S}


def section(settings: Settings) -> Section:
    rows = []
    for name, start in STORES.items():
        rows += try_rows(f"Recovery on {name}", partial(_rows, name, start))
    return Section("Recovery", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    return len(STORES) * 2 * (2 * LEASE_S + 6)


def _rows(name: str, start: Callable[[], AbstractContextManager[str]]) -> list[Row]:
    with start() as url:
        return [
            _row(f"{name}, taken over by retries", partial(_measure_takeover, url), TAKE_OVER),
            _row(f"{name}, orphans", partial(_measure_orphans, url), ORPHAN),
        ]


def _row(what: str, measure: Callable[[], list[float]], goal: Goal) -> Row:
    foreign, times_s = ForeignCpu(), measure()
    late = sorted(seconds - LEASE_S for seconds in times_s)
    p99 = late[int(0.99 * (len(late) - 1))]
    say(f"{what}: {len(late)} finished, p99 {p99:+.2f} s after the lease, last {late[-1]:+.2f} s")
    return Row(
        what,
        ours=f"{len(late)} finished",
        value=p99,
        low=late[0],
        high=late[-1],
        goal=goal,
        unit="s",
        foreign_percent=foreign.percent(),
    )


class _KilledWorker:
    """A worker that was killed with many requests running."""

    def __init__(self, url: str) -> None:
        self.folder = folders.private("recovery")
        self.sign = self.folder / "go"
        self.keys = [uuid.uuid4().hex for _ in range(REQUESTS)]
        self.ledger = self.folder / "ledger"
        with serving(url, self.ledger, **POLICY) as child, ThreadPoolExecutor(REQUESTS) as clients:
            asked = [clients.submit(self.ask, child, key) for key in self.keys]
            while len(_lines(self.ledger)) < REQUESTS:
                time.sleep(0.02)
            self.sign.touch()  # so that the next attempt need not wait
            child.process.kill()
            self.at = time.monotonic()
            assert {request.result() for request in asked} <= {0, 201}
        self.left = [
            key for key, request in zip(self.keys, asked, strict=True) if not request.result()
        ]

    def ask(self, child: Child, key: str) -> int:
        return child.pay(key, until=str(self.sign), blocking=False).status


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def _measure_takeover(url: str) -> list[float]:
    with serving(url, folders.private("heir") / "ledger", **POLICY) as heir:
        killed = _KilledWorker(url)

        def retries(key: str) -> float:
            while killed.ask(heir, key) != 201:
                if time.monotonic() > killed.at + ENDS_S_MAX:
                    raise TimeoutError(f"{key} is not finished after {ENDS_S_MAX:g} s")
                time.sleep(POLL_S)
            return time.monotonic() - killed.at

        with ThreadPoolExecutor(REQUESTS) as clients:
            return list(clients.map(retries, killed.left))


def _measure_orphans(url: str) -> list[float]:
    ledger = folders.private("recoverer") / "ledger"
    settings = json.dumps([url, str(ledger), POLICY])
    environment = {**os.environ, "ONCEKEY_TEST_APP": settings, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "oncekey", "recover", "--json", "tests.crash.recoverable:app"]
    recoverer = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        killed = _KilledWorker(url)
        return _wait_for(url, killed)
    finally:
        recoverer.terminate()
        recoverer.wait(ENDS_S_MAX)


def _wait_for(url: str, killed: _KilledWorker) -> list[float]:
    """Poll the records until each is completed."""
    line, left = (
        StoreConnection(open_store(url)),
        {record_id("single", "POST /pay", key) for key in killed.left},
    )
    finished: list[float] = []
    try:
        while left:
            if time.monotonic() > killed.at + ENDS_S_MAX:
                raise TimeoutError(f"{len(left)} orphans are not finished after {ENDS_S_MAX:g} s")
            glimpses = zip(list(left), line.perform([Peek(one) for one in left]), strict=True)
            done = [one for one, seen in glimpses if seen and seen.state is State.COMPLETED]
            finished += [time.monotonic() - killed.at] * len(done)
            left.difference_update(done)
            threading.Event().wait(POLL_S)
    finally:
        line.close()
    return finished
