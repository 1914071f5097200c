"""What is armed, how often it strikes, and that the documentation says the same."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from payments.network.faults import FAULTS, TIMES_MAX, ArmedFaults, UnknownFault
from tests.docs.pages import TEXTS, rows


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(tmp_path / "network.db", isolation_level=None)) as file:
        yield file


def names(armed: ArmedFaults, count: int) -> list[str | None]:
    return [fault.name if (fault := armed.take()) else None for _ in range(count)]


def test_faults_strike_in_the_order_in_which_they_were_armed(file: sqlite3.Connection) -> None:
    armed = ArmedFaults(file)
    armed.arm("reset", 2)
    armed.arm("500-before")
    assert names(armed, 4) == ["reset", "reset", "500-before", None]


def test_what_is_armed_survives_a_restart(file: sqlite3.Connection) -> None:
    armed = ArmedFaults(file)
    armed.arm("reset", 2)
    armed.arm("500-before")
    armed.take()
    assert names(ArmedFaults(file), 3) == ["reset", "500-before", None]
    assert names(ArmedFaults(file), 1) == [None]


def test_arming_again_sets_the_times_and_none_disarms(file: sqlite3.Connection) -> None:
    armed = ArmedFaults(file)
    armed.arm("slow", 5)
    armed.arm("slow", 1)
    assert armed.times("slow") == 1
    armed.arm("slow", 0)
    armed.arm("reset", 1)
    armed.disarm()
    assert names(armed, 1) == [None]
    assert names(ArmedFaults(file), 1) == [None]


@pytest.mark.parametrize(("name", "times"), [("flood", 1), ("slow", -1), ("slow", TIMES_MAX + 1)])
def test_what_cannot_be_armed(file: sqlite3.Connection, name: str, times: int) -> None:
    with pytest.raises(UnknownFault):
        ArmedFaults(file).arm(name, times)


def test_the_documentation_lists_every_fault() -> None:
    shown = {row[0].strip("`"): row[1] for row in rows(TEXTS["docs/payments.md"]) if len(row) == 2}
    assert {name: shown.get(name) for name in FAULTS} == {
        name: fault.explains for name, fault in FAULTS.items()
    }
