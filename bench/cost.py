"""What one record costs on each engine: bytes, log, CPU. `oncekey plan` reckons with it.

A whole life is measured: claimed and completed, 64 at a time, through the gatherer. Bodies do not
compress. A full run writes src/oncekey/cli/costs.json; nothing in that file is typed in by hand.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.cost_engines import ENGINES, Engine, Point
from bench.machine import cpus
from bench.rounds import Settings
from bench.subject import failures, try_rows
from bench.table import Row, Section

FILE = Path(__file__).parent.parent / "src" / "oncekey" / "cli" / "costs.json"
QUICK_SHARE = 0.02
HOW = (
    "A claim and its completion by the engine, 64 at a time in one process, then what is on disk "
    "(in memory for Redis) per record, beyond the answer's body: row, answer, indexes, two short "
    "headers; with VACUUM ten times on PostgreSQL, as autovacuum does, after ANALYZE on MariaDB, "
    "after a checkpoint on SQLite. For DynamoDB an item's size by Amazon's rule. Bodies do not "
    "compress. `oncekey plan` reckons with these."
)


# ------------------------------------------------------------------------------------- the subject


def section(settings: Settings) -> Section:
    engines: dict[str, Engine] = {}
    rows: list[Row] = []
    for name, measure in ENGINES.items():

        def look(name: str = name, measure: Callable[[float], Engine] = measure) -> list[Row]:
            print(f"  {name}: bytes per record", file=sys.stderr)
            engines[name] = measure(QUICK_SHARE if settings.quick else 1.0)
            return [_row(name, point) for point in engines[name].points]

        rows += try_rows(name, look)
    if not settings.quick and len(engines) == len(ENGINES) and not failures:
        FILE.write_text(json.dumps(_document(engines), indent=1) + "\n")
    return Section("What a record costs", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    return 30.0 if settings.quick else 180.0


def _row(name: str, point: Point) -> Row:
    return Row(
        f"{name}, answers of {point.answer_bytes:,} bytes",
        ours=f"{point.stored_bytes:,.0f} B",
        limit=f"{point.answer_bytes:,} B",
        value=(point.stored_bytes - point.answer_bytes) / 1000,
        unit="KB beyond the answer",
        steady=True,
    )


def _document(engines: dict[str, Engine]) -> dict[str, Any]:
    return {
        "written_by": "./dev bench --only bytes",
        "measured": datetime.now(UTC).date().isoformat(),
        "oncekey": version("oncekey"),
        "machine": f"{cpus()} CPUs, {platform.machine()}, Python {platform.python_version()}",
        "how": HOW,
        "engines": {name: asdict(engine) for name, engine in engines.items()},
    }
