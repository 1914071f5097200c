"""A shopper: a process full of customers who misbehave, as people and networks do.

They click twice, hang up in the middle, lose patience, repeat requests, and are killed. Each
purchase has one key, stored in a journal before anything is sent; after a kill the next process
finds unfinished purchases there and retries them with the same key.

It reports events on standard output, one word each, for the crowd to count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2

import oncekey
from oncekey.client import Attempted, Client, Intent, Journal, Retries, RetryBudget
from payments.storage import ids

THREADS = 4
THINK_S_MAX = 0.4
PATIENCE_S = 0.03
TIMEOUT_S = 20.0
RETRIES = Retries(attempts_max=30, budget_s=120.0, backoff_s=0.05, backoff_s_max=2.0)
REFUSALS = range(400, 500)
BUSINESS = 402  # a declined card is an answer, not a refusal

WORDS = ("purchases", "clicks", "requests", "replays", "refused", "doubles")
"""What can be reported. `doubles`: one purchase got two charges, which must never happen."""
PAID = "paid:"
"""Before the id of a charge that was reported as paid."""


@dataclass(frozen=True, slots=True)
class Purchase:
    """Something a customer wants, once."""

    name: str
    amount: int
    source: str

    @property
    def form(self) -> dict[str, str]:
        return {
            "amount": str(self.amount),
            "currency": "usd",
            "source": self.source,
            "description": self.name,
        }


def pick(*among: Any) -> Any:
    """Return one of them at random."""
    return among[int(ids.jitter() * len(among))]


class Shopper:
    """Buys until stopped."""

    def __init__(
        self, url: str, api_key: str, journal: Journal, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._address = urlsplit(url)
        self._journal = journal
        self._login = f"Basic {b64encode(f'{api_key}:'.encode()).decode()}"
        options: dict[str, Any] = {"base_url": url, "headers": {"Authorization": self._login}}
        options |= {"timeout": TIMEOUT_S, "trust_env": False}
        self._patient = Client(
            transport=httpx2.HTTPTransport(trust_env=False),
            profile="stripe",
            retries=RETRIES,
            budget=RetryBudget(tokens_max=1000.0, tokens_per_s=100.0),
            hooks=[self._count_attempt],
            **options,
        )
        self._careless = httpx2.Client(**options)
        self._friends = ThreadPoolExecutor(2 * THREADS)
        self.stopping = threading.Event()

    def run(self) -> None:
        """Shop in several threads, and finish what an earlier process began, until stopped."""
        begun = self._journal.unsettled()
        threads = [threading.Thread(target=self._shop) for _ in range(THREADS)]
        threads.append(threading.Thread(target=self._resume, args=(begun,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._friends.shutdown()
        self._journal.close()

    def _resume(self, begun: list[Intent]) -> None:
        for intent in begun:
            if not self._settle(Purchase(**json.loads(intent.note)), intent.key):
                return

    def _shop(self) -> None:
        while not self.stopping.wait(ids.jitter() * THINK_S_MAX):
            source = pick(*["tok_visa"] * 9, "tok_chargeDeclinedInsufficientFunds")
            amount = 100 + int(ids.jitter() * 9900)
            purchase = Purchase(f"purchase {ids.random_letters(12)}", amount, source)
            key = self._journal.key(purchase.name, note=json.dumps(asdict(purchase)))
            self._say("purchases")
            pick(*PAYING)(self, purchase, key)
            if not self._settle(purchase, key):
                return

    # ----------------------------------------------------------------- the right way

    def _settle(self, purchase: Purchase, key: str) -> bool:
        """Retry with one key until there is a response; False if stopped before."""
        while True:
            try:
                answer = self._patient.post("/v1/charges", data=purchase.form, key=key)
            except (httpx2.TransportError, oncekey.Mismatch):
                answer = None
            if answer is not None and answer.status_code in (200, BUSINESS):
                break
            if self.stopping.wait(1.0):
                return False  # it stays in the journal
        self._journal.settle(purchase.name)
        if answer.status_code == 200:
            charge = answer.json()["id"]
            self._say(f"{PAID}{charge}")
            pick(*AFTER_PAYING)(self, purchase, key, charge)
        return True

    def _count_attempt(self, event: Any) -> None:
        if isinstance(event, Attempted):
            self._say("requests")
            if event.replayed:
                self._say("replays")
            elif event.status in REFUSALS and event.status != BUSINESS:
                self._say("refused")

    # ------------------------------------------------------------------------- other ways

    def _click_once(self, purchase: Purchase, key: str) -> None:
        self._say("clicks")

    def _click_twice(self, purchase: Purchase, key: str, times: int = 2) -> None:
        clicks = [self._friends.submit(self._click, purchase, key) for _ in range(times)]
        charged = {click.result() for click in clicks} - {None}
        if len(charged) > 1:
            self._say("doubles")

    def _click_often(self, purchase: Purchase, key: str) -> None:
        self._click_twice(purchase, key, times=5)

    def _time_out(self, purchase: Purchase, key: str) -> None:
        for _ in range(3):
            self._click(purchase, key, timeout_s=PATIENCE_S)

    def _hang_up(self, purchase: Purchase, key: str) -> None:
        """Send everything and do not wait for the response."""
        self._send_raw(purchase, key, part=1.0)

    def _break_off(self, purchase: Purchase, key: str) -> None:
        """Break the connection in the middle of the request."""
        self._send_raw(purchase, key, part=ids.jitter())

    def _click(self, purchase: Purchase, key: str, timeout_s: float = TIMEOUT_S) -> str | None:
        """Press the button once; return the id of the charge in the response, if any."""
        self._say("clicks")
        self._say("requests")
        headers = {"Idempotency-Key": key}
        try:
            answer = self._careless.post(
                "/v1/charges", data=purchase.form, headers=headers, timeout=timeout_s
            )
        except httpx2.TransportError:
            return None
        return self._read(answer)

    def _read(self, answer: httpx2.Response) -> str | None:
        if answer.headers.get("idempotent-replayed") == "true":
            self._say("replays")
        elif answer.status_code in REFUSALS and answer.status_code != BUSINESS:
            self._say("refused")
        return str(answer.json()["id"]) if answer.status_code == 200 else None

    def _send_raw(self, purchase: Purchase, key: str, part: float) -> None:
        self._say("clicks")
        self._say("requests")
        body = urlencode(purchase.form)
        request = (
            f"POST /v1/charges HTTP/1.1\r\nHost: {self._address.netloc}\r\n"
            f"Authorization: {self._login}\r\nIdempotency-Key: {key}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        where = self._address.hostname or "", self._address.port or 80
        with contextlib.suppress(OSError), socket.create_connection(where, TIMEOUT_S) as line:
            line.sendall(request[: max(1, int(len(request) * part))])

    # ------------------------------------------------------------------------ after the payment

    def _do_nothing(self, purchase: Purchase, key: str, charge: str) -> None:
        """Do nothing more."""

    def _pay_again(self, purchase: Purchase, key: str, charge: str) -> None:
        """Go back to the page and pay again."""
        if self._click(purchase, key) not in (charge, None):
            self._say("doubles")

    def _change_amount(self, purchase: Purchase, key: str, charge: str) -> None:
        """Send another amount with the same key, which must be refused."""
        changed = Purchase(purchase.name, purchase.amount + 1, purchase.source)
        if self._click(changed, key) is not None:
            self._say("doubles")

    def _refund_twice(self, purchase: Purchase, key: str, charge: str) -> None:
        """Ask for the whole refund twice at once: one request gets it."""
        asks = [self._friends.submit(self._refund, charge) for _ in range(2)]
        if sum(ask.result() for ask in asks) > 1:
            self._say("doubles")

    def _refund(self, charge: str) -> bool:
        try:
            answer = self._patient.post("/v1/refunds", data={"charge": charge})
        except httpx2.TransportError:
            return False
        return bool(answer.status_code == 200)


PAYING = (
    Shopper._click_once,
    Shopper._click_twice,
    Shopper._click_often,
    Shopper._time_out,
    Shopper._hang_up,
    Shopper._break_off,
)
AFTER_PAYING = (
    Shopper._do_nothing,
    Shopper._do_nothing,
    Shopper._pay_again,
    Shopper._change_amount,
    Shopper._refund_twice,
)


def main(argv: list[str] | None = None) -> int:
    """`python -m payments.demo.load.shopper --url … --journal FILE`, with $SHOPPER_KEY set."""
    logging.disable(logging.WARNING)  # retries are expected here
    parser = argparse.ArgumentParser(description="A process full of impatient customers.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--journal", required=True)
    args = parser.parse_args(argv)

    def say(word: str) -> None:
        os.write(sys.stdout.fileno(), f"{word}\n".encode())  # atomic, whatever other threads write

    journal = Journal(args.journal)
    shopper = Shopper(args.url, os.environ["SHOPPER_KEY"], journal, say)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: shopper.stopping.set())
    shopper.run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
