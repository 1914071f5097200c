"""Store records in DynamoDB: one item per record, changed only by conditional writes.

`items` and `parts` define the items, `verbs` implements the verbs that name a record, and `scan`
those that name none. `table` creates the table, and `checks` decides whether one is safe to use.
Only `connection` imports the driver. This file is the store, and `open_url` for it.

Time
    Conditions cannot read a clock, so leases are observed (`leases`): a record is lapsed when this
    process has seen it unchanged for one lease. Retention is measured by the Date header of the
    server's responses (`server_date`). A fence is max(previous + 1, that date in microseconds), so
    it rises even after a record was removed.

Batches
    There is no conditional write of many items. The verbs of a batch are sent side by side, each as
    its own request; those of one record follow one another.
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
from oncekey.stores.dynamodb.leases import LeaseObserver, observer_of
from oncekey.stores.dynamodb.scan import Scanner
from oncekey.stores.dynamodb.server_date import ServerClock
from oncekey.stores.dynamodb.statements import ApiCall
from oncekey.stores.dynamodb.table import Table
from oncekey.stores.dynamodb.transactions import (
    ItemTransactions,
    JoinedCompletion,
    write_calls,
)
from oncekey.stores.dynamodb.verbs import Verbs
from oncekey.stores.sql import check_waits

LANES = 16
"""Over how many connections the verbs of a kind are spread: while one batch is in flight, the next
is prepared.
"""

_SCAN = "scan"
_KINDS: dict[type, str] = dict.fromkeys((Find, Peek, Steps, Requested), "read")
_KINDS |= {Insert: "insert", Swap: "swap", AppendStep: "swap"}
_AMAZON = Durability(True, True, True, "written in several zones before it is acknowledged")
_ELSEWHERE = Durability(
    True, False, False, "an endpoint that is not Amazon's: what it survives is unknown"
)


class DynamoStore:
    """Keep records in one table. `open_url` creates one from a URL."""

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
        server_clock: ServerClock | None = None,
    ) -> None:
        """Options that are None (region, credentials) are found as AWS's tools find them: in the
        environment, in `~/.aws`, or from the machine's role.
        """
        check_waits(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        if not 0 <= patience_s < math.inf:
            raise Misuse(f"patience_s={patience_s} is not a time to wait: give seconds, 0 for none")
        self.durability = _ELSEWHERE if endpoint and "amazonaws." not in endpoint else _AMAZON
        self._address = f"dynamodb://{table}"
        if region:
            self._address += f"?region={region}"
        if endpoint:
            self._address += f"{'&' if region else '?'}endpoint={endpoint}"
        observer = observer_of(self._address) if clock is None else LeaseObserver(clock)
        clock = clock or SystemClock()
        server_clock = server_clock or ServerClock(clock)
        self._driver = Driver(
            self._address,
            server_clock,
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
        self._server_clock = server_clock
        self._verbs = Verbs(table, server_clock, observer, self._table.to_store_error)
        self._scanner = Scanner(self._verbs)

    def __repr__(self) -> str:
        return f"DynamoStore({self._address!r})"

    @property
    def location(self) -> Hashable:
        return self.name, repr(self)

    # ------------------------------------------------------------------------------------ verbs

    def group(self, verb: Verb) -> Hashable:
        # Renewals have their own group: a healthy lease must not lapse behind a queue of large
        # responses.
        if type(verb) is Swap and verb.lease_s is not None and verb.claim is None:
            return "renew"
        kind = _KINDS.get(type(verb), _SCAN)
        return kind if kind == _SCAN else (kind, verb.id[0] % LANES)  # type: ignore[union-attr]

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        is_scan = self.group(verbs[0]) == _SCAN
        perform = self._scanner.perform if is_scan else self._verbs.perform
        outcomes = yield from _side_by_side([perform(verb) for verb in verbs])
        failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        for error in failed:
            # Report verbs that succeeded as possibly carried out too, like those that were lost.
            if len(verbs) == 1 or (isinstance(error, StoreUnavailable) and error.sent):
                raise error
        if len(failed) == len(verbs):
            raise failed[0]
        # Retry the failed verbs alone, so that each raises its own error.
        return [AGAIN if isinstance(outcome, Exception) else outcome for outcome in outcomes]

    def prepare(self) -> Op[None]:
        return self._table.prepare()

    def migrate(self) -> Op[list[str]]:
        return self._table.migrate()

    # --------------------------------------------------------------------------- oncekey doctor

    def examine(self) -> Op[Examination]:
        return self._table.examine(emulated=self.durability is _ELSEWHERE)

    def now(self) -> Op[float | None]:
        """Read the clock from the response to a small query, to the second."""
        yield from self._table.ping()
        return self._server_clock.now() / 1_000_000

    def sample(self, limit: int) -> Op[Sample]:
        return self._scanner.sample(limit)

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> DynamoConnection:
        return self._driver.connect()

    async def aconnect(self) -> AsyncDynamoConnection:
        return await self._driver.aconnect()

    def join(self, items: Sequence[Any], verbs: Sequence[Verb]) -> JoinedCompletion:
        """Prepare a completion that is written together with the caller's own items."""
        token = b"".join(verb.token for verb in verbs if isinstance(verb, Swap))
        return JoinedCompletion(items, verbs, self._verbs.request_token(token))

    def write_calls(self, items: Sequence[Any], token: bytes) -> list[ApiCall]:
        """Return the calls that write the caller's own items for a request that has no record."""
        return write_calls(items, self._verbs.request_token(token))


def _side_by_side(ops: Sequence[Op[Any]]) -> Op[list[Any]]:
    """Drive operations together: questions that they ask at the same time are sent as one.

    An operation that raises has the exception as its outcome. Only its first question can be
    reported as not sent: an operation that has already seen the record must not look as if it never
    ran.
    """
    outcomes: list[Any] = [None] * len(ops)
    answers: list[Any] = [None] * len(ops)
    pending = list(range(len(ops)))
    answered = 0
    while pending:
        questions: dict[int, list[ApiCall]] = {}
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


def open_url(url: str, **more_options: Any) -> DynamoStore:
    """Open `dynamodb://table?region=eu-central-1`, `dynamodb://key:secret@table?endpoint=http://…`.

    Options after the `?`: `region`, `endpoint`, `timeout_s`, `connect_timeout_s`, `patience_s` and
    `allow=global-table`, as in `DynamoStore`.
    """
    parts = urlsplit(url)
    credentials, at, table = parts.netloc.rpartition("@")
    access_key, colon, secret_key = credentials.partition(":")
    if not table or parts.path.strip("/") or (at and not colon):
        raise Misuse(
            "name a DynamoDB table as dynamodb://table?region=eu-central-1, or with credentials, "
            "percent-encoded, as dynamodb://key:secret@table"
        )
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := parameters.keys() - _OPTIONS.keys():
        raise Misuse(
            f"dynamodb://{table}: unknown options {', '.join(sorted(unknown))}; "
            f"there are {', '.join(_OPTIONS)}"
        )
    options = {name: _OPTIONS[name](found) for name, found in parameters.items()}
    if at:
        options |= {"access_key": unquote(access_key), "secret_key": unquote(secret_key)}
    return DynamoStore(table, **options, **more_options)
