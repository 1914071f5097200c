"""Whole life cycles of records, claimed and completed many at a time: the CPU time of each."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import uvloop

from bench.machine import own_s
from bench.work import POLICY
from oncekey._core.fingerprint import VERSION, Fingerprint
from oncekey._core.op import arun
from oncekey._core.record import Answer
from oncekey._engine.guard import Call, Execute, Guard, Stored
from oncekey.stores.base import Store
from oncekey.stores.batching import AsyncGatherer

WAYS = 64
HEADERS = ((b"content-type", b"application/json"), (b"location", b"/v1/charges/ch_3MmlLrLkdIwHu"))


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time for each record, of the server and of this process."""

    server_us: float
    client_us: float


def mean(spent: Sequence[Spent]) -> Spent:
    return Spent(fmean(e.server_us for e in spent), fmean(e.client_us for e in spent))


def _call(number: int) -> Call:
    key = f"{number:08x}-1d4c-4f6e-9b1e-{os.urandom(6).hex()}"
    fingerprint = Fingerprint(VERSION, os.urandom(32))
    return Call(f"acct_{number % 1000:016}", "POST /v1/charges", key, fingerprint)


def run_lifecycles(store: Store, count: int, body_bytes: int) -> Spent:
    """Claim and complete that many records; return the CPU time for each."""
    guard = Guard()

    async def one(gatherer: AsyncGatherer, number: int) -> None:
        call = _call(number)
        decision = await arun(guard.begin(call, POLICY), gatherer.ask)
        assert isinstance(decision, Execute), decision
        answer = Answer(201, HEADERS, os.urandom(body_bytes))
        finished = await arun(guard.ownership.finish(decision.attempt, answer, call), gatherer.ask)
        assert isinstance(finished, Stored), finished

    async def all_of_them() -> Spent:
        gatherer, numbers = AsyncGatherer(store), iter(range(1, count))
        await one(gatherer, 0)  # connects, prepares statements, loads scripts
        ours_s, theirs_s = time.process_time(), own_s() - time.process_time()

        async def some() -> None:
            for number in numbers:
                await one(gatherer, number)

        await asyncio.gather(*(some() for _ in range(WAYS)))
        spent_s = time.process_time()
        theirs_s = own_s() - spent_s - theirs_s
        await gatherer.close()
        return Spent(theirs_s / count * 1e6, (spent_s - ours_s) / count * 1e6)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(all_of_them())
