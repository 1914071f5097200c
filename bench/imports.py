"""How long `import oncekey` takes."""

from __future__ import annotations

import os
import sys
from statistics import median

from bench.machine import ForeignCpu
from bench.rounds import Settings
from bench.subject import try_rows
from bench.table import Row, Section

PROCESSES = 15
HOW = (
    f"CPU time of {PROCESSES} fresh processes that import it, less that of a bare Python "
    "(*limit*), in turn: the median. Bytecode is on the disk already."
)


def section(settings: Settings) -> Section:
    return Section("Import", HOW, tuple(try_rows("import oncekey", _rows)))


def estimate_s(settings: Settings) -> float:
    return PROCESSES * 0.2


def _rows() -> list[Row]:
    _cpu_ms("import oncekey")  # which writes the bytecode
    foreign = ForeignCpu()
    bare, with_import = [], []
    for _ in range(PROCESSES):
        bare.append(_cpu_ms("pass"))
        with_import.append(_cpu_ms("import oncekey"))
    added = [ours - limit for ours, limit in zip(with_import, bare, strict=True)]
    return [
        Row(
            "import oncekey, added CPU",
            ours=f"{median(with_import):.0f} ms",
            limit=f"{median(bare):.0f} ms",
            value=median(added),
            low=min(added),
            high=max(added),
            unit="ms",
            foreign_percent=foreign.percent(),
            steady=True,
        )
    ]


def _cpu_ms(program: str) -> float:
    command = [sys.executable, "-c", program]
    pid = os.posix_spawn(sys.executable, command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1000
