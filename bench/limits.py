"""The engines' own load generators: what the servers can do without Python."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.servers import Program, Unavailable, find_tool

WAYS = 32
_LATE_S_MAX = 60
_NUMBERS = 2_000_000_000  # redis-benchmark stores it in a C int


def pgbench(url: str, script: Path, seconds: float) -> float:
    """Return how often the script ran per second, 32 at a time."""
    command = ["-n", "-M", "prepared", "-c", str(WAYS), "-j", "2"]
    command += ["-T", str(max(1, round(seconds))), "-f", str(script), url]
    return parse_pgbench(_run(find_tool("pgbench"), command, seconds))


def parse_pgbench(output: str) -> float:
    rate = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    failed = re.search(r"^number of failed transactions: ([1-9]\d*)", output, re.MULTILINE)
    if rate is None or failed is not None:
        raise ValueError(f"pgbench failed: {output.strip()[-500:]}")
    return float(rate[1])


def redis_benchmark(url: str, command: Sequence[str], requests: int) -> float:
    """Return commands per second, 32 at a time. `__rand_int__` becomes a new number each time."""
    place = urlsplit(url)
    options = ["-h", place.hostname or "", "-p", str(place.port), "--csv"]
    options += ["-a", unquote(place.password)] if place.password else []
    options += ["-c", str(WAYS), "-n", str(requests), "-r", str(_NUMBERS)]
    return parse_redis_benchmark(_run(find_tool("redis-benchmark"), [*options, *command], 60))


def parse_redis_benchmark(output: str) -> float:
    """Read the rate from the CSV output."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    for found in csv.DictReader(lines):
        return float(found["rps"])
    raise ValueError(f"redis-benchmark gave no result: {output.strip()[-500:]}")


def _run(program: Program, arguments: Sequence[str], seconds: float) -> str:
    if not program.path.exists():
        raise Unavailable(f"{program.source} has no {program.path.name}")
    done = subprocess.run(
        [str(program.path), *arguments],
        env=program.environment(),
        capture_output=True,
        text=True,
        timeout=seconds + _LATE_S_MAX,
    )
    if done.returncode:
        raise ValueError(f"{program.path.name} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
