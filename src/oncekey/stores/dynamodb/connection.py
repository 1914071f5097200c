"""Connections to DynamoDB through botocore and aiobotocore: requests out, answers as values.

A connection answers lists of calls; those of one list are asked at the same time. All connections
of a store share one client, for threads as for an event loop: making one takes longer than most
questions, and it holds a pool of sockets anyway.

Repeats
    The driver repeats nothing: its own retries would turn a write that was carried out into one
    that was refused. Here only two things are asked again: what DynamoDB refused for want of
    capacity or because of a transaction beside it, for at most `patience_s`; and transactions whose
    answer was lost, since they bear a token that it knows again.
"""

from __future__ import annotations

import asyncio
import functools
import io
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiobotocore.session
import aiohttp
import botocore.exceptions as errors
import botocore.session
from aiobotocore.config import AioConfig
from botocore.config import Config

from oncekey._core.backoff import full_jitter
from oncekey._core.op import Pause
from oncekey._system.clock import Clock
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.dynamodb.server_date import Dates
from oncekey.stores.dynamodb.statements import Call, Denied, Item
from oncekey.stores.dynamodb.table import passes

REQUESTS_MAX = 64
"""Requests of one client at the same time."""
THREADS_MAX = 32
REPEATS_MAX = 3
BACKOFF_S, BACKOFF_S_MAX = 0.02, 0.5

_NOT_SENT = (
    errors.CredentialRetrievalError,
    errors.EndpointConnectionError,
    errors.ConnectTimeoutError,
    errors.ProxyConnectionError,
)
_TO_DO: dict[type[Exception], str] = {
    errors.NoRegionError: " Name it as dynamodb://table?region=eu-central-1, or in "
    "AWS_DEFAULT_REGION",
    errors.NoCredentialsError: ". Give this process a role, AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or name them as dynamodb://key:secret@table",
}
"""What the driver's own message leaves open."""
_session_mutex = threading.Lock()


@functools.cache
def _session() -> Any:
    """Reads the description of the service once, which takes longer than all else."""
    return botocore.session.Session()


class Driver:
    """How one store reaches its table."""

    def __init__(
        self,
        address: str,
        dates: Dates,
        clock: Clock,
        place: Mapping[str, str | None],
        *,
        timeout_s: float,
        connect_timeout_s: float,
        patience_s: float,
    ) -> None:
        self.clock = clock
        self.patience_s = patience_s
        self._address = address
        self.dates = dates
        self._place = place
        self._settings = {
            "connect_timeout": connect_timeout_s,
            "read_timeout": timeout_s,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "max_pool_connections": REQUESTS_MAX,
            "parameter_validation": False,
        }
        self._mutex = threading.Lock()
        self._client: _Client | None = None
        self._pid = os.getpid()
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    def connect(self) -> DynamoConnection:
        with self._mutex:
            if self._client is None or self._client.closed or self._pid != os.getpid():
                self._client, self._pid = _Client(self._make(), self._mutex), os.getpid()
            connection = DynamoConnection(self._client, self)
            self._client.users.add(connection)
            return connection

    def _make(self) -> Any:
        try:
            with _session_mutex:  # a session is not made for threads
                client = _session().create_client(
                    "dynamodb", config=Config(**self._settings), **self._place
                )
            client.meta.events.register("before-parse.dynamodb", _refuse_half)
            return client
        except (errors.BotoCoreError, ValueError) as error:
            raise self._unfit(error) from error

    async def aconnect(self) -> AsyncDynamoConnection:
        loop = asyncio.get_running_loop()
        shared = self._clients.get(loop)
        if shared is None or shared.closed:
            shared = self._clients[loop] = _AsyncClient()
        connection = AsyncDynamoConnection(shared, self)
        shared.users.add(connection)
        try:
            async with shared.making:
                if shared.client is None:
                    shared.client = await self._make_async()
        except BaseException:
            await shared.leave(connection)  # by now it may be the last one
            raise
        return connection

    async def _make_async(self) -> Any:
        try:
            with _session_mutex:
                session = aiobotocore.session.AioSession()
                session.register_component("data_loader", _session().get_component("data_loader"))
            context = session.create_client(
                "dynamodb", config=AioConfig(**self._settings), **self._place
            )
            client = await context.__aenter__()
            client.meta.events.register("before-send.dynamodb", _send_bit_by_bit)
            return client
        except (errors.BotoCoreError, ValueError) as error:
            raise self._unfit(error) from error

    def _unfit(self, error: Exception) -> StoreUnfit:
        what = _TO_DO.get(type(error), "")
        return StoreUnfit(f"{self._address}: {error}{what}")

    # ------------------------------------------------------------------------------- answers

    def understood(self, answer: Item | Exception, asked_at: float) -> Item | Denied | StoreError:
        """What a request brought: its answer, or what its failure means."""
        if isinstance(answer, dict):
            self._heard(answer, asked_at)
            return answer
        if isinstance(answer, errors.ClientError):
            self._heard(answer.response, asked_at)
            return _denied(answer)
        if _was_not_sent(answer):
            return StoreUnavailable(f"cannot reach {self._address}: {answer}", sent=False)
        if isinstance(answer, errors.NoCredentialsError | errors.PartialCredentialsError):
            return self._unfit(answer)
        why = str(answer)
        if isinstance(answer, errors.ConnectionClosedError):  # its text leaves out how
            why += f" {answer.kwargs.get('error', '')}"
        return StoreUnavailable(f"{self._address} did not answer: {why}", sent=True)

    def _heard(self, response: Item, asked_at: float) -> None:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.dates.heard(headers.get("date"), asked_at)


