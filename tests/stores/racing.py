"""Processes that want the same records at once: `python -m tests.stores.racing` is one of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from oncekey._core.record import Claim
from oncekey._core.verbs import Insert, Inserted
from oncekey.stores.batching import AsyncGatherer, Gatherer
from oncekey.stores.urls import open_store

ROOT = Path(__file__).parents[2]
RACERS = 3
RACE_S_MAX = 50.0


def race(url: str, records: int, *, singly: bool = False) -> int:
    """How many wins there were, of all together. Each asks for all records at once, one of them in
    the opposite order; or for one after the other.
    """
    words = [url, str(records), "singly" if singly else "at once"]
    racers = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, *words, str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(RACERS)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    return sum(int(racer.communicate(timeout=RACE_S_MAX)[0]) for racer in racers)


async def _at_once(url: str, claims: list[Claim]) -> int:
    gatherer = AsyncGatherer(open_store(url))
    outcomes = await asyncio.gather(*(gatherer.ask(Insert(claim)) for claim in claims))
    await gatherer.close()
    return sum(isinstance(outcome, Inserted) for outcome in outcomes)


def _singly(url: str, claims: list[Claim]) -> int:
    gatherer = Gatherer(open_store(url))
    won = sum(isinstance(gatherer.ask(Insert(claim)), Inserted) for claim in claims)
    gatherer.close()
    return won


def _main(url: str, records: str, how: str, who: str) -> None:
    claims = [
        Claim(
            number.to_bytes(32, "big"), who.encode(), "tenant", "POST /", "k", b"f", 1, 30.0, 60.0
        )
        for number in range(int(records))
    ]
    if who == "1":
        claims.reverse()
    sys.stdin.readline()  # all start together
    won = _singly(url, claims) if how == "singly" else asyncio.run(_at_once(url, claims))
    sys.stdout.write(f"{won}\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
