"""Callers who time out and retry with the same key, at any worker."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import httpx

from soak.handler import ANSWERS, BRIEF_S, CUT_OFF, RAISES, STEP, TIMES_OUT, UNKNOWN
from soak.judge import ANSWER, CUT, DOUBTFUL, FAILED, GAVE_UP, NO_ANSWER, ODD, Observation
from soak.ledger import Id, now
from soak.operator import Operator

_LASTS_S = (0.0, 0.0, 0.3, 0.6, 1.2, 1.8, 4.2)
_ATOMIC_S_MAX = 0.05
_SENT = ("seconds", "failures", "how")
_PATIENCES_S = (0.15, 0.5, 1.5, 4.0, 12.0)
_SLOWER_TRIES_MAX = 10
"""Every retry waits longer, up to here: slow machines need time to work, too."""
_HEALED_PATIENCE_S = 30.0
_HEALED_S_MAX = 120.0
"""How long after the last fault every caller must have a response, even on a slow machine."""
_FINAL = (ANSWER, "mismatch")
_UNKNOWN = "outcome-unknown"
_FAILS, _FAILS_OFTEN = 0.1, 0.3
_HOWS_BESIDE_ROWS = (RAISES, TIMES_OUT, ANSWERS)
_HOWS = {
    "rerun": (*_HOWS_BESIDE_ROWS, CUT_OFF),
    "block": (*_HOWS_BESIDE_ROWS, CUT_OFF, UNKNOWN),
    "ask": (*_HOWS_BESIDE_ROWS, CUT_OFF, UNKNOWN),
    "resume": (*_HOWS_BESIDE_ROWS, CUT_OFF, STEP),
    "careful": (*_HOWS_BESIDE_ROWS, CUT_OFF, STEP),
}
"""How attempts fail, by route."""
_ENDS_MIND = 0.5
"""The probability that a caller accepts an unknown outcome. The others call the operator."""
_OUTCOME = "idempotency-outcome"
_PROBLEM = "urn:oncekey:problem:"


@dataclass(frozen=True, slots=True)
class Order:
    """What several callers send at once; one of them sometimes sends something else by the key."""

    id: Id
    seconds: float
    failures: int
    """How many attempts fail first."""
    how: str
    """The way they fail."""
    callers: int
    later_s: float
    """When one more retry comes, after all callers have a response."""


def order_of(seed: int, number: int, routes: Sequence[str]) -> Order:
    """The same seed and number are the same order. Accounts share their keys, two by two."""
    chance = Random(f"{seed}/{number}")
    id_ = Id(f"account-{number % 2}", chance.choice(routes), f"order-{number // 2}")
    likely = _FAILS_OFTEN if id_.route in DOUBTFUL else _FAILS
    seconds, failures = chance.choice(_LASTS_S), 1 if chance.random() < likely else 0
    how = chance.choice(_HOWS.get(id_.route, _HOWS_BESIDE_ROWS))
    if id_.route == "atomic":  # a file has one writer; and what is rolled back is not counted
        seconds, failures = min(seconds, _ATOMIC_S_MAX), 0
    callers, later_s = chance.choice((1, 2, 2, 3, 4)), chance.uniform(0, 3)
    if id_.route == "brief":
        later_s *= 2 * BRIEF_S / 3
    return Order(id_, seconds, failures, how, callers, later_s)


@dataclass(slots=True)
class Clients:
    """All callers of a soak, and what they saw."""

    seed: int
    ports: Sequence[int]
    routes: Sequence[str]
    operator: Operator
    seen: list[Observation] = field(default_factory=list)
    orders: int = 0
    healed_at: float | None = None
    """Set when the last fault is over."""

    async def run(self, at_once: int, until: float) -> None:
        """Send new orders until that moment, then finish those in progress."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as http,  # noqa: S113
            asyncio.TaskGroup() as group,
        ):
            for _ in range(at_once):
                group.create_task(self._keep_ordering(http, until))

    async def _keep_ordering(self, http: httpx.AsyncClient, until: float) -> None:
        while now() < until:
            self.orders += 1
            number = self.orders
            order = order_of(self.seed, number, self.routes)
            calls = (self._call(http, order, f"{number}/{n}", n == 3) for n in range(order.callers))
            await asyncio.gather(*calls)
            await asyncio.sleep(order.later_s)
            await self._call(http, order, f"{number}/later", False)

    async def _call(
        self, http: httpx.AsyncClient, order: Order, caller: str, changed: bool
    ) -> None:
        """Retry until there is a final response."""
        chance = Random(f"{self.seed}/{caller}")
        for tries in itertools.count(1):
            seen = await self._ask(http, order, chance, changed)
            self.seen.append(seen)
            if seen.kind in _FINAL:
                return
            if seen.kind == _UNKNOWN or seen.marked:
                if chance.random() < _ENDS_MIND:
                    return
                await self.operator.resolve(order.id, seen.asked, released=chance.random() < 0.5)
            if self.healed_at is not None and seen.sent > self.healed_at + _HEALED_S_MAX:
                self.seen.append(Observation(order.id, seen.asked, seen.sent, seen.got, GAVE_UP))
                return
            await asyncio.sleep(chance.uniform(0.02, 0.5) * min(tries, _SLOWER_TRIES_MAX))

    async def _ask(
        self, http: httpx.AsyncClient, order: Order, chance: Random, changed: bool
    ) -> Observation:
        account, route, key = order.id
        name = f"{account} {key}{' changed' if changed else ''}"
        patience_s = chance.choice(_PATIENCES_S) if self.healed_at is None else _HEALED_PATIENCE_S
        url = f"http://127.0.0.1:{chance.choice(self.ports)}/{route}"
        body = {"name": name, **{each: getattr(order, each) for each in _SENT}}
        sent = now()
        try:
            async with asyncio.timeout(patience_s):
                headers = {"Idempotency-Key": key, "X-Account": account}
                got = await http.post(url, json=body, headers=headers)
        except TimeoutError:
            return Observation(order.id, name, sent, now(), NO_ANSWER)
        except httpx.TransportError:
            return Observation(order.id, name, sent, now(), CUT)
        return _read(Observation(order.id, name, sent, now(), ODD), got)


def _read(seen: Observation, got: httpx.Response) -> Observation:
    """Classify a response for the judge."""
    common = seen.id, seen.asked, seen.sent, seen.got
    if got.headers.get(_OUTCOME) == "unknown":
        return Observation(*common, FAILED, marked=True)
    try:
        body = got.json()
    except json.JSONDecodeError:
        body = {}
    if got.status_code == 201:
        digest = hashlib.sha256(got.content).hexdigest()
        stored = got.headers.get("idempotency-stored") != "false"
        return Observation(*common, ANSWER, digest, body["order"], body["run"], stored)
    if "error" in body or (got.status_code == 500 and not body):  # the server's own
        return Observation(*common, FAILED)
    kind = str(body.get("type", ""))
    return Observation(*common, kind.removeprefix(_PROBLEM) if kind.startswith(_PROBLEM) else ODD)
