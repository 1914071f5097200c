"""Keeping quotas: what this process knows of what its tenants have kept, without asking on the way.

Who begins a request is let in or refused by what is known at that moment, in memory. A second later
the housekeeping thread adds what was counted to the store's own counts, which all processes share,
and reads those that it has reason to look at again. So a quota holds to within what all processes
let in within about a second; a process that has not heard of a tenant yet lets it in, and asks.

The counts in the store are records of oncekey's own, one for each tenant and span of time
(`_core.quota`), whose `replays` are the records and `conflicts` the bytes: counters are what
`Tally` adds to, atomically and without a fence. They decide nothing but this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from oncekey._core import lifecycle
from oncekey._core.batched import batched
from oncekey._core.policy import Policy
from oncekey._core.problems import Problem
from oncekey._core.quota import (
    NOTHING,
    OPERATION,
    Quota,
    Span,
    Usage,
    account_id,
    check_quota,
    is_nearly_used,
    length_s,
    span_of,
    spans_ahead,
)
from oncekey._core.record import Answer
from oncekey._core.reserved_records import reserved_claim
from oncekey._core.verbs import Find, Insert, Inserted, Tally
from oncekey._system.clock import Clock
from oncekey.stores.base import AGAIN
from oncekey.stores.connection import StoreConnection

EVERY_S = 1.0
READ_S_MAX = 30.0
"""A tenant's counts are read again after this."""
READ_S_MIN = 5.0
"""Those of one that is refused, after this."""
NEAR = 1 / 8
"""Or when it has used, here, this part of what was left to it: others may have too."""
TENANTS_MAX = 10_000
MADE_MAX = 100_000
TOGETHER = 100

_Place = tuple[str, Span]


@dataclass(slots=True)
class _Account:
    """A tenant, as this process knows it."""

    known: Usage = NOTHING
    """What the store said."""
    added: Usage = NOTHING
    """What was added here, ever; and how much of that the store's word includes."""
    included: Usage = NOTHING
    read_at: float = float("-inf")

    @property
    def usage(self) -> Usage:
        return self.known + self.added - self.included


