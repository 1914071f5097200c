"""From an outbox through a broker to an inbox: is each message that was committed handled once?"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from soak import engines, faults, ledger, messenger
from soak.faults import Befell
from soak.judge import Violation
from soak.ledger import Entry, Id, now
from soak.messenger import KEYS, NO_KEY, TOPIC
from soak.place import Place
from soak.report import Outcome, row
from soak.settings import Settings
from soak.workers import Worker
from tests.messaging.brokers import BROKERS, NACK
from tests.servers import Server, start_kafka, start_nats, start_rabbitmq, start_redis

ROLES = ("put", "publish", "handle", "put", "publish", "handle-within")
HANDLED_S_MAX = 120.0
_LOOK_S = 0.5
_LATE_S = 3.0
"""What is delivered again after the last was handled has come by then."""
_STARTERS: dict[str, Callable[[], Server]] = {
    "rabbitmq": start_rabbitmq,
    "nats": partial(start_nats, durable=True),
    "redis": partial(start_redis, durable=True),
}


@dataclass(frozen=True, slots=True)
class Left:
    """A message that is still in the outbox, parked or not."""

    id: str
    error: str


async def soak(settings: Settings, folder: Path) -> Outcome:
    """The whole of it. The folder keeps the ledger, and what the workers had to say."""
    began, befallen, book = now(), list[Befell](), folder / "ledger"
    async with contextlib.AsyncExitStack() as stack:
        place = await stack.enter_async_context(Place(settings, folder))
        ask = partial(engines.ask, settings.engine, place.direct)
        for statement in messenger.TABLES:
            await asyncio.to_thread(ask, statement)
        url = await _broker(settings.broker, place, stack)
        workers = []
        for number, role in enumerate(ROLES):
            given = role, settings.as_text(), place.url, url, str(book)
            workers.append(Worker(given, folder / f"{number}-{role}.log", "soak.messenger"))
            stack.callback(workers[-1].close)
        beside = settings.broker in _STARTERS
        planned = faults.plan(settings.seed, settings.seconds, settings.engine, beside=beside)
        await faults.inflict_all(planned, place, workers, befallen)
        for worker, role in zip(workers, ROLES, strict=True):
            worker.check()
            if role == "put":
                worker.kill()
        await _handled(ask)
        put = await asyncio.to_thread(ask, "SELECT id, name, n FROM put")
        left = await asyncio.to_thread(ask, "SELECT id, error FROM oncekey_outbox")
        handled = [id_ for _, _, id_, *_ in await place.rows()]
    entries = list(ledger.read(book))
    known = {id_: (name, int(n)) for id_, name, n in put}
    complaints = judge(known, handled, entries, [Left(str(i), str(why)) for i, why in left])
    return Outcome(began, entries, [], befallen, list(complaints))


async def _broker(name: str, place: Place, stack: contextlib.AsyncExitStack) -> str:
    """Its address, once it has what keeps messages that nobody consumes yet."""
    if name in _STARTERS:
        url, direct = await place.beside(_STARTERS[name])
    else:
        cluster = start_kafka()
        stack.callback(cluster.close)
        url = direct = cluster.url
    client = BROKERS[name].broker(direct, logger=None)
    for subscriber in BROKERS[name].subscribe(client, TOPIC, NACK):
        subscriber(_nothing)
    await client.start()
    await client.stop()
    return url


async def _nothing(body: str) -> None:
    raise AssertionError("nothing was published yet")


async def _handled(ask: Callable[[str], Any]) -> None:
    """Return when every message was handled, or it took too long."""
    until = now() + HANDLED_S_MAX
    unhandled = "SELECT COUNT(*) FROM put WHERE id NOT IN (SELECT name FROM effects)"
    while now() < until:
        await asyncio.sleep(_LOOK_S)
        if await asyncio.to_thread(ask, unhandled) == [(0,)]:
            break
    await asyncio.sleep(_LATE_S)


# ------------------------------------------------------------------------------------- the verdict


def judge(
    put: dict[str, tuple[str, int]],
    handled: Iterable[str],
    entries: Iterable[Entry],
    left: Iterable[Left],
) -> Iterator[Violation]:
    """What broke a promise, without I/O. `put` are the messages that were committed: the name of
    what keeps them in order, and the number there.
    """
    published = [entry.id.key for entry in entries if entry.what == "published"]
    effects = Counter(handled)

    def wrong(id_: str, what: str) -> Violation:
        return Violation("once", Id(TOPIC, put.get(id_, ("?", 0))[0], id_), what)

    for id_, times in effects.items():
        if times > 1:
            yield wrong(id_, f"was handled {times} times")
    for id_ in put.keys() - effects.keys():
        yield wrong(id_, "was never handled")
    for id_ in {*published, *effects} - put.keys():
        yield wrong(id_, "was never committed, and left")
    for each in left:
        yield wrong(each.id, f"is still in the outbox: {each.error}")
    numbers: dict[str, list[int]] = defaultdict(list)
    for id_ in dict.fromkeys(published):  # the first time of each
        name, n = put.get(id_, (NO_KEY, 0))
        numbers[name].append(n)
    for name in KEYS:
        if name != NO_KEY and numbers[name] != sorted(numbers[name]):
            yield Violation("order", Id(TOPIC, name, ""), f"left as {numbers[name]}")


def summary(outcome: Outcome) -> str:
    published = Counter(entry.id.key for entry in outcome.entries)
    counts = {
        "messages": Counter(f"published {times} times" for times in published.values()),
        "faults": Counter(one.fault.what for one in outcome.faults),
        "violations": Counter(one.promise for one in outcome.violations),
    }
    return "\n".join(row(name, counted) for name, counted in counts.items())
