"""SQLite shared by processes in different time namespaces, as containers may have them."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oncekey._core.verbs import Find, Insert
from oncekey.stores.batching import Gatherer
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.testing.contract.subject import new_claim

LEASE_S = 600.0
OFFSETS = [100_000, 10, -5]
_IN = ["unshare", "--user", "--map-root-user", "--time"]

# What another process does with the record of this id: it claims it, or looks and would take over.
_OTHER = """
import pathlib, sys, time
from oncekey._system import clock
from oncekey._core import lifecycle
from oncekey._core.verbs import Done, Find, Insert
from oncekey.stores.batching import Gatherer
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.testing.contract.subject import new_claim

path, what, record_id, pretended_s = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
if pretended_s:  # where the kernel makes no namespaces for us: all that a process sees of one
    true, offsets = clock._boot_clock, pathlib.Path(path).with_name("timens_offsets")
    offsets.write_text(f"monotonic 0 0\\nboottime {pretended_s} 0\\n")
    clock._boot_clock, clock._OFFSETS_FILE = lambda: true() + pretended_s, offsets
claim = new_claim(id=bytes.fromhex(record_id), lease_s=600.0)
gatherer = Gatherer(SqliteStore(path))
if what == "claim":
    gatherer.ask(Insert(claim))
found = gatherer.ask(Find(claim.id))
taken = gatherer.ask(lifecycle.take(found, claim)) if what == "take" else None
print(found.lapsed, found.overlong, type(taken) is Done, found.lease_left_s)
gatherer.close()
"""


@functools.cache
def _ways() -> list[str]:
    asked = [*_IN, "--boottime", "1", "true"]
    try:
        allowed = not subprocess.run(asked, capture_output=True, timeout=30, check=False).returncode
    except OSError:
        allowed = False
    return ["pretended", "real"] if allowed else ["pretended"]


def elsewhere(way: str, off_s: int, path: Path, what: str, record_id: bytes) -> list[str]:
    """What a process says whose boot clock is so far ahead of ours."""
    words = [sys.executable, "-c", _OTHER, str(path), what, record_id.hex()]
    if way == "real":
        words = [*_IN, "--boottime", str(off_s), "--", *words, "0"]
    else:
        words.append(str(off_s))
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


pytestmark = [pytest.mark.slow, pytest.mark.parametrize("way", _ways())]


@pytest.mark.parametrize("off_s", OFFSETS)
def test_p1_a_lease_is_as_live_in_another_time_namespace(
    tmp_path: Path, way: str, off_s: int
) -> None:
    path, claim = tmp_path / "keys.db", new_claim(lease_s=LEASE_S)
    gatherer = Gatherer(SqliteStore(path))
    gatherer.ask(Insert(claim))
    began_s = time.monotonic()
    *told, left_s = elsewhere(way, off_s, path, "take", claim.id)
    passed_s = time.monotonic() - began_s
    assert told == ["False", "False", "False"]
    assert LEASE_S - passed_s - 0.1 <= float(left_s) <= LEASE_S
    gatherer.close()


@pytest.mark.parametrize("off_s", OFFSETS)
def test_p1_and_so_is_one_that_was_claimed_there(tmp_path: Path, way: str, off_s: int) -> None:
    path, claim = tmp_path / "keys.db", new_claim(lease_s=LEASE_S)
    began_s = time.monotonic()
    elsewhere(way, off_s, path, "claim", claim.id)
    gatherer = Gatherer(SqliteStore(path))
    found = gatherer.ask(Find(claim.id))
    passed_s = time.monotonic() - began_s
    assert not found.lapsed
    assert not found.overlong
    assert LEASE_S - passed_s - 0.1 <= found.lease_left_s <= LEASE_S
    gatherer.close()
