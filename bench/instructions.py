"""How many machine instructions oncekey adds to one request, counted by valgrind.

python -m bench.instructions bare|first|replay REQUESTS
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import shutil
import subprocess
import sys

from bench.calls import WARM_UPS, build, build_bare, post
from bench.rounds import Settings, say
from bench.subject import try_rows
from bench.table import Row, Section
from tests.servers import Unavailable

FEW, MANY = 50, 250
"""The start of Python and the imports are in both, and cancel out."""
TIMEOUT_S = 600
HOW = (
    "What oncekey adds to the requests of [Calls](#calls): instructions of the whole process, "
    "counted by valgrind, with the middleware and without it (*limit*), garbage collection "
    "switched off. They hardly depend on the machine or on its load."
)


def section(settings: Settings) -> Section:
    return Section("Instructions", HOW, tuple(try_rows("instructions of a request", _rows)))


def estimate_s(settings: Settings) -> float:
    return 90


def _rows() -> list[Row]:
    bare = _each("bare")
    return [_row("first POST", _each("first"), bare), _row("replay", _each("replay"), bare)]


def _row(what: str, ours: float, bare: float) -> Row:
    return Row(
        f"{what}: added instructions",
        ours=f"{ours / 1000:.0f} k",
        limit=f"{bare / 1000:.0f} k",
        value=(ours - bare) / 1000,
        unit="k",
        steady=True,
    )


def _each(kind: str) -> float:
    few, many = (_instructions(kind, requests) for requests in (FEW, MANY))
    each = (many - few) / (MANY - FEW)
    say(f"{kind}: {each:,.0f} instructions")
    return each


def _instructions(kind: str, requests: int) -> int:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Unavailable("valgrind is not installed")
    command = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [sys.executable, "-m", "bench.instructions", kind, str(requests)]
    environment = dict(os.environ, PYTHONHASHSEED="0")
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or counted is None:
        raise ValueError(f"valgrind failed: {done.stderr.strip()[-500:]}")
    return int(counted[1])


async def _work(kind: str, requests: int) -> None:
    logging.getLogger("oncekey.store").setLevel("ERROR")  # memory:// warns that it forgets
    gc.disable()
    app = build_bare() if kind == "bare" else build()
    for number in range(WARM_UPS + requests):
        await post(app, "replayed" if kind == "replay" else f"first-{number:016d}")


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], int(sys.argv[2])))
