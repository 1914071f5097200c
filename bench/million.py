"""A process that handles very many records and reports its memory meanwhile.

python -m bench.million FILE RECORDS SECONDS_MAX
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from bench.machine import rss_bytes
from bench.work import Library
from oncekey.stores.sqlite.store import SqliteStore

WAYS = 128
REPORTS = 20


async def _fill(library: Library, count: int) -> None:
    """Insert and complete so many, through the engine."""
    left = count

    async def one() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await library.begin_and_finish()

    await asyncio.gather(*(one() for _ in range(WAYS)))


def main() -> None:
    path, records, seconds_max = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    started = time.monotonic()
    step = records // REPORTS
    with Library(SqliteStore(path)) as library:
        for done in range(step, records + 1, step):
            library.run(_fill(library, step))
            print(json.dumps({"records": done, "rss_bytes": rss_bytes()}), flush=True)
            if time.monotonic() - started > seconds_max:
                break


if __name__ == "__main__":
    main()
