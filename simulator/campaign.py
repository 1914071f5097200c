"""Many schedules, on every core."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from simulator.bugs import BUGS
from simulator.coverage import Marks
from simulator.parts import REAL
from simulator.world import play, playing

CHUNK_SCHEDULES = 400
FAILURES_MAX = 20
"""A campaign ends early when so many schedules broke a promise."""


@dataclass(slots=True)
class Campaign:
    """What many schedules came to."""

    schedules: int = 0
    faulty: int = 0
    """Schedules in which something went wrong."""
    events: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    marks: Marks = field(default_factory=Marks)
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Seeds, and the promise that each broke."""
    digests: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, other: Campaign) -> None:
        self.schedules += other.schedules
        self.faulty += other.faulty
        self.events += other.events
        self.simulated_s += other.simulated_s
        self.cpu_s += other.cpu_s
        self.marks.add(other.marks)
        self.failures += other.failures
        self.digests += other.digests

    @property
    def distinct(self) -> int:
        """How many schedules differ in the order of their events."""
        return len(set(self.digests))


def run_chunk(first_seed: int, schedules: int, bug: str = "") -> Campaign:
    """Consecutive seeds, in this process."""
    parts = BUGS[bug].parts() if bug else REAL
    campaign = Campaign()
    started = time.process_time()
    collecting = gc.isenabled()
    gc.disable()  # a world is garbage all at once, after its schedule; looking in between is waste
    try:
        with playing(parts, campaign.marks):
            for seed in range(first_seed, first_seed + schedules):
                played = play(seed, campaign.marks, parts)
                campaign.schedules += 1
                campaign.faulty += played.faults > 0
                campaign.events += played.events
                campaign.simulated_s += played.simulated_s
                campaign.digests.append(int.from_bytes(played.digest, "big"))
                if played.violation:
                    campaign.failures.append((seed, played.violation))
    finally:
        gc.collect()
        if collecting:
            gc.enable()
    campaign.cpu_s = time.process_time() - started
    return campaign


def run(
    first_seed: int,
    schedules: int,
    *,
    processes: int = 0,
    bug: str = "",
    progress: Callable[[Campaign], None] | None = None,
) -> Campaign:
    """So many schedules from this seed on; by default on every core."""
    campaign = Campaign()
    for chunk in _chunks(first_seed, schedules, processes or os.cpu_count() or 1, bug):
        campaign.add(chunk)
        if progress is not None:
            progress(campaign)
        if len(campaign.failures) >= FAILURES_MAX:
            break
    return campaign


def _chunks(first_seed: int, schedules: int, processes: int, bug: str) -> Iterator[Campaign]:
    end = first_seed + schedules
    seeds = range(first_seed, end, CHUNK_SCHEDULES)
    sizes = [min(CHUNK_SCHEDULES, end - seed) for seed in seeds]
    if processes == 1:
        for seed, size in zip(seeds, sizes, strict=True):
            yield run_chunk(seed, size, bug)
        return
    with processes_of(processes) as pool:
        try:
            yield from pool.map(run_chunk, seeds, sizes, [bug] * len(sizes))
        finally:
            pool.shutdown(cancel_futures=True)


def processes_of(count: int = 0) -> ProcessPoolExecutor:
    """So many processes, by default one per core."""
    # Fresh interpreters: a fork would copy the threads of whoever calls, but not run them.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count or os.cpu_count() or 1, mp_context=context)


def hunt(bug: str, seeds: int) -> tuple[int, str] | None:
    """The first seed that finds a planted bug, and what it says; None if none of them does."""
    parts, marks, every = BUGS[bug].parts(), Marks(), BUGS[bug].every
    with playing(parts, marks):
        for seed in range(every - 1, seeds, every):
            if violation := play(seed, marks, parts).violation:
                return seed, violation
    return None
