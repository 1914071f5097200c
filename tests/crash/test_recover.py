"""A server is killed in the middle of an operation of three steps, and no client comes back:
`oncekey recover`, a process of its own, finishes it. Each step's effect happens once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncekey._core.key import record_id
from oncekey._core.record import State
from oncekey.testing.crash import VARIABLE
from tests.crash.child import ROOT, serving
from tests.crash.downstream import Downstream, running
from tests.observing import Observing
from tests.places import Place, sqlite_place

pytestmark = pytest.mark.slow

LEASE_S = 30.0
APP, SETTINGS = "tests.crash.recoverable:app", "ONCEKEY_TEST_APP"
OPERATION = "POST /book"
STEPS = ("reserve", "charge", "mail")
ENDS_S_MAX = 30.0


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Downstream]:
    with running(tmp_path_factory.mktemp("downstream")) as double:
        yield double


@pytest.fixture
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A SQLite file: for what does not depend on the store."""
    place = sqlite_place(request, tmp_path)
    place.migrate()
    return place


class Recovery:
    """An `oncekey recover` process, and what it printed."""

    def __init__(self, place: Place, ledger: Path, *options: str, at: str = "", **policy: Any):
        settings = json.dumps([place.url, str(ledger), {"recovery": "resume", **policy}])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oncekey", "recover", "--json", *options, APP],
            cwd=ROOT,
            env={**os.environ, VARIABLE: at, SETTINGS: settings},
            stdout=subprocess.PIPE,
            text=True,
        )

    def ended(self, key: str) -> list[str]:
        """What became of an orphan, when it has ended. Other tests may have left some too."""
        printed, _ = self.process.communicate(timeout=ENDS_S_MAX)
        told, wanted = map(json.loads, printed.splitlines()), record_id("single", OPERATION, key)
        return [said["ending"] for said in told if said["id"] == wanted.hex()]

    def next(self) -> dict[str, Any]:
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended"
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def recovering(
    place: Place, ledger: Path, *options: str, at: str = "", **policy: Any
) -> Iterator[Recovery]:
    recovery = Recovery(place, ledger, *options, at=at, **policy)
    try:
        yield recovery
    finally:
        recovery.close()


def abandon(place: Place, ledger: Path, double: Downstream, at: str, lease_s: float) -> str:
    """A server dies at that probe. The key of what it left."""
    key = str(uuid.uuid4())
    with serving(place.url, ledger, at=at, recovery="resume", lease_s=lease_s) as server:
        assert server.post("/book", key, downstream=double.port).status == 0
        assert server.process.wait() == -signal.SIGKILL
    return key


def finish(place: Place, ledger: Path, key: str) -> list[str]:
    """What becomes of an orphan, once its lease is over."""
    if place.observing is None:
        place.elapse(LEASE_S)
        with recovering(place, ledger, "--once", lease_s=LEASE_S) as recovery:
            endings = recovery.ended(key)
    else:  # its recoverer has to stay, and to watch it for one lease
        with recovering(place, ledger, lease_s=LEASE_S) as recovery:
            record = place.id_below(key, OPERATION)
            place.observing.wait_seen(recovery.process.pid, record)
            place.elapse(LEASE_S)
            endings = [recovery.next()["ending"]]
            recovery.process.send_signal(signal.SIGTERM)
            assert recovery.ended(key) == []
    assert recovery.process.returncode == 0
    return endings


def watch_and_stop(
    place: Place, observing: Observing, recoveries: list[Recovery], key: str
) -> None:
    """Let all of them watch the orphan for a lease, and end when it is finished."""
    record = place.id_below(key, OPERATION)
    for recovery in recoveries:
        observing.wait_seen(recovery.process.pid, record)
    place.elapse(LEASE_S)
    deadline = time.monotonic() + ENDS_S_MAX
    while (found := place.look(key, OPERATION)) is None or found.state is not State.COMPLETED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for recovery in recoveries:
        recovery.process.send_signal(signal.SIGTERM)


