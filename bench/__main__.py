"""./dev bench: measure, print the table, write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench import (
    bodies,
    calls,
    client,
    cost,
    durability,
    http,
    imports,
    instructions,
    machine,
    memory,
    payments,
    recovery,
    scale,
    sealed,
    stores,
    table,
)
from bench.rounds import Settings
from bench.subject import failures
from bench.table import Section
from tests.servers import Server, Unavailable, find_tool, start_mariadb, start_postgres, start_redis

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "bench" / "results"
SUBJECTS = {
    "calls": calls,
    "instructions": instructions,
    "import": imports,
    "http": http,
    "stores": stores,
    "client": client,
    "recovery": recovery,
    "memory": memory,
    "bodies": bodies,
    "scale": scale,
    "bytes": cost,
    "sealed": sealed,
    "durability": durability,
    "payments": payments,
}
WITHOUT_SERVERS = {"calls", "instructions", "import"}
QUICK = Settings(rounds=2, seconds=1.0, quick=True)


def main() -> int:
    options = _options()
    settings = _settings(options)
    chosen = [options.only] if options.only else list(SUBJECTS)
    if options.list:
        print(calls.list_calls())
        return 0
    estimate_s = sum(SUBJECTS[name].estimate_s(settings) for name in chosen)
    print(
        f"About {estimate_s / 60:.0f} min: {', '.join(chosen)}; {settings.rounds} rounds of "
        f"{settings.seconds:g} s for each contender.",
        file=sys.stderr,
    )
    started = time.monotonic()
    description = _machine(servers=not set(chosen) <= WITHOUT_SERVERS)
    results = {name: _with_date(SUBJECTS[name].section(settings), description) for name in chosen}
    for section in results.values():
        print(f"\n{section.text()}")
    print(f"\nTook {(time.monotonic() - started) / 60:.1f} min.", file=sys.stderr)
    if failures:
        print(f"Nothing is written: {', '.join(failures)} failed, see above.", file=sys.stderr)
        return 1
    _write(results, settings)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--only", choices=list(SUBJECTS), help="one subject instead of all")
    parser.add_argument("--list", action="store_true", help="only show the calls of a request")
    parser.add_argument("--rounds", type=int, help="how often to run everything (default 7)")
    parser.add_argument("--seconds", type=float, help="seconds per contender and round (default 2)")
    parser.add_argument("--full", action="store_true", help="ten million records instead of one")
    parser.add_argument("--quick", action="store_true", help="check that it works; write no page")
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> Settings:
    settings = QUICK if options.quick else Settings()
    rounds, seconds = options.rounds or settings.rounds, options.seconds or settings.seconds
    return replace(settings, rounds=max(1, rounds), seconds=max(0.2, seconds), full=options.full)


def _with_date(section: Section, description: str) -> Section:
    return replace(section, date=datetime.now(UTC).date().isoformat(), machine=description)


def _machine(*, servers: bool) -> str:
    parts = [f"{machine.cpus()} CPUs", *([_servers()] if servers else []), machine.versions()]
    return f"{', '.join(parts)}."


def _servers() -> str:
    starters: dict[str, Callable[[], str]] = {
        "PostgreSQL": lambda: _version(start_postgres),
        "MariaDB": lambda: _version(start_mariadb),
        "Redis": lambda: _version(start_redis),
        "wrk": lambda: f"({find_tool('wrk').source})",
        "redis-benchmark": lambda: f"({find_tool('redis-benchmark').source})",
    }
    return ", ".join(f"{name} {_or_missing(look)}" for name, look in starters.items())


def _or_missing(look: Callable[[], str]) -> str:
    try:
        return look()
    except Unavailable:
        return "missing"


def _version(start: Callable[[], Server]) -> str:
    with start() as server:
        return server.version


def _write(results: dict[str, Section], settings: Settings) -> None:
    """Write results as data, and the page with those of earlier runs for the other subjects."""
    RESULTS.mkdir(exist_ok=True)
    for name, section in results.items():
        kind = "quick-" if settings.quick else ""
        (RESULTS / f"{kind}{name}.json").write_text(table.dump([section]))
    if settings.quick:
        return
    files = {name: RESULTS / f"{name}.json" for name in SUBJECTS}
    if missing := [name for name, path in files.items() if not path.exists()]:
        print(
            f"{PAGE.name} is not written: no results yet for {', '.join(missing)}.", file=sys.stderr
        )
        return
    sections = [section for path in files.values() for section in table.load(path.read_text())]
    PAGE.write_text(table.page(sections))
    print(f"Written: {PAGE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
