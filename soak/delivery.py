"""The message soak: is each committed message handled once, from outbox through broker to inbox?"""

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
from soak.environment import Environment
from soak.faults import InflictedFault
from soak.judge import Violation
from soak.ledger import Entry, Id, now
from soak.messenger import KEYS, NO_KEY, TOPIC
from soak.report import SoakResult, row
from soak.settings import Settings
from soak.workers import Worker
from tests.messaging.brokers import BROKERS, NACK
from tests.servers import Server, start_kafka, start_nats, start_rabbitmq, start_redis

ROLES = ("put", "publish", "handle", "put", "publish", "handle-within")
HANDLED_S_MAX = 120.0
_LOOK_S = 0.5
_LATE_S = 3.0
"""Redeliveries after the last message was handled arrive by then."""
_STARTERS: dict[str, Callable[[], Server]] = {
    "rabbitmq": start_rabbitmq,
    "nats": partial(start_nats, durable=True),
    "redis": partial(start_redis, durable=True),
}


@dataclass(frozen=True, slots=True)
class Leftover:
    """A message that is still in the outbox, parked or not."""

    id: str
    error: str


async def soak(settings: Settings, folder: Path) -> SoakResult:
    """Run a whole soak. The folder holds the ledger and the workers' logs."""
    began, inflicted, book = now(), list[InflictedFault](), folder / "ledger"
    async with contextlib.AsyncExitStack() as stack:
        environment = await stack.enter_async_context(Environment(settings, folder))
        ask = partial(engines.ask, settings.engine, environment.direct_url)
        for statement in messenger.TABLES:
            await asyncio.to_thread(ask, statement)
        url = await _broker(settings.broker, environment, stack)
        workers = []
        for number, role in enumerate(ROLES):
            given = role, settings.as_text(), environment.url, url, str(book)
            workers.append(Worker(given, folder / f"{number}-{role}.log", "soak.messenger"))
            stack.callback(workers[-1].close)
        beside = settings.broker in _STARTERS
        planned = faults.plan(settings.seed, settings.seconds, settings.engine, beside=beside)
        await faults.inflict_all(planned, environment, workers, inflicted)
        for worker, role in zip(workers, ROLES, strict=True):
            worker.check()
            if role == "put":
                worker.kill()
        await _wait_until_handled(ask)
        put = await asyncio.to_thread(ask, "SELECT id, name, n FROM put")
        left = await asyncio.to_thread(ask, "SELECT id, error FROM oncekey_outbox")
        handled = [id_ for _, _, id_, *_ in await environment.rows()]
    entries = list(ledger.read(book))
    known = {id_: (name, int(n)) for id_, name, n in put}
    complaints = judge(known, handled, entries, [Leftover(str(i), str(why)) for i, why in left])
    return SoakResult(began, entries, [], inflicted, list(complaints))


async def _broker(name: str, environment: Environment, stack: contextlib.AsyncExitStack) -> str:
    """Start the broker, declare its queues, and return its URL."""
    if name in _STARTERS:
        url, direct_url = await environment.start_beside(_STARTERS[name])
    else:
        cluster = start_kafka()
        stack.callback(cluster.close)
        url = direct_url = cluster.url
    client = BROKERS[name].broker(direct_url, logger=None)
    for subscriber in BROKERS[name].subscribe(client, TOPIC, NACK):
        subscriber(_reject_message)
    await client.start()
    await client.stop()
    return url


async def _reject_message(body: str) -> None:
    raise AssertionError("nothing was published yet")


async def _wait_until_handled(ask: Callable[[str], Any]) -> None:
    """Wait until every message was handled, or until the timeout."""
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
    left: Iterable[Leftover],
) -> Iterator[Violation]:
    """Find broken promises, without I/O.

    `put` are the committed messages, each with its ordering key and its number there.
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


def summary(outcome: SoakResult) -> str:
    published = Counter(entry.id.key for entry in outcome.entries)
    counts = {
        "messages": Counter(f"published {times} times" for times in published.values()),
        "faults": Counter(one.fault.what for one in outcome.faults),
        "violations": Counter(one.promise for one in outcome.violations),
    }
    return "\n".join(row(name, counted) for name, counted in counts.items())
