"""A short soak, from its first process to the verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from soak import report
from soak.__main__ import Settings, soak


@pytest.mark.long
@pytest.mark.timeout(400)
def test_what_is_promised_holds_while_processes_die_and_freeze(tmp_path: Path) -> None:
    outcome = asyncio.run(soak(Settings("sqlite", "asgi", seconds=12.0, seed=1), tmp_path))
    assert not outcome.violations, report.complaints(outcome)
    assert outcome.seen
    assert outcome.runs.total()
    assert outcome.faults
