"""The real clocks: what they measure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey._system import clock
from oncekey._system.clock import SystemClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock here counts sleep")
def test_p1_who_wakes_with_the_machine_knows_that_his_lease_is_over() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock.monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    # On a machine that never slept all clocks agree: the one that stands still is told by its name.
    assert SystemClock.monotonic is clock._boot_clock
    before = clock._boot_clock()
    assert before <= SystemClock.boot() + clock._boot_offset_s() <= clock._boot_clock()


# ------------------------------------------------------------------------------ time namespaces


@pytest.fixture
def offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "timens_offsets"
    monkeypatch.setattr(clock, "_OFFSETS_FILE", file)
    clock._boot_offset_s.cache_clear()
    yield file
    clock._boot_offset_s.cache_clear()


def test_p8_the_boot_clock_is_the_machines_also_in_a_time_namespace(offsets: Path) -> None:
    """As the kernel writes it."""
    offsets.write_text("monotonic          -5         0\nboottime       100000 250000000\n")
    assert SystemClock.boot() == pytest.approx(clock._boot_clock() - 100_000.25, abs=1.0)
    assert SystemClock.monotonic() == pytest.approx(clock._boot_clock(), abs=1.0)


def test_p8_one_may_be_set_back(offsets: Path) -> None:
    """The kernel counts nanoseconds upwards."""
    offsets.write_text("monotonic           0         0\nboottime       -2 750000000\n")
    assert SystemClock.boot() == pytest.approx(clock._boot_clock() + 1.25, abs=1.0)


def test_p8_a_system_without_time_namespaces_sets_nothing_off(offsets: Path) -> None:
    assert not offsets.exists()
    assert SystemClock.boot() == pytest.approx(clock._boot_clock(), abs=1.0)
