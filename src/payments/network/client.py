"""The card network, as the payments API sees it.

Every call that moves money carries the caller's key, and is sent again with the same one until the
network answers or the time for it is over: then the outcome is not known, and `NetworkDown` says
so. Whoever calls again with the same key learns what became of it.
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
"""Long enough for a network that crashed to be there again."""
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
    """Which one it is a part of; None if it is one itself."""
    reference: str
    card: str
    """Its last four digits."""
    amount: int
    currency: str
    declined: str | None
    created: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What the network counts: captures and refunds, and the money that moved by currency."""

    captures: int
    refunds: int
    captured: dict[str, int]
    refunded: dict[str, int]


class NetworkDown(Exception):
    """No answer: whether it was done is not known. Call again with the same key."""


class NetworkRefused(Exception):
    """The network will never do this: more than was captured, no such authorisation, a key that
    was sent with another request. Calling again does not help.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Network:
    """A client for all threads of a process."""

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
        # It is a neighbour: neither proxies nor credentials of the environment are for it.
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
        """Ask the card for an amount; with `capture`, take it at once."""
        said = self._post(
            "/authorisations",
            key,
            card=card,
            amount=amount,
            currency=currency,
            reference=reference,
            capture=capture,
        )
        if said["approved"]:
            return Authorised(said["id"])
        return Declined(said["code"], said["decline_code"], said["message"], said["id"])

    def capture(self, *, key: str, authorisation: str, amount: int, reference: str) -> Captured:
        """Take what was authorised, or a part of it."""
        path, to = "/captures", {"authorisation": authorisation, "reference": reference}
        return Captured(self._post(path, key, amount=amount, **to)["id"])

    def void(self, *, key: str, authorisation: str, reference: str) -> Voided:
        """Let go of an authorisation of which nothing was captured."""
        path, to = "/voids", {"authorisation": authorisation, "reference": reference}
        return Voided(self._post(path, key, **to)["id"])

    def refund(self, *, key: str, authorisation: str, amount: int, reference: str) -> Refunded:
        """Give back what was captured, or a part of it."""
        path, to = "/refunds", {"authorisation": authorisation, "reference": reference}
        return Refunded(self._post(path, key, amount=amount, **to)["id"])

    # ------------------------------------------------------------------------------- looking at it

    def transactions(self, *, reference: str | None = None) -> Iterator[Transaction]:
        """The whole book, or what belongs to one reference; oldest first."""
        after = 0
        while True:
            query: dict[str, Any] = {"after": after, "limit": 1000}
            if reference is not None:
                query["reference"] = reference
            page = self._ask("GET", "/transactions", params=query)["data"]
            if not page:
                return
            for line in page:
                yield Transaction(**line)
            after = page[-1]["number"]

    def tally(self) -> Tally:
        """How much was charged, as the network counts it."""
        return Tally(**self._ask("GET", "/tally"))

    # -------------------------------------------------------------------------------------- faults

    def faults(self) -> list[dict[str, Any]]:
        """What can be armed: `fault`, `explains`, and the `times` that are left of it."""
        return self._data(self._ask("GET", "/faults"))

    def arm(self, fault: str, times: int = 1) -> list[dict[str, Any]]:
        """Let the next `times` requests meet this fault; 0 disarms it."""
        return self._data(self._ask("POST", "/faults", json={"fault": fault, "times": times}))

    def disarm(self) -> list[dict[str, Any]]:
        """From now on all goes well."""
        return self._data(self._ask("DELETE", "/faults"))

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------- asking

    def _post(self, path: str, key: str, **fields: Any) -> dict[str, Any]:
        return self._ask("POST", path, key=key, json=fields)

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **options)
        except httpx2.TransportError as error:
            raise NetworkDown(f"{method} {self.url}{path}: {error!r}") from error
        if response.status_code >= 500:
            raise NetworkDown(f"{method} {self.url}{path}: {response.status_code}")
        said: dict[str, Any] = response.json()
        if response.status_code >= 400:
            raise NetworkRefused(said["error"]["code"], said["error"]["message"])
        return said

    @staticmethod
    def _data(said: dict[str, Any]) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = said["data"]
        return listed
