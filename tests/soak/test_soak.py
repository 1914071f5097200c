"""A short soak, from its first process to the verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from soak import report
from soak.__main__ import soak
from soak.settings import read


@pytest.mark.long
@pytest.mark.timeout(400)
def test_what_is_promised_holds_while_processes_die_and_freeze(tmp_path: Path) -> None:
    settings = read(["--engine", "sqlite", "--seconds", "12", "--seed", "1"], None)
    outcome = asyncio.run(soak(settings, tmp_path))
    assert not outcome.violations, report.complaints(outcome)
    assert outcome.seen
    assert outcome.runs.total()
    assert outcome.faults