def _refuse_half(response_dict: Mapping[str, Any], **_: object) -> None:
    """An answer that was cut short is none. botocore takes what is there, for threads; empty, it
    would say that there is no record.
    """
    declared, came = response_dict["headers"].get("content-length"), len(response_dict["body"])
    if declared is not None and int(declared) != came:
        raise errors.IncompleteReadError(expected_bytes=int(declared), actual_bytes=came)


def _send_bit_by_bit(request: Any, **_: object) -> None:
    """aiohttp warns of long bodies that are sent in one go: a transaction may weigh 4 MB."""
    if isinstance(request.body, bytes) and len(request.body) > 65_536:
        request.body = io.BytesIO(request.body)


def _was_not_sent(error: Exception) -> bool:
    """Whether no connection came about. aiobotocore says so too of one that broke while it was
    written to; only what it was told by aiohttp tells the two apart.
    """
    if not isinstance(error, _NOT_SENT):
        return False
    told = error.kwargs.get("error")
    return not isinstance(told, aiohttp.ClientError) or isinstance(
        told, aiohttp.ClientConnectorError
    )


def _denied(cause: errors.ClientError) -> Denied:
    response: Item = cause.response
    error = response.get("Error", {})
    reasons = response.get("CancellationReasons", [])
    return Denied(
        error.get("Code", "unknown"),
        error.get("Message") or "no reason was given",
        response.get("Item"),
        tuple((reason.get("Code", "None"), reason.get("Item")) for reason in reasons),
        cause,
        response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0),
    )


class _Client:
    """One client for the threads of a process, for as long as a connection uses it."""

    def __init__(self, client: Any, mutex: threading.Lock) -> None:
        self.client = client
        self._mutex = mutex
        """Held by whoever becomes a user: none may come in between when the last one leaves."""
        self.users: weakref.WeakSet[DynamoConnection] = weakref.WeakSet()
        self.closed = False
        self.threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="oncekey-dynamodb")

    def leave(self, connection: DynamoConnection) -> None:
        with self._mutex:
            self.users.discard(connection)
            was_last = not self.users and not self.closed
            self.closed |= was_last
        if was_last:
            self.threads.shutdown(wait=False)
            _close_sockets(self.client)
            self.client.close()


def _close_sockets(client: Any) -> None:
    """A client that is closed lets go of its sockets, and urllib3 closes them when they are
    collected: not as long as somebody keeps an error, whose traceback leads to them.
    """
    session = client._endpoint.http_session
    for manager in (session._manager, *session._proxy_managers.values()):
        for key in manager.pools.keys():  # noqa: SIM118  (it cannot be iterated over)
            if (pool := manager.pools.get(key)) is not None:
                pool.close()


class _AsyncClient:
    """One client for an event loop, for as long as a connection uses it."""

    def __init__(self) -> None:
        self.client: Any = None
        self.making = asyncio.Lock()
        self.users: weakref.WeakSet[AsyncDynamoConnection] = weakref.WeakSet()
        self.closed = False

    async def leave(self, connection: AsyncDynamoConnection) -> None:
        self.users.discard(connection)
        if not self.users and not self.closed:
            self.closed = True
            if self.client is not None:
                await self.client.close()


class Tries:
    """One call, asked until it is answered: what comes next. For both colours."""

    def __init__(self, driver: Driver, call: Call) -> None:
        self._driver = driver
        self._repeatable = "ClientRequestToken" in call.parameters
        self._began, self.asked_at = driver.clock.monotonic(), driver.dates.clock()
        self._tries = self._lost = 0

    def after(self, answer: Item | Exception) -> tuple[Any, float | None]:
        """What it means, and after how long to ask again; None if that is that."""
        found = self._driver.understood(answer, self.asked_at)
        now, delay_s = self._driver.clock.monotonic(), None
        if isinstance(found, Denied) and passes(found):
            if now - self._began < self._driver.patience_s:
                delay_s = full_jitter(self._tries, BACKOFF_S, BACKOFF_S_MAX, now * 1000 % 1)
            elif self._lost:  # this one was not carried out; of the one that was lost nobody knows
                found = StoreUnavailable(f"no answer, then {found.message}", sent=True)
        elif isinstance(found, StoreUnavailable) and self._repeatable:
            self._lost += 1
            delay_s = 0.0 if self._lost < REPEATS_MAX else None
            found = StoreUnavailable(str(found), sent=found.sent or self._lost > 1)
        self._tries += 1
        self.asked_at = self._driver.dates.clock() + (delay_s or 0.0)
        return found, delay_s


class DynamoConnection:
    """Answers lists of calls, blocking; several at a time go in threads."""

    def __init__(self, shared: _Client, driver: Driver) -> None:
        self._shared = shared
        self._driver = driver

    def ask(self, question: Sequence[Call] | Pause) -> list[Any] | None:
        if isinstance(question, Pause):
            threading.Event().wait(question.seconds)
            return None
        if len(question) == 1:
            return [self._answer(question[0])]
        return list(self._shared.threads.map(self._answer, question))

    def _answer(self, call: Call) -> Any:
        tries, ask = Tries(self._driver, call), getattr(self._shared.client, call.method)
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
        self._shared.leave(self)


class AsyncDynamoConnection:
    """Answers lists of calls, awaited."""

    def __init__(self, shared: _AsyncClient, driver: Driver) -> None:
        self._shared = shared
        self._driver = driver

    async def ask(self, question: Sequence[Call] | Pause) -> list[Any] | None:
        if isinstance(question, Pause):
            await asyncio.sleep(question.seconds)
            return None
        if len(question) == 1:
            return [await self._answer(question[0])]
        return list(await asyncio.gather(*map(self._answer, question)))

    async def _answer(self, call: Call) -> Any:
        tries, ask = Tries(self._driver, call), getattr(self._shared.client, call.method)
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
        await self._shared.leave(self)
