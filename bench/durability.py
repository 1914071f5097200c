"""What each setting of Redis loses: servers are killed, cut off, and lose power.

Many callers claim and complete records. After the accident every acknowledged record is looked up:
one that is missing or not completed is lost, and would run again.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench.rounds import Settings, say
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from bench.work import COMPLETE, Item, claim
from oncekey._core.batched import batched
from oncekey._core.record import State
from oncekey._core.verbs import Done, Find, Insert, Inserted
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import AsyncGatherer
from oncekey.stores.urls import open_store
from tests.servers import Redis, start_redis
from tests.servers.disk import Disk
from tests.servers.redis import cut_off, let_in
from tests.servers.redis_cluster import await_that, start_redis_cluster
from tests.servers.redis_sentinel import start_watched_redis

WAYS = 32
LOAD_S, CUT_OFF_S = 3.0, 1.0
FIND_S_MAX = 60.0
OPTIONS = "allow=unsafe-durability&timeout_s=2"
WAIT = "wait_replicas=1&wait_timeout_s=0.3"
NOTHING = Goal(0, at_least=False, unit="%")
HOW = (
    f"Records that {WAYS} callers claimed and completed, and how many of them were gone after the "
    "accident: each of those would run again. *Killed*: SIGKILL to the server, which starts again, "
    "or whose replica takes over. *Power cut*: it goes on from what was on its disk at that "
    f"moment. *Cut off, then killed*: its replica heard nothing for {CUT_OFF_S:g} s before. "
    "*WAIT*: `wait_replicas=1`."
)


PAGE = Path(__file__).parent.parent / "docs" / "stores.md"
_PART = re.compile(r"(?s)(<!-- measured: durability -->\n).*?(<!-- end -->)")


def section(settings: Settings) -> Section:
    rows = [row for experiment in _experiments() for row in experiment.rows(settings)]
    if not settings.quick and not any(row.missing for row in rows):
        PAGE.write_text(_PART.sub(lambda part: part[1] + _table(rows) + part[2], PAGE.read_text()))
    return Section("What Redis forgets", HOW, tuple(rows))


def _table(rows: Sequence[Row]) -> str:
    """Render the table for the documentation of the stores."""
    with start_redis() as server:
        version = server.version
    lines = [
        "| what happened | acknowledged | forgotten |",
        "| --- | --- | --- |",
        *(f"| {r.what} | {r.limit.split()[0]} | {r.ours.split()[0]} |" for r in rows),
        "",
        f"Measured {datetime.now(UTC).date().isoformat()} by `./dev bench --only durability`, "
        f"{version}. {HOW}",
    ]
    return "\n".join(lines) + "\n"


def estimate_s(settings: Settings) -> float:
    return len(_experiments()) * (LOAD_S + 8.0)


@dataclass(frozen=True, slots=True)
class Count:
    acknowledged: int
    forgotten: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """An accident, and whether it must not lose records."""

    what: str
    run: Callable[[float], Count]
    safe: bool

    def rows(self, settings: Settings) -> list[Row]:
        goal = NOTHING if self.safe else None
        return try_rows(self.what, lambda: [self._row(settings, goal)], goal)

    def _row(self, settings: Settings, goal: Goal | None) -> Row:
        count = self.run(1.0 if settings.quick else LOAD_S)
        say(f"{self.what}: {count.forgotten:,} of {count.acknowledged:,} forgotten")
        return Row(
            self.what,
            ours=f"{count.forgotten:,} forgotten",
            limit=f"{count.acknowledged:,} acknowledged",
            value=100 * count.forgotten / count.acknowledged,
            unit="%",
            goal=goal,
            steady=True,
        )


def _experiments() -> list[Experiment]:
    files: dict[str, Mapping[str, str]] = {
        "appendonly no": {"appendonly": "no"},
        **{f"appendfsync {how}": {"appendfsync": how} for how in ("no", "everysec", "always")},
    }
    found = []
    for name, setting in files.items():
        always = name == "appendfsync always"
        found += [
            Experiment(f"One server, {name}, killed", partial(_kill, setting), always),
            Experiment(f"One server, {name}, power cut", partial(_power_cut, setting), always),
        ]
    for kind, fail in {"Sentinel": _sentinel, "Cluster": _cluster}.items():
        for waits in (False, True):
            for cut in (False, True):
                how = "with WAIT" if waits else "without WAIT"
                event = "cut off, then killed" if cut else "killed"
                run = partial(fail, waits, cut)
                found.append(Experiment(f"{kind}, {how}, {event}", run, waits))
    return found


# ---------------------------------------------------------------------------------- the accidents


def _kill(setting: Mapping[str, str], seconds: float) -> Count:
    with start_redis(settings=setting) as server:
        url = f"{server.url}?{OPTIONS}"
        records = _work(url, seconds, server.kill)
        server.restart()
        return _count(url, records)


def _power_cut(setting: Mapping[str, str], seconds: float) -> Count:
    with Disk() as disk, start_redis(settings={**setting, "dir": disk.path}) as server:
        url = f"{server.url}?{OPTIONS}"
        records = _work(url, seconds, partial(server.signal_all, signal.SIGSTOP))
        with disk.after_power_cut() as found:
            server.kill()
            with start_redis(settings={**setting, "dir": found.path}) as again:
                return _count(f"{again.url}?{OPTIONS}", records)


def _sentinel(waits: bool, cut: bool, seconds: float) -> Count:
    with start_watched_redis() as watched:
        url = f"{watched.url}&{OPTIONS}"
        accident = partial(_fail_over, watched.first, watched.second)
        records = _work(_with_wait(url, waits), seconds, accident, _cut_off_before(accident, cut))
        await_that(lambda: watched.primary() is watched.second, "nobody took over")
        return _count(url, records)


def _cluster(waits: bool, cut: bool, seconds: float) -> Count:
    with start_redis_cluster() as cluster:
        url = f"{cluster.url}?{OPTIONS}"
        primary, _, _, replica, *_ = cluster.nodes
        accident = partial(_fail_over, primary, replica)
        records = _work(_with_wait(url, waits), seconds, accident, _cut_off_before(accident, cut))
        await_that(lambda: replica.is_primary, "nobody took over")
        return _count(url, records)


def _with_wait(url: str, waits: bool) -> str:
    return f"{url}&{WAIT}" if waits else url


def _cut_off_before(failed: partial[None], cut: bool) -> Callable[[], None] | None:
    primary, replica = failed.args
    return partial(cut_off, replica, primary) if cut else None


def _fail_over(primary: Redis, replica: Redis) -> None:
    primary.kill()
    let_in(replica)


# --------------------------------------------------------------------------------------- the crowd


def _work(
    url: str,
    seconds: float,
    accident: Callable[[], None],
    before: Callable[[], None] | None = None,
) -> list[Item]:
    """Work until the accident; return what was acknowledged before it."""

    async def work() -> list[Item]:
        gatherer, done = AsyncGatherer(open_store(url)), list[Item]()
        crowd = [asyncio.create_task(_one(gatherer, done)) for _ in range(WAYS)]
        await asyncio.sleep(seconds)
        if before is not None:
            before()
            await asyncio.sleep(CUT_OFF_S)
        accident()
        acknowledged = list(done)
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        return acknowledged

    return asyncio.run(work())


async def _one(gatherer: AsyncGatherer, done: list[Item]) -> None:
    while True:
        new = claim()
        try:
            inserted = await gatherer.ask(Insert(new))
            assert isinstance(inserted, Inserted), inserted
            item = Item(new, inserted.fence)
            completed = await gatherer.ask(item.verb(COMPLETE))
        except StoreUnavailable:
            await asyncio.sleep(0.02)
            continue
        assert isinstance(completed, Done), completed
        done.append(item)


def _count(url: str, records: list[Item]) -> Count:
    """Look up all records and count the lost ones."""

    async def find(gatherer: AsyncGatherer, item: Item) -> bool:
        until = time.monotonic() + FIND_S_MAX
        while True:
            try:
                found = await gatherer.ask(Find(item.claim.id))
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.05)
            else:
                return found is not None and found.state is State.COMPLETED

    async def count() -> int:
        gatherer, found = AsyncGatherer(open_store(url)), 0
        for part in batched(records, 256):
            found += sum(await asyncio.gather(*(find(gatherer, item) for item in part)))
        await gatherer.close()
        return len(records) - found

    return Count(len(records), asyncio.run(count()))