def done(place: Place, key: str) -> bytes:
    """The kept answer of an operation that is finished."""
    record = place.look(key, OPERATION)
    assert record is not None
    assert record.state is State.COMPLETED
    assert record.answer is not None
    assert record.answer.status == 201
    return record.answer.body or b""


def test_p6_an_orphan_is_finished_by_another_process(
    place: Place, tmp_path: Path, double: Downstream
) -> None:
    """Killed between the second step's effect and its record."""
    ledger = tmp_path / "ledger"
    key = abandon(place, ledger, double, "before_step=kill@2", LEASE_S)
    assert finish(place, ledger, key) == ["finished"]

    made = json.loads(done(place, key))["made"]
    assert len(set(made)) == len(STEPS)
    # The second was asked for twice, by one key: its effect happened once.
    assert double.counts(key) == {"reserve": (1, 1), "charge": (2, 1), "mail": (1, 1)}


def test_p1_of_three_recoverers_one_finishes_it(
    place: Place, tmp_path: Path, double: Downstream
) -> None:
    """What a step calls is asked for once more than there were deaths, if ever there were two."""
    ledger = tmp_path / "ledger"
    key = abandon(place, ledger, double, "after_step=kill@1", LEASE_S)
    options = ("--once",) if place.observing is None else ()
    if place.observing is None:
        place.elapse(LEASE_S)

    recoveries = [Recovery(place, ledger, *options, lease_s=LEASE_S) for _ in range(3)]
    try:
        if place.observing is not None:
            watch_and_stop(place, place.observing, recoveries, key)
        endings = [ending for recovery in recoveries for ending in recovery.ended(key)]
    finally:
        for recovery in recoveries:
            recovery.close()

    assert endings.count("finished") == 1
    assert set(endings) <= {"finished", "taken"}
    done(place, key)
    assert double.counts(key) == dict.fromkeys(STEPS, (1, 1))


def test_p6_a_recoverer_is_killed_too(file: Place, tmp_path: Path, double: Downstream) -> None:
    ledger = tmp_path / "ledger"
    key = abandon(file, ledger, double, "after_step=kill@1", LEASE_S)
    file.elapse(LEASE_S)
    with recovering(file, ledger, at="before_step=kill@1", lease_s=LEASE_S) as first:
        assert first.ended(key) == []
        assert first.process.returncode == -signal.SIGKILL
    file.elapse(LEASE_S)

    with recovering(file, ledger, "--once", lease_s=LEASE_S) as second:
        assert second.ended(key) == ["finished"]

    done(file, key)
    record = file.look(key, OPERATION)
    assert record is not None
    assert record.lapses == 2
    assert double.counts(key) == {"reserve": (1, 1), "charge": (2, 1), "mail": (1, 1)}


def test_p6_an_orphan_is_finished_soon_after_its_lease(
    file: Place, tmp_path: Path, double: Downstream
) -> None:
    """By a recoverer that was there all the time; then it is asked to end, and does."""
    ledger, lease_s = tmp_path / "ledger", 1.0
    with recovering(file, ledger, lease_s=lease_s) as recovery:
        key = abandon(file, ledger, double, "before_step=kill@2", lease_s)
        died = time.monotonic()
        said = recovery.next()
        waited_s = time.monotonic() - died
        recovery.process.send_signal(signal.SIGTERM)
        assert recovery.ended(key) == []
        assert recovery.process.returncode == 0

    assert said["ending"] == "finished"
    done(file, key)
    assert waited_s < lease_s + 5.0


def test_p6_a_blocked_orphan_is_said_to_be_unknown(
    file: Place, tmp_path: Path, double: Downstream
) -> None:
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    policy: dict[str, Any] = {"recovery": "block", "lease_s": LEASE_S}
    with serving(file.url, ledger, at="after_step=kill@1", **policy) as server:
        assert server.post("/book", key, downstream=double.port).status == 0
    file.elapse(LEASE_S)

    with recovering(file, ledger, "--once", **policy) as recovery:
        assert recovery.ended(key) == ["unknown"]

    record = file.look(key, OPERATION)
    assert record is not None
    assert record.state is State.UNKNOWN
    assert double.counts(key) == {"reserve": (1, 1)}
