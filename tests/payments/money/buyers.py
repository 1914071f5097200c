"""Hundreds of buyers in one process, each of whom asks again, with the same key, until there is an
answer; and who do at once what should be done once.

    python -m tests.payments.money.buyers URL SEED COUNT

What they were told is written to standard output, a JSON object per line. SIGTERM lets them finish
what they have begun; the last line counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import httpx2

from oncekey.client import AsyncClient, Attempted, Retries, RetryBudget
from payments.access.accounts import LOCAL_KEY

CONNECTIONS_MAX = 400
THINK_S_MAX = 4.0
IMPATIENCE_S = (None, None, 0.02, 0.1, 0.5)
"""How long a buyer waits before they leave, and ask again properly."""
TIMEOUT_S = 30.0
RETRIES = Retries(attempts_max=10_000, budget_s=600.0, backoff_s=0.2, backoff_s_max=2.0)
BUDGET = RetryBudget(tokens_max=100_000.0, tokens_per_s=10_000.0)
FORM = "application/x-www-form-urlencoded"
CARDS = (*["visa"] * 8, "chargeDeclined", "chargeDeclinedInsufficientFunds")

Form = dict[str, str]
Response = tuple[int, dict[str, Any]]


class Buyers:
    """What they have in common."""

    def __init__(self, url: str) -> None:
        self.counts: Counter[str] = Counter()
        self.stopping = asyncio.Event()
        limits = httpx2.Limits(max_connections=CONNECTIONS_MAX)
        options: dict[str, Any] = {
            "base_url": url,
            "headers": {"Authorization": f"Bearer {LOCAL_KEY}"},
            "trust_env": False,
            "timeout": TIMEOUT_S,
        }
        self.careless = httpx2.AsyncClient(limits=limits, **options)
        self.api = AsyncClient(
            transport=httpx2.AsyncHTTPTransport(limits=limits, trust_env=False),
            profile="stripe",
            retries=RETRIES,
            budget=BUDGET,
            hooks=[self._count_attempt],
            **options,
        )

    def tell(self, what: str, **facts: Any) -> None:
        self.counts[what] += 1
        print(json.dumps({"what": what, **facts}), flush=True)  # noqa: T201

    def _count_attempt(self, event: Any) -> None:
        if isinstance(event, Attempted):
            self.counts["requests"] += 1
            self.counts["replays"] += bool(event.replayed)
            self.counts[f"answered {event.status}" if event.status else "broken"] += 1


class Buyer:
    """One of them. Whatever chance decides is decided by the seed."""

    def __init__(self, buyers: Buyers, seed: str) -> None:
        self._all = buyers
        self._name = seed
        self._random = random.Random(seed)
        self._purchases = 0

    async def shop(self) -> None:
        await self._think()
        while not self._all.stopping.is_set():
            self._purchases += 1
            habit: Callable[[Buyer], Awaitable[None]] = self._random.choice(HABITS)
            await habit(self)
            await self._think()

    async def _think(self) -> None:
        try:
            async with asyncio.timeout(self._random.random() * THINK_S_MAX):
                await self._all.stopping.wait()
        except TimeoutError:
            return

    # ------------------------------------------------------------------------------- asking

    async def _post(self, path: str, form: Form, name: str, *, clicks: int = 1) -> Response:
        """Ask until there is an answer; with several clicks, all of them at once, by one key."""
        key = f"{self._name} {self._purchases} {name}"
        answers = await asyncio.gather(
            *(self._ask(path, form, key, self._random.choice(IMPATIENCE_S)) for _ in range(clicks))
        )
        if any(answer != answers[0] for answer in answers):
            self._all.tell("wrong", why=f"one key, several answers: {key}", answers=answers)
        return answers[0]

    async def _ask(self, path: str, form: Form, key: str, patience_s: float | None) -> Response:
        options: dict[str, Any] = {
            "url": f"/v1/{path}",
            "content": urlencode(form),
            "headers": {"Content-Type": FORM, "Idempotency-Key": key.replace(" ", "-")},
        }
        if patience_s is not None:
            self._all.counts["left without an answer"] += 1
            with contextlib.suppress(httpx2.TransportError):
                await self._all.careless.post(**options, timeout=patience_s)
                self._all.counts["left without an answer"] -= 1
        while True:
            try:
                answer = await self._all.api.post(**options)
            except httpx2.TransportError:
                continue
            if answer.status_code not in (409, 429) and answer.status_code < 500:
                return answer.status_code, answer.json()

    def _want(self) -> Form:
        self._all.counts["wants"] += 1
        return {
            "amount": str(self._random.randint(100, 9999)),
            "currency": self._random.choice(["usd", "eur"]),
            "description": f"{self._name} {self._purchases}",
        }

    # ------------------------------------------------------------------------------- habits

    async def _charge(self) -> None:
        """A charge, clicked twice now and then, and sometimes wanted back."""
        form = self._want() | {"source": f"tok_{self._random.choice(CARDS)}"}
        status, charge = await self._post("charges", form, "charge", clicks=self._clicks())
        if status == 200:
            self._all.tell("charged", charge=charge["id"], amount=charge["amount"])
            if self._random.random() < 0.3:
                await self._refund_twice(charge["id"])

    async def _intent(self) -> None:
        """An intent that is confirmed in two tabs at once, each with a key of its own."""
        method = {"payment_method": f"pm_card_{self._random.choice(CARDS)}"}
        _, intent = await self._post("payment_intents", self._want() | method, "intent")
        path = f"payment_intents/{intent['id']}/confirm"
        tabs = await asyncio.gather(
            *(self._post(path, {}, f"confirm {tab}", clicks=self._clicks()) for tab in range(2))
        )
        paid = [body for status, body in tabs if status == 200]
        if len(paid) > 1:
            self._all.tell("wrong", why=f"{intent['id']} was confirmed twice")
        for body in paid:
            self._all.tell("charged", charge=body["latest_charge"], amount=body["amount"])

    async def _capture_or_cancel(self) -> None:
        """An intent that is captured and cancelled at the same moment: one of them wins."""
        form = self._want() | {"payment_method": "pm_card_visa", "confirm": "true"}
        form["capture_method"] = "manual"
        status, intent = await self._post("payment_intents", form, "held", clicks=self._clicks())
        if status != 200:
            self._all.tell("wrong", why=f"a good card was refused: {intent}")
            return
        path = f"payment_intents/{intent['id']}"
        (captured, body), (cancelled, _) = await asyncio.gather(
            self._post(f"{path}/capture", {}, "capture", clicks=self._clicks()),
            self._post(f"{path}/cancel", {}, "cancel", clicks=self._clicks()),
        )
        if [captured, cancelled].count(200) > 1:
            self._all.tell("wrong", why=f"{intent['id']} was captured and cancelled")
        if captured == 200:
            charge, amount = body["latest_charge"], body["amount_received"]
            self._all.tell("charged", charge=charge, amount=amount)
        if cancelled == 200:
            self._all.tell("cancelled", charge=intent["latest_charge"])

    async def _refund_twice(self, charge: str) -> None:
        """Two people ask for the whole refund, each with a key of their own: one gets it."""
        asked = await asyncio.gather(
            *(self._post("refunds", {"charge": charge}, f"refund {who}") for who in range(2))
        )
        given = [body for status, body in asked if status == 200]
        if len(given) > 1:
            self._all.tell("wrong", why=f"{charge} was given back twice")
        for body in given:
            self._all.tell("refunded", refund=body["id"], amount=body["amount"])

    def _clicks(self) -> int:
        return self._random.choice((1, 1, 2, 3))


HABITS = (Buyer._charge, Buyer._charge, Buyer._intent, Buyer._capture_or_cancel)


async def run(url: str, seed: str, count: int) -> None:
    buyers = Buyers(url)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, buyers.stopping.set)
    await asyncio.gather(*(Buyer(buyers, f"{seed}-{number}").shop() for number in range(count)))
    await buyers.api.aclose()
    await buyers.careless.aclose()
    print(json.dumps({"what": "counts", **buyers.counts}), flush=True)  # noqa: T201


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # retries are what this is about
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
