"""Records in DynamoDB: one item for each, changed only by conditional writes.

What is where: `dynamodb_items` and `dynamodb_parts` are the items, `dynamodb_verbs` the verbs that
name a record, `dynamodb_walk` those that name none, `dynamodb_table` makes the table and
`dynamodb_fitness` judges it. Only `dynamodb_connection` knows the driver. This file is the store.

Time
    Conditions cannot read a clock. Leases are observed (`observed`): a record is lapsed when this
    process has seen it unchanged for one lease. Retention counts by the date that the server's
    answers bear (`dynamodb_dates`). A fence is max(previous + 1, that date in microseconds), so it
    also rises over a record that was removed.

Many at once
    There is no conditional write of many items. The verbs of a batch go side by side, each as its
    own request, and those of one record in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from oncekey._core.op import Op
from oncekey._core.verbs import AppendStep, Find, Insert, Peek, Requested, Steps, Swap, Verb
from oncekey._system.clock import Clock, SystemClock
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.base import AGAIN, Durability, Traits
from oncekey.stores.checks import Examination, Sample
from oncekey.stores.dynamodb.connection import AsyncDynamoConnection, Driver, DynamoConnection
from oncekey.stores.dynamodb.leases import Sightings, sightings_of
from oncekey.stores.dynamodb.scan import Walker
from oncekey.stores.dynamodb.server_date import Dates
from oncekey.stores.dynamodb.statements import Call
from oncekey.stores.dynamodb.table import Table
from oncekey.stores.dynamodb.transactions import ItemTransactions, Joined, alone
from oncekey.stores.dynamodb.verbs import Verbs
from oncekey.stores.sql import check_waits

LANES = 16
"""Over how many connections the verbs of a kind are spread: while one batch is under way, the next
is prepared.
"""

_WALK = "walk"
_KINDS: dict[type, str] = dict.fromkeys((Find, Peek, Steps, Requested), "read")
_KINDS |= {Insert: "insert", Swap: "swap", AppendStep: "swap"}
_AMAZON = Durability(True, True, True, "written in several zones before it is acknowledged")
_ELSEWHERE = Durability(
    True, False, False, "an endpoint that is not Amazon's: what it survives is not known"
)


class DynamoStore:
    """Records in one table. `open_url` makes one of a URL."""

    name = "dynamodb"
    traits = Traits()
    transactions = ItemTransactions()
    outbox = None

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
        patience_s: float = 2.0,
        allow: Collection[str] = (),
        clock: Clock | None = None,
        dates: Dates | None = None,
    ) -> None:
        """What is not given (region, credentials) is found as AWS's tools find it: in the
        environment, in `~/.aws`, or from the machine's role.
        """
        check_waits(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        if not 0 <= patience_s < math.inf:
            raise Misuse(f"patience_s={patience_s} is no time to wait: give seconds, 0 for none")
        self.durability = _ELSEWHERE if endpoint and "amazonaws." not in endpoint else _AMAZON
        self._address = f"dynamodb://{table}"
        if region:
            self._address += f"?region={region}"
        if endpoint:
            self._address += f"{'&' if region else '?'}endpoint={endpoint}"
        sightings = sightings_of(self._address) if clock is None else Sightings(clock)
        clock = clock or SystemClock()
        dates = dates or Dates(clock)
        self._driver = Driver(
            self._address,
            dates,
            clock,
            {
                "region_name": region,
                "endpoint_url": endpoint,
                "aws_access_key_id": access_key,
                "aws_secret_access_key": secret_key,
            },
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            patience_s=patience_s,
        )
        self._table = Table(table, self._address, allow, clock)
        self.allowed = self._table.allowed
        self._dates = dates
        self._verbs = Verbs(table, dates, sightings, self._table.judged)
        self._walker = Walker(self._verbs)

    def __repr__(self) -> str:
        return f"DynamoStore({self._address!r})"

    @property
    def location(self) -> Hashable:
        return self.name, repr(self)

    # ------------------------------------------------------------------------------------ verbs

    def group(self, verb: Verb) -> Hashable:
        # Renewals have their own: a healthy lease must not lapse behind a queue of large answers.
        if type(verb) is Swap and verb.lease_s is not None and verb.claim is None:
            return "renew"
        kind = _KINDS.get(type(verb), _WALK)
        return kind if kind == _WALK else (kind, verb.id[0] % LANES)  # type: ignore[union-attr]

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        walks = self.group(verbs[0]) == _WALK
        perform = self._walker.perform if walks else self._verbs.perform
        outcomes = yield from _side_by_side([perform(verb) for verb in verbs])
        failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        for error in failed:
            # Whoever was carried out is told that it may have been, like whoever was lost.
            if len(verbs) == 1 or (isinstance(error, StoreUnavailable) and error.sent):
                raise error
        if len(failed) == len(verbs):
            raise failed[0]
        # The others are asked again, alone, to fail for their own reason.
        return [AGAIN if isinstance(outcome, Exception) else outcome for outcome in outcomes]

    def prepare(self) -> Op[None]:
        return self._table.prepare()

    def migrate(self) -> Op[list[str]]:
        return self._table.migrate()

    # --------------------------------------------------------------------------- a thorough look

    def examine(self) -> Op[Examination]:
        return self._table.examine(emulated=self.durability is _ELSEWHERE)

    def now(self) -> Op[float | None]:
        """By the answer to a look at the table, to the second."""
        yield from self._table.glance()
        return self._dates.now() / 1_000_000

    def sample(self, limit: int) -> Op[Sample]:
        return self._walker.sample(limit)

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> DynamoConnection:
        return self._driver.connect()

    async def aconnect(self) -> AsyncDynamoConnection:
        return await self._driver.aconnect()

    def joined(self, items: Sequence[Any], verbs: Sequence[Verb]) -> Joined:
        """How to ask for a completion together with a caller's own writes."""
        token = b"".join(verb.token for verb in verbs if isinstance(verb, Swap))
        return Joined(items, verbs, self._verbs.request_token(token))

    def alone(self, items: Sequence[Any], token: bytes) -> list[Call]:
        """How to ask for a caller's own writes, for a request that has no record."""
        return alone(items, self._verbs.request_token(token))


