"""The example of a process that dies halfway does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_of_recovery_finishes_each_step_once(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "recover.py"],
        cwd=tmp_path,
        env={**os.environ, "DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "the process ended with 1",
        "it had done: flight, hotel",
        "recovered: finished",
        "done in the end: flight, hotel, mail",
    ]
    assert (tmp_path / "effects.txt").read_text().split() == ["flight", "hotel", "mail"]
