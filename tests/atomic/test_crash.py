"""Closing a SQLite connection while a thread uses it would end the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.atomic.crash_app import AT_ONCE, ROUNDS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sqlite3", "session"])
def test_p6_handlers_that_are_cut_off_in_statements_do_not_end_the_process(
    tmp_path: Path, kind: str, seed: int
) -> None:
    """Nor does what their threads go on writing count, or hold the file."""
    module, file = "tests.atomic.crash_app", str(tmp_path / "shop.db")
    command = [sys.executable, "-m", module, file, kind, str(seed)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr.decode()[-3000:]
    counted = json.loads(ended.stdout)
    assert counted == {"done": AT_ONCE * ROUNDS, "quick": AT_ONCE * ROUNDS, "late": 0}