def _side_by_side(ops: Sequence[Op[Any]]) -> Op[list[Any]]:
    """Drive operations together: what they want to ask at the same time goes as one question.

    What one of them raises is its outcome. That something was not sent can only be said of its
    first question: whoever has heard that a record is there must not be taken for unheard.
    """
    outcomes: list[Any] = [None] * len(ops)
    answers: list[Any] = [None] * len(ops)
    pending = list(range(len(ops)))
    answered = 0
    while pending:
        questions: dict[int, list[Call]] = {}
        for at in pending:
            try:
                questions[at] = ops[at].send(answers[at])
            except StopIteration as stop:
                outcomes[at] = stop.value
            except Exception as error:
                if isinstance(error, StoreUnavailable):
                    error.sent |= answered > 1
                outcomes[at] = error
        pending = list(questions)
        if pending:
            answered += 1
            found = yield [call for question in questions.values() for call in question]
            for at, question in questions.items():
                answers[at], found = found[: len(question)], found[len(question) :]
    return outcomes


# ------------------------------------------------------------------------------------------- URLs

_OPTIONS: dict[str, Callable[[str], Any]] = {
    "region": str,
    "endpoint": str,
    "timeout_s": float,
    "connect_timeout_s": float,
    "patience_s": float,
    "allow": lambda text: text.split(","),
}


def open_url(url: str, **given_too: Any) -> DynamoStore:
    """`dynamodb://table?region=eu-central-1`, `dynamodb://key:secret@table?endpoint=http://…`.

    Behind the `?`: `region`, `endpoint`, `timeout_s`, `connect_timeout_s`, `patience_s` and
    `allow=global-table`, as `DynamoStore` has them.
    """
    parts = urlsplit(url)
    credentials, at, table = parts.netloc.rpartition("@")
    access_key, colon, secret_key = credentials.partition(":")
    if not table or parts.path.strip("/") or (at and not colon):
        raise Misuse(
            "a table of DynamoDB is named as dynamodb://table?region=eu-central-1, and with "
            "credentials, percent-encoded, as dynamodb://key:secret@table"
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := given.keys() - _OPTIONS.keys():
        raise Misuse(
            f"dynamodb://{table}: unknown options {', '.join(sorted(unknown))}; "
            f"there are {', '.join(_OPTIONS)}"
        )
    options = {name: _OPTIONS[name](found) for name, found in given.items()}
    if at:
        options |= {"access_key": unquote(access_key), "secret_key": unquote(secret_key)}
    return DynamoStore(table, **options, **given_too)
