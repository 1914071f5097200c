"""Memory of a process after many records, and many retries at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from bench import waiters
from bench.machine import ForeignCpu
from bench.rounds import Settings, say
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from tests.servers import folders

RECORDS, RECORDS_QUICK = 1_000_000, 40_000
FILL_S_MAX = 240.0
RECORDS_PER_S = 8_000
"""For the estimate."""
GOAL = Goal(1.05, at_least=False)
HOW = (
    "A million requests, 128 at a time, begun and finished by the engine on a SQLite file: the "
    "memory of the process at the end against that after the first twentieth. And a thousand "
    "retries that arrive while their request runs: as many wait as the policy has room for, the "
    "others are refused at once, and all get their answer."
)


def section(settings: Settings) -> Section:
    rows = [
        *try_rows("memory", lambda: [_million(settings)]),
        *try_rows("retries of a running request", waiters.rows),
    ]
    return Section("Memory and crowds", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    return _records(settings) / RECORDS_PER_S + 5


def _records(settings: Settings) -> int:
    return RECORDS_QUICK if settings.quick else RECORDS


def _million(settings: Settings) -> Row:
    folder, foreign = folders.private("million"), ForeignCpu()
    command = [sys.executable, "-m", "bench.million", str(folder / "keys.db")]
    command += [str(_records(settings)), str(FILL_S_MAX)]
    reports: list[dict[str, int]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            reports.append(json.loads(line))
            done, used = reports[-1]["records"], reports[-1]["rss_bytes"]
            say(f"{done:,} records: {used / 1e6:.1f} MB in use")
    shutil.rmtree(folder, ignore_errors=True)
    if process.returncode or len(reports) < 2:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    before, after = reports[0], reports[-1]
    return Row(
        f"memory after {after['records']:,} records, against that after {before['records']:,}",
        ours=f"{after['rss_bytes'] / 1e6:.1f} MB",
        limit=f"{before['rss_bytes'] / 1e6:.1f} MB",
        value=after["rss_bytes"] / before["rss_bytes"],
        goal=GOAL,
        foreign_percent=foreign.percent(),
        steady=True,
    )
