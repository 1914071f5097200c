"""A journal with a fake clock, and a server with scripted responses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey._system import probes
from oncekey._system.clock import FakeClock
from oncekey.client import Journal, Retries
from tests.client.scripted_server import ScriptedServer, scripted_server

QUICK = Retries(backoff_s=0.001, attempts_max=2)
PAY = "order-42/pay"
DAY_S = 24 * 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "intents.db"


@pytest.fixture
def journal(path: Path, clock: FakeClock) -> Iterator[Journal]:
    with Journal(path, clock=clock) as opened:
        yield opened
    probes.disarm()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as served:
        yield served


def changes(path: Path) -> int:
    """SQLite counts in the file's header how often it was committed to."""
    return int.from_bytes(path.read_bytes()[24:28], "big")
