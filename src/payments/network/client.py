"""The client of the card network.

Every call that moves money carries the caller's key and is retried with it until the network
answers or time is up: then the outcome is unknown, and `NetworkDown` says so. Calling again with
the same key returns what became of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from oncekey.client import Client, Retries, RetryBudget
from oncekey.events import Hook

TIMEOUT_S = 10.0
CONNECTIONS_MAX = 200
RETRIES = Retries(attempts_max=12, budget_s=15.0, backoff_s=0.1, backoff_s_max=1.0)
"""Long enough for a crashed network to restart."""
_BUDGET = RetryBudget(tokens_max=1000.0, tokens_per_s=100.0)  # one peer, on our side of the wall


@dataclass(frozen=True, slots=True)
class Authorised:
    """The card will pay, or, with `capture`, has paid."""

    id: str


@dataclass(frozen=True, slots=True)
class Declined:
    """The card will not pay: a final answer."""

    code: str
    decline_code: str
    message: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Captured:
    id: str


@dataclass(frozen=True, slots=True)
class Voided:
    id: str


@dataclass(frozen=True, slots=True)
class Refunded:
    id: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """One line of the network's book."""

    number: int
    id: str
    kind: str
    """authorisation, capture, void or refund."""
    authorisation: str | None
    """The authorisation it belongs to; None if it is one itself."""
    reference: str
    card: str
    """Its last four digits."""
    amount: int
    currency: str
    declined: str | None
    created: int


@dataclass(frozen=True, slots=True)
class Tally:
    """The network's counts: captures and refunds, and the money moved, by currency."""

    captures: int
    refunds: int
    captured: dict[str, int]
    refunded: dict[str, int]


class NetworkDown(Exception):
    """No answer, so the outcome is unknown. Call again with the same key."""


class NetworkRefused(Exception):
    """The network refuses for good, so calling again does not help.

    More than was captured, no such authorisation, or a key that was sent with another request.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Network:
    """A client, shared by all threads of a process."""

    def __init__(
        self,
        url: str,
        *,
        retries: Retries = RETRIES,
        timeout_s: float = TIMEOUT_S,
        hooks: Iterable[Hook] = (),
    ) -> None:
        limits = httpx2.Limits(
            max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX
        )
        # It is a local service: ignore proxies and credentials of the environment.
        self._client = Client(
            base_url=url,
            transport=httpx2.HTTPTransport(limits=limits, trust_env=False),
            trust_env=False,
            timeout=timeout_s,
            retries=retries,
            budget=_BUDGET,
            hooks=hooks,
        )
        self.url = url

    # ------------------------------------------------------------------------------ moving money

    def authorise(
        self,
        *,
        key: str,
        card: str,
        amount: int,
        currency: str,
        reference: str,
        capture: bool = False,
    ) -> Authorised | Declined:
        """Authorise an amount; with `capture`, take it at once."""
        reply = self._post(
            "/authorisations",
            key,
            card=card,
            amount=amount,
            currency=currency,
            reference=reference,
            capture=capture,
        )
        if reply["approved"]:
            return Authorised(reply["id"])
        return Declined(reply["code"], reply["decline_code"], reply["message"], reply["id"])

    def capture(self, *, key: str, authorisation: str, amount: int, reference: str) -> Captured:
        """Take what was authorised, or part of it."""
        path, to = "/captures", {"authorisation": authorisation, "reference": reference}
        return Captured(self._post(path, key, amount=amount, **to)["id"])

    def void(self, *, key: str, authorisation: str, reference: str) -> Voided:
        """Void an authorisation of which nothing was captured."""
        path, to = "/voids", {"authorisation": authorisation, "reference": reference}
        return Voided(self._post(path, key, **to)["id"])

    def refund(self, *, key: str, authorisation: str, amount: int, reference: str) -> Refunded:
        """Give back what was captured, or part of it."""
        path, to = "/refunds", {"authorisation": authorisation, "reference": reference}
        return Refunded(self._post(path, key, amount=amount, **to)["id"])

    # ------------------------------------------------------------------------------- reading

    def transactions(self, *, reference: str | None = None) -> Iterator[Transaction]:
        """Yield the whole book, or the lines of one reference, oldest first."""
        after = 0
        while True:
            query: dict[str, Any] = {"after": after, "limit": 1000}
            if reference is not None:
                query["reference"] = reference
            page = self._request("GET", "/transactions", params=query)["data"]
            if not page:
                return
            for line in page:
                yield Transaction(**line)
            after = page[-1]["number"]

    def tally(self) -> Tally:
        """Return how much was charged, as the network counts it."""
        return Tally(**self._request("GET", "/tally"))

    # ------------------------------------------------------------------------------------- faults

    def faults(self) -> list[dict[str, Any]]:
        """List the faults: `fault`, `explains` and the `times` it is still armed for."""
        return self._data(self._request("GET", "/faults"))

    def arm(self, fault: str, times: int = 1) -> list[dict[str, Any]]:
        """Make the next `times` requests meet this fault; 0 disarms it."""
        return self._data(self._request("POST", "/faults", json={"fault": fault, "times": times}))

    def disarm(self) -> list[dict[str, Any]]:
        """Disarm all faults."""
        return self._data(self._request("DELETE", "/faults"))

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ----------------------------------------------------------------------------------- requests

    def _post(self, path: str, key: str, **fields: Any) -> dict[str, Any]:
        return self._request("POST", path, key=key, json=fields)

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **options)
        except httpx2.TransportError as error:
            raise NetworkDown(f"{method} {self.url}{path}: {error!r}") from error
        if response.status_code >= 500:
            raise NetworkDown(f"{method} {self.url}{path}: {response.status_code}")
        reply: dict[str, Any] = response.json()
        if response.status_code >= 400:
            raise NetworkRefused(reply["error"]["code"], reply["error"]["message"])
        return reply

    @staticmethod
    def _data(reply: dict[str, Any]) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = reply["data"]
        return listed
