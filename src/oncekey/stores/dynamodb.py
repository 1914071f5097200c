"""Records in DynamoDB: one item for each, changed only by conditional writes.

What is where: `dynamodb_items` and `dynamodb_parts` are the items, `dynamodb_verbs` the verbs that
name a record, `dynamodb_walk` those that name none, `dynamodb_table` makes the table and judges it.
This file is the store, and the only one that knows the driver.

Time
    Conditions cannot read a clock. Leases are observed (`observed`): a record is lapsed when this
    process has seen it unchanged for one lease. Retention counts by the date that the server's
    answers bear (`dynamodb_dates`). A fence is max(previous + 1, that date in microseconds), so it
    also rises over a record that was removed.

Many at once
    There is no conditional write of many items. The verbs of a batch go side by side, each as its
    own request, and those of one record in turn.

Repeats
    The driver repeats nothing: its own retries would turn a write that was carried out into one
    that was refused. Here only two things are asked again: what DynamoDB refused for want of
    capacity, for at most `patience_s`, and transactions, which bear a token that it knows again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import aiobotocore.session
import botocore.exceptions as errors
import botocore.session
from aiobotocore.config import AioConfig
from botocore.config import Config

from oncekey.clock import Clock, SystemClock
from oncekey.core.backoff import full_jitter
from oncekey.core.op import Op, Pause
from oncekey.core.verbs import AppendStep, Find, Insert, Peek, Requested, Steps, Swap, Verb
from oncekey.errors import Misuse, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.base import AGAIN, Durability
from oncekey.stores.dynamodb_calls import Call, Denied, Item
from oncekey.stores.dynamodb_dates import Dates
from oncekey.stores.dynamodb_table import GLOBAL_TABLE, Table, passes
from oncekey.stores.dynamodb_verbs import Verbs
from oncekey.stores.dynamodb_walk import Walker
from oncekey.stores.observed import Sightings

LANES = 4
"""Over how many connections the verbs of a kind are spread: while one batch is under way, the next
is prepared.
"""
REQUESTS_MAX = 64
"""Requests of one connection at the same time."""
REPEATS_MAX = 3
BACKOFF_S, BACKOFF_S_MAX = 0.02, 0.5

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
        if set(allow) - {GLOBAL_TABLE}:
            raise Misuse(f"allow={sorted(allow)}: only {GLOBAL_TABLE!r} can be allowed")
        self.durability = _ELSEWHERE if endpoint and "amazonaws." not in endpoint else _AMAZON
        self._address = f"dynamodb://{table}"
        if region:
            self._address += f"?region={region}"
        if endpoint:
            self._address += f"{'&' if region else '?'}endpoint={endpoint}"
        self._options = {
            "region_name": region,
            "endpoint_url": endpoint,
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
        }
        self._settings = {
            "connect_timeout": connect_timeout_s,
            "read_timeout": timeout_s,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "max_pool_connections": REQUESTS_MAX,
            "parameter_validation": False,
        }
        self._patience_s = patience_s
        clock = clock or SystemClock()
        self._clock = clock
        self._dates = dates or Dates(clock)
        self._table = Table(table, self._address, allow)
        self._verbs = Verbs(table, self._dates, Sightings(clock), self._table.judged)
        self._walker = Walker(self._verbs)

    def __repr__(self) -> str:
        return f"DynamoStore({self._address!r})"

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

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> DynamoConnection:
        try:
            client = _session().create_client(
                "dynamodb", config=Config(**self._settings), **self._options
            )
        except (errors.BotoCoreError, ValueError) as error:
            raise self._unfit(error) from error
        return DynamoConnection(client, self)

    async def aconnect(self) -> AsyncDynamoConnection:
        try:
            context = _async_session().create_client(
                "dynamodb", config=AioConfig(**self._settings), **self._options
            )
            client = await context.__aenter__()
        except (errors.BotoCoreError, ValueError) as error:
            raise self._unfit(error) from error
        return AsyncDynamoConnection(client, self)

    def _unfit(self, error: Exception) -> StoreUnfit:
        return StoreUnfit(f"{self._address}: {error}")

    def understood(self, answer: Item | Exception, asked_at: float) -> Item | Denied | StoreError:
        """What a request brought: its answer, or what its failure means."""
        if isinstance(answer, dict):
            self._heard(answer, asked_at)
            return answer
        if isinstance(answer, errors.ClientError):
            self._heard(answer.response, asked_at)
            return _denied(answer.response)
        if isinstance(answer, _NOT_SENT):
            return StoreUnavailable(f"cannot reach {self._address}: {answer}", sent=False)
        if isinstance(answer, errors.NoCredentialsError | errors.PartialCredentialsError):
            return self._unfit(answer)
        return StoreUnavailable(f"{self._address} did not answer: {answer}", sent=True)

    def _heard(self, response: Item, asked_at: float) -> None:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self._dates.heard(headers.get("date"), asked_at)


def _side_by_side(ops: Sequence[Op[Any]]) -> Op[list[Any]]:
    """Drive operations together: what they want to ask at the same time goes as one question.

    What one of them raises is its outcome.
    """
    outcomes: list[Any] = [None] * len(ops)
    answers: list[Any] = [None] * len(ops)
    pending = list(range(len(ops)))
    while pending:
        questions: dict[int, list[Call]] = {}
        for at in pending:
            try:
                questions[at] = ops[at].send(answers[at])
            except StopIteration as stop:
                outcomes[at] = stop.value
            except Exception as error:
                outcomes[at] = error
        pending = list(questions)
        if pending:
            found = yield [call for question in questions.values() for call in question]
            for at, question in questions.items():
                answers[at], found = found[: len(question)], found[len(question) :]
    return outcomes


# ---------------------------------------------------------------------------------- asking again


class Tries:
    """One call, asked until it is answered: what comes next. For both colours."""

    def __init__(self, store: DynamoStore, call: Call) -> None:
        self._store = store
        self._call = call
        self._clock, self._patience_s = store._clock, store._patience_s
        self._began = self._clock.monotonic()
        self._tries = self._repeats = 0
        self.asked_at = self._began

    def after(self, answer: Item | Exception) -> tuple[Any, float | None]:
        """What it means, and after how long to ask again; None if that is that."""
        found = self._store.understood(answer, self.asked_at)
        now = self._clock.monotonic()
        delay_s = None
        if isinstance(found, Denied) and passes(found) and now - self._began < self._patience_s:
            delay_s = full_jitter(self._tries, BACKOFF_S, BACKOFF_S_MAX, now * 1000 % 1)
        elif isinstance(found, StoreUnavailable) and "ClientRequestToken" in self._call.parameters:
            self._repeats += 1
            delay_s = 0.0 if self._repeats < REPEATS_MAX else None
            found = StoreUnavailable(str(found), sent=found.sent or self._repeats > 1)
        self._tries += 1
        self.asked_at = now + (delay_s or 0.0)
        return found, delay_s


class DynamoConnection:
    """Answers lists of calls, blocking; several at a time go in threads."""

    def __init__(self, client: Any, store: DynamoStore) -> None:
        self._client = client
        self._store = store
        self._threads: ThreadPoolExecutor | None = None

    def ask(self, question: Sequence[Call] | Pause) -> list[Any] | None:
        if isinstance(question, Pause):
            threading.Event().wait(question.seconds)
            return None
        if len(question) == 1:
            return [self._answer(question[0])]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(16, thread_name_prefix="oncekey-dynamodb")
        return list(self._threads.map(self._answer, question))

    def _answer(self, call: Call) -> Any:
        tries, ask = Tries(self._store, call), getattr(self._client, call.method)
        while True:
            answer: Item | Exception
            try:
                answer = ask(**call.parameters)
            except (errors.BotoCoreError, errors.ClientError, OSError) as error:
                answer = error
            found, delay_s = tries.after(answer)
            if delay_s is None:
                return found
            threading.Event().wait(delay_s)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        self._client.close()


class AsyncDynamoConnection:
    """Answers lists of calls, awaited."""

    def __init__(self, client: Any, store: DynamoStore) -> None:
        self._client = client
        self._store = store

    async def ask(self, question: Sequence[Call] | Pause) -> list[Any] | None:
        if isinstance(question, Pause):
            await asyncio.sleep(question.seconds)
            return None
        if len(question) == 1:
            return [await self._answer(question[0])]
        return list(await asyncio.gather(*map(self._answer, question)))

    async def _answer(self, call: Call) -> Any:
        tries, ask = Tries(self._store, call), getattr(self._client, call.method)
        while True:
            answer: Item | Exception
            try:
                answer = await ask(**call.parameters)
            except (errors.BotoCoreError, errors.ClientError, OSError) as error:
                answer = error
            found, delay_s = tries.after(answer)
            if delay_s is None:
                return found
            await asyncio.sleep(delay_s)

    async def close(self) -> None:
        await self._client.close()


_NOT_SENT = (
    errors.EndpointConnectionError,
    errors.ConnectTimeoutError,
    errors.ProxyConnectionError,
)


def _denied(response: Item) -> Denied:
    error = response.get("Error", {})
    reasons = response.get("CancellationReasons", [])
    return Denied(
        error.get("Code", "unknown"),
        error.get("Message") or "no reason was given",
        response.get("Item"),
        tuple((reason.get("Code", "None"), reason.get("Item")) for reason in reasons),
    )


# A session reads the description of the service, which takes longer than all else: it is shared.
_loading = threading.Lock()
_loader: Any = None


def _shared(session: Any) -> Any:
    global _loader
    with _loading:
        if _loader is None:
            _loader = session.get_component("data_loader")
        session.register_component("data_loader", _loader)
    return session


def _session() -> Any:
    return _shared(botocore.session.Session())


def _async_session() -> Any:
    return _shared(aiobotocore.session.AioSession())


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