class Quotas:
    """The quota, and who has used how much of it. Safe for threads."""

    every_s = EVERY_S

    def __init__(self, quota: Quota, clock: Clock, token: Callable[[], bytes]) -> None:
        self._quota = quota
        self._clock = clock
        self._token = token
        self._mutex = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        self._counted: dict[_Place, Usage] = {}
        self._lengths: set[float] = set()
        self._made: set[bytes] = set()

    def expect(self, policy: Policy) -> None:
        """Records of this policy are to be counted: of whatever retention a client may ask for."""
        retentions = (policy.retention_s, *(policy.retention_declared_s or ()))
        length = length_s(min(retentions))
        while length <= length_s(max(retentions)):
            self._lengths.add(length)
            length *= 2

    # ------------------------------------------------------------------------ with each request

    def refusal(self, tenant: str) -> Problem | None:
        """Why this tenant may begin nothing new now; None if it may."""
        account = self._accounts.get(tenant)
        return None if account is None else check_quota(self._quota, account.usage)

    def count_claim(self, tenant: str, retention_s: float) -> None:
        """A record was made."""
        self._count(tenant, retention_s, Usage(1, 0))

    def count_answer(self, tenant: str, retention_s: float, answer: Answer) -> None:
        """An answer was recorded."""
        headers = sum(len(name) + len(text) for name, text in answer.headers)
        self._count(tenant, retention_s, Usage(0, len(answer.body or b"") + headers))

    def _count(self, tenant: str, retention_s: float, more: Usage) -> None:
        place = tenant, span_of(retention_s, self._clock.wall())
        with self._mutex:
            account = self._accounts.get(tenant)
            if account is None:
                account = self._accounts[tenant] = _Account()
                if len(self._accounts) > TENANTS_MAX:  # whoever came first is asked for again
                    del self._accounts[next(iter(self._accounts))]
            account.added += more
            self._counted[place] = self._counted.get(place, NOTHING) + more
            self._lengths.add(place[1].length_s)

    # ------------------------------------------------------------------------------- beside them

    def work(self, line: StoreConnection, pause: Callable[[], bool]) -> None:
        """Tell the store what was counted, and ask it where there is reason to."""
        included = self._write(line)
        now = self._clock.monotonic()
        for due in batched(self._due(now), max(TOGETHER // max(len(self._lengths), 1), 1)):
            self._read(line, due, included, now)
            if pause():
                return

    def finish(self, line: StoreConnection) -> None:
        """Tell the store what was counted."""
        self._write(line)

    def _write(self, line: StoreConnection) -> dict[str, Usage]:
        """Of each tenant, how much of what was added here the store knows now."""
        with self._mutex:
            counted, self._counted = self._counted, {}
            included = {tenant: account.added for tenant, account in self._accounts.items()}
        try:
            for places in batched(list(counted), TOGETHER):
                ids = {account_id(*place): place for place in places}
                self._make(line, ids)
                records = {id_: counted[place].records for id_, place in ids.items()}
                sizes = {id_: counted[place].answer_bytes for id_, place in ids.items()}
                line.perform([Tally(records, sizes)])
                for place in places:
                    del counted[place]
        finally:  # what may not have been added is added later, at worst twice
            with self._mutex:
                for place, used in counted.items():
                    self._counted[place] = self._counted.get(place, NOTHING) + used
        return included

    def _make(self, line: StoreConnection, ids: dict[bytes, _Place]) -> None:
        """Make the records of those counts that are new."""
        wall = self._clock.wall()
        claims = [
            reserved_claim(id_, OPERATION, self._token(), max(span.end - wall, 0.0) + 60.0)
            for id_, (_, span) in sorted(ids.items())
            if id_ not in self._made
        ]
        outcomes = line.perform_all([Insert(claim) for claim in claims])
        line.perform_all(
            [
                lifecycle.complete(
                    lifecycle.Held(claim.id, outcome.fence, claim.token),
                    Answer(200, (), b""),
                    retention_s=claim.retention_s,
                )
                for claim, outcome in zip(claims, outcomes, strict=True)
                if isinstance(outcome, Inserted)
            ]
        )
        if len(self._made) > MADE_MAX:
            self._made.clear()
        self._made.update(
            claim.id
            for claim, outcome in zip(claims, outcomes, strict=True)
            if outcome is not AGAIN
        )

    def _due(self, now: float) -> list[str]:
        with self._mutex:
            return [
                tenant for tenant, account in self._accounts.items() if self._is_due(account, now)
            ]

    def _is_due(self, account: _Account, now: float) -> bool:
        since_s = now - account.read_at
        if since_s >= READ_S_MAX:
            return True
        if check_quota(self._quota, account.usage) is not None:
            return since_s >= READ_S_MIN
        return is_nearly_used(self._quota, account.known, account.added - account.included, NEAR)

    def _read(
        self, line: StoreConnection, tenants: Iterable[str], included: dict[str, Usage], now: float
    ) -> None:
        wall = self._clock.wall()
        spans = [span for length in sorted(self._lengths) for span in spans_ahead(length, wall)]
        places = [(tenant, span) for tenant in tenants for span in spans]
        ids = [account_id(*place) for place in places]
        known: dict[str, Usage] = {}
        found: list[Any] = line.perform_all([Find(id_) for id_ in ids])
        for (tenant, _), id_, record in zip(places, ids, found, strict=True):
            if record is None:
                self._made.discard(id_)  # or never there
            unknown = record is None or record is AGAIN
            counts = NOTHING if unknown else Usage(record.replays, record.conflicts)
            known[tenant] = known.get(tenant, NOTHING) + counts
        with self._mutex:
            for tenant, usage in known.items():
                if (account := self._accounts.get(tenant)) is not None:
                    account.known, account.read_at = usage, now
                    account.included = included.get(tenant, account.included)
