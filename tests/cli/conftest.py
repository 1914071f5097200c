"""A store with records in every state, and the command to look at it with."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oncekey._core import lifecycle
from oncekey._core.key import record_id
from oncekey._core.lifecycle import Held
from oncekey._core.record import Answer, Claim, Step
from oncekey._core.verbs import AppendStep, Find, Insert, Inserted, Swap, Tally
from oncekey._system.clock import SystemClock
from oncekey.cli.main import main
from oncekey.stores.base import Store
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sqlite.store import SqliteStore

TENANT, OPERATION = "acme", "POST /charges"
ANSWER = Answer(201, ((b"location", b"/charges/1"),), b'{"secret": "1234"}')


class HourAgo(SystemClock):
    """What is written by this clock was written an hour ago."""

    @staticmethod
    def boot() -> float:
        return SystemClock.boot() - 3600

    @staticmethod
    def wall() -> float:
        return SystemClock.wall() - 3600


class Seed:
    """Writes records into a store, by the verbs that the engine uses."""

    def __init__(self, store: Store) -> None:
        self._line = StoreConnection(store)
        self._count = 0

    def running(self, key: str, **changes: Any) -> Held:
        self._count += 1
        claim = {
            "tenant": TENANT,
            "operation": OPERATION,
            "key": key,
            "token": self._count.to_bytes(16, "big"),
            "fingerprint": b"f" * 32,
            "fingerprint_version": 1,
            "lease_s": 30.0,
            "retention_s": 86400.0,
            **changes,
        }
        claim.setdefault("id", record_id(claim["tenant"], claim["operation"], key))
        [inserted] = self._line.perform([Insert(Claim(**claim))])
        assert isinstance(inserted, Inserted)
        return Held(claim["id"], inserted.fence, claim["token"])

    def completed(self, key: str, answer: Answer = ANSWER, **changes: Any) -> bytes:
        held = self.running(key, **changes)
        retention_s = changes.get("retention_s", 86400.0)
        self._line.perform([lifecycle.complete(held, answer, retention_s=retention_s)])
        return held.id

    def released(self, key: str, *, no_effect: bool = False) -> bytes:
        held = self.running(key)
        self._line.perform([lifecycle.release(held, no_effect=no_effect, retention_s=86400.0)])
        return held.id

    def unknown(self, key: str) -> bytes:
        held = self.running(key, lease_s=0.001)
        [found] = self._line.perform([Find(held.id)])
        swap: Swap = lifecycle.doubt(found, new_token=b"u" * 16, retention_s=86400.0)
        while not found.lapsed:  # a thousandth of a second
            [found] = self._line.perform([Find(held.id)])
        self._line.perform([swap])
        return held.id

    def step(self, held: Held, name: str, result: bytes | None) -> None:
        step = Step(name, b"d" * 32, result)
        self._line.perform([AppendStep(held.id, held.fence, held.token, step)])

    def tally(self, record: bytes, *, replays: int, conflicts: int) -> None:
        self._line.perform([Tally({record: replays}, {record: conflicts})])

    def close(self) -> None:
        self._line.close()


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Oncekey = Callable[..., Ran]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A SQLite store; it is where commands without a URL look."""
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    monkeypatch.setenv("ONCEKEY_STORE", url)
    return url


@pytest.fixture
def seed(url: str, tmp_path: Path) -> Iterator[Seed]:
    """Writes into the store, now."""
    seed = Seed(SqliteStore(tmp_path / "keys.db"))
    yield seed
    seed.close()


@pytest.fixture
def hour_ago(url: str, tmp_path: Path) -> Iterator[Seed]:
    """Writes into the store, an hour ago."""
    seed = Seed(SqliteStore(tmp_path / "keys.db", clock=HourAgo()))
    yield seed
    seed.close()


@pytest.fixture
def oncekey(capsys: pytest.CaptureFixture[str]) -> Oncekey:
    """Runs the command in this process."""

    def run(*words: str) -> Ran:
        try:
            code = main(words)
        except SystemExit as stop:  # how argparse ends
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run
