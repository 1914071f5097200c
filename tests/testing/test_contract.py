"""The contract suite is effective: it passes a correct store and catches every wrong one."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncekey._core.verbs import Find, Insert
from oncekey._system.clock import FakeClock
from oncekey.stores.memory import MemoryStore
from oncekey.testing.contract import Case, StoreContract, Subject
from oncekey.testing.contract.subject import FACES, SyncFace
from tests.testing.mutant_stores import CAUGHT_BY

TESTS = [name for name in dir(StoreContract) if name.startswith("test_")]


def parameters(test: Any) -> Iterator[dict[str, Any]]:
    """Return every set of arguments that a test is parametrised with."""
    sets = []
    for mark in getattr(test, "pytestmark", ()):
        names, values = mark.args
        names = [names] if isinstance(names, str) else names
        rows = [[value] if len(names) == 1 else value for value in values]
        sets.append([dict(zip(names, row, strict=True)) for row in rows])
    for chosen in itertools.product(*sets):
        yield {name: value for part in chosen for name, value in part.items()}


def failures(store: type[MemoryStore], name: str) -> int:
    """Return with how many sets of arguments and faces the test fails for this store."""
    test, failed = getattr(StoreContract, name), 0
    for arguments, open_face in itertools.product(parameters(test), FACES.values()):
        clock = FakeClock()
        subject = Subject(store(clock), elapse=clock.advance)
        face = open_face(subject.store)
        try:
            test(StoreContract(), Case(subject, face), **arguments)
        except AssertionError:
            failed += 1
        finally:
            face.close()
    return failed


@pytest.mark.parametrize("mutant", CAUGHT_BY, ids=lambda mutant: mutant.__name__)
def test_a_mistake_is_caught_by_the_test_that_names_it(mutant: type[MemoryStore]) -> None:
    name = CAUGHT_BY[mutant]
    assert failures(MemoryStore, name) == 0
    assert failures(mutant, name) > 0


def test_there_is_a_test_for_every_subject() -> None:
    assert len(TESTS) > 100
    assert set(CAUGHT_BY.values()) <= set(TESTS)


# ------------------------------------------------------------------------- a stranger's store

MODULE = """
import pytest
from oncekey._system.clock import FakeClock
from oncekey.stores.memory import MemoryStore
from oncekey.testing.contract import InsertContract, Subject

def nothing(self, verbs):
    yield from ()
    return [None for _ in verbs]

class MyStore(MemoryStore):
    {mistake}

class TestMyStore(InsertContract):
    @pytest.fixture
    def subject(self):
        clock = FakeClock()
        return Subject(MyStore(clock), elapse=clock.advance)
"""


def run_elsewhere(folder: Path, mistake: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder outside this repository, with nothing configured."""
    (folder / "test_mine.py").write_text(MODULE.format(mistake=mistake))
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-q"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_stranger_needs_a_class_and_a_fixture(tmp_path: Path) -> None:
    done = run_elsewhere(tmp_path, mistake='name = "mine"')
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.slow
def test_a_stranger_is_told_what_is_wrong(tmp_path: Path) -> None:
    """The name of the test is the sentence of the contract; the assertion shows both sides."""
    done = run_elsewhere(tmp_path, mistake="perform = nothing")
    assert done.returncode == 1
    assert "test_a_fence_is_positive[sync]" in done.stdout
    assert "assert isinstance(self.ask(Insert(claim)), Inserted)" in done.stdout
    assert "where False = isinstance(None, Inserted)" in done.stdout


# ------------------------------------------------------------------------------ real waiting


def test_without_a_way_to_let_time_pass_the_suite_waits() -> None:
    subject = Subject(MemoryStore())
    assert subject.elapse is time.sleep
    case = Case(subject, SyncFace(subject.store))
    assert case.lease_s <= 2  # another sweep waits for it
    claim = case.claim(lease_s=0.01)
    case.ask(Insert(claim))
    case.elapse(0.01)
    assert case.ask(Find(claim.id)).lapsed


def test_a_clock_that_cannot_be_set_back_skips_the_tests_that_need_it() -> None:
    subject = Subject(MemoryStore())
    with pytest.raises(pytest.skip.Exception, match="cannot be set back"):
        Case(subject, SyncFace(subject.store)).set_back(1)
