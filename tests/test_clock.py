"""The real clocks: what they measure."""

from __future__ import annotations

import time

import pytest

from oncekey.clock import SystemClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock here counts sleep")
def test_p1_who_wakes_with_the_machine_knows_that_his_lease_is_over() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock.monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    # On a machine that never slept all clocks agree: the one that stands still is told by its name.
    assert SystemClock.monotonic is SystemClock.boot
