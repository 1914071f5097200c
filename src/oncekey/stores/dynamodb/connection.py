"""Connect to DynamoDB through botocore and aiobotocore: requests out, responses as values.

A connection answers lists of calls; those of one list are sent at the same time. All connections of
a store share one client per process or event loop: creating one takes longer than most requests,
and it has a pool of sockets anyway.

Retries
    The driver retries nothing: its own retries would turn a write that was carried out into one
    that was refused. Only two things are retried here: requests that DynamoDB refused for lack of
    capacity or because of a conflicting transaction, for at most `patience_s`; and transactions
    whose response was lost, since DynamoDB recognises their token.
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
from oncekey.stores.dynamodb.server_date import ServerClock
from oncekey.stores.dynamodb.statements import ApiCall, ErrorResponse, Item, is_transient

REQUESTS_MAX = 64
"""Requests that one client has in flight."""
THREADS_MAX = 32
REPEATS_MAX = 3
BACKOFF_S, BACKOFF_S_MAX = 0.02, 0.5

_NOT_SENT = (
    errors.CredentialRetrievalError,
    errors.EndpointConnectionError,
    errors.ConnectTimeoutError,
    errors.ProxyConnectionError,
)
_ADVICE: dict[type[Exception], str] = {
    errors.NoRegionError: " Name it as dynamodb://table?region=eu-central-1, or in "
    "AWS_DEFAULT_REGION",
    errors.NoCredentialsError: ". Give this process a role, AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or name them as dynamodb://key:secret@table",
}
"""What to do, where the driver's own message does not say it."""
_session_mutex = threading.Lock()


@functools.cache
def _session() -> Any:
    """Read the description of the service once: that takes longer than everything else."""
    return botocore.session.Session()


class Driver:
    """Connects one store to its table."""

    def __init__(
        self,
        address: str,
        server_clock: ServerClock,
        clock: Clock,
        client_options: Mapping[str, str | None],
        *,
        timeout_s: float,
        connect_timeout_s: float,
        patience_s: float,
    ) -> None:
        self.clock = clock
        self.patience_s = patience_s
        self._address = address
        self.server_clock = server_clock
        self._client_options = client_options
        self._settings = {
            "connect_timeout": connect_timeout_s,
            "read_timeout": timeout_s,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "max_pool_connections": REQUESTS_MAX,
            "parameter_validation": False,
        }
        self._mutex = threading.Lock()
        self._client: _SharedClient | None = None
        self._pid = os.getpid()
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncSharedClient] = (
            weakref.WeakKeyDictionary()
        )

    def connect(self) -> DynamoConnection:
        with self._mutex:
            if self._client is None or self._client.closed or self._pid != os.getpid():
                self._client, self._pid = (
                    _SharedClient(self._create_client(), self._mutex),
                    os.getpid(),
                )
            connection = DynamoConnection(self._client, self)
            self._client.users.add(connection)
            return connection

    def _create_client(self) -> Any:
        try:
            with _session_mutex:  # sessions are not thread-safe
                client = _session().create_client(
                    "dynamodb", config=Config(**self._settings), **self._client_options
                )
            client.meta.events.register("before-parse.dynamodb", _reject_truncated)
            return client
        except (errors.BotoCoreError, ValueError) as error:
            raise self._unfit(error) from error

    async def aconnect(self) -> AsyncDynamoConnection:
        loop = asyncio.get_running_loop()
        shared = self._clients.get(loop)
        if shared is None or shared.closed:
            shared = self._clients[loop] = _AsyncSharedClient()
        connection = AsyncDynamoConnection(shared, self)
        shared.users.add(connection)
        try:
            async with shared.creating:
                if shared.client is None:
                    shared.client = await self._create_async_client()
        except BaseException:
            await shared.leave(connection)  # it may be the last user by now
            raise
        return connection

    async def _create_async_client(self) -> Any:
        try:
            with _session_mutex:
                session = aiobotocore.session.AioSession()
                session.register_component("data_loader", _session().get_component("data_loader"))
            context = session.create_client(
                "dynamodb", config=AioConfig(**self._settings), **self._client_options
            )
            client = await context.__aenter__()
            client.meta.events.register("before-send.dynamodb", _stream_long_body)
            return client
        except (errors.BotoCoreError, ValueError) as error:
            raise self._unfit(error) from error

    def _unfit(self, error: Exception) -> StoreUnfit:
        what = _ADVICE.get(type(error), "")
        return StoreUnfit(f"{self._address}: {error}{what}")

    # -------------------------------------------------------------------------------- responses

    def classify(
        self, answer: Item | Exception, asked_at: float
    ) -> Item | ErrorResponse | StoreError:
        """Return the response, or what the failure of a request means."""
        if isinstance(answer, dict):
            self._learn_date(answer, asked_at)
            return answer
        if isinstance(answer, errors.ClientError):
            self._learn_date(answer.response, asked_at)
            return _to_error_response(answer)
        if _was_not_sent(answer):
            return StoreUnavailable(f"cannot reach {self._address}: {answer}", sent=False)
        if isinstance(answer, errors.NoCredentialsError | errors.PartialCredentialsError):
            return self._unfit(answer)
        why = str(answer)
        if isinstance(answer, errors.ConnectionClosedError):  # its own text omits the cause
            why += f" {answer.kwargs.get('error', '')}"
        return StoreUnavailable(f"{self._address} did not answer: {why}", sent=True)

    def _learn_date(self, response: Item, asked_at: float) -> None:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.server_clock.learn(headers.get("date"), asked_at)


def _reject_truncated(response_dict: Mapping[str, Any], **_: object) -> None:
    """Reject truncated responses. For threads botocore accepts whatever arrived, and an empty
    response would say that there is no record.
    """
    declared, came = response_dict["headers"].get("content-length"), len(response_dict["body"])
    if declared is not None and int(declared) != came:
        raise errors.IncompleteReadError(expected_bytes=int(declared), actual_bytes=came)


def _stream_long_body(request: Any, **_: object) -> None:
    """Send long bodies as a stream: aiohttp warns of those sent in one piece, and a transaction may
    have 4 MB.
    """
    if isinstance(request.body, bytes) and len(request.body) > 65_536:
        request.body = io.BytesIO(request.body)


def _was_not_sent(error: Exception) -> bool:
    """Return whether no connection was made. aiobotocore raises the same error for a connection
    that broke during a write; only aiohttp's own error tells the two apart.
    """
    if not isinstance(error, _NOT_SENT):
        return False
    cause = error.kwargs.get("error")
    return not isinstance(cause, aiohttp.ClientError) or isinstance(
        cause, aiohttp.ClientConnectorError
    )


def _to_error_response(cause: errors.ClientError) -> ErrorResponse:
    response: Item = cause.response
    error = response.get("Error", {})
    reasons = response.get("CancellationReasons", [])
    return ErrorResponse(
        error.get("Code", "unknown"),
        error.get("Message") or "no reason was given",
        response.get("Item"),
        tuple((reason.get("Code", "None"), reason.get("Item")) for reason in reasons),
        cause,
        response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0),
    )


class _SharedClient:
    """The client that all threads of a process share while any connection uses it."""

    def __init__(self, client: Any, mutex: threading.Lock) -> None:
        self.client = client
        self._mutex = mutex
        """Held while users are added, so that none joins while the last one leaves."""
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
    """Close a closed client's sockets now. Otherwise urllib3 closes them when they are collected,
    and an error that is kept refers to them through its traceback.
    """
    session = client._endpoint.http_session
    for manager in (session._manager, *session._proxy_managers.values()):
        for key in manager.pools.keys():  # noqa: SIM118  (it cannot be iterated over)
            if (pool := manager.pools.get(key)) is not None:
                pool.close()


class _AsyncSharedClient:
    """The client that all connections of an event loop share while any of them uses it."""

    def __init__(self) -> None:
        self.client: Any = None
        self.creating = asyncio.Lock()
        self.users: weakref.WeakSet[AsyncDynamoConnection] = weakref.WeakSet()
        self.closed = False

    async def leave(self, connection: AsyncDynamoConnection) -> None:
        self.users.discard(connection)
        if not self.users and not self.closed:
            self.closed = True
            if self.client is not None:
                await self.client.close()


class CallAttempts:
    """The attempts at one call until it is answered, shared by the sync and async connections."""

    def __init__(self, driver: Driver, call: ApiCall) -> None:
        self._driver = driver
        self._repeatable = "ClientRequestToken" in call.parameters
        self._began, self.asked_at = driver.clock.monotonic(), driver.server_clock.monotonic()
        self._attempts = self._lost = 0

    def handle(self, answer: Item | Exception) -> tuple[Any, float | None]:
        """Return what an answer means, and the seconds until the next attempt; None if there is
        none.
        """
        found = self._driver.classify(answer, self.asked_at)
        now, delay_s = self._driver.clock.monotonic(), None
        if isinstance(found, ErrorResponse) and is_transient(found):
            if now - self._began < self._driver.patience_s:
                delay_s = full_jitter(self._attempts, BACKOFF_S, BACKOFF_S_MAX, now * 1000 % 1)
            elif self._lost:  # the last attempt had no effect, the lost one may have
                found = StoreUnavailable(f"no answer, then {found.message}", sent=True)
        elif isinstance(found, StoreUnavailable) and self._repeatable:
            self._lost += 1
            delay_s = 0.0 if self._lost < REPEATS_MAX else None
            found = StoreUnavailable(str(found), sent=found.sent or self._lost > 1)
        self._attempts += 1
        self.asked_at = self._driver.server_clock.monotonic() + (delay_s or 0.0)
        return found, delay_s


class DynamoConnection:
    """Answers lists of calls, blocking; several calls are sent from threads."""

    def __init__(self, shared: _SharedClient, driver: Driver) -> None:
        self._shared = shared
        self._driver = driver

    def ask(self, question: Sequence[ApiCall] | Pause) -> list[Any] | None:
        if isinstance(question, Pause):
            threading.Event().wait(question.seconds)
            return None
        if len(question) == 1:
            return [self._answer(question[0])]
        return list(self._shared.threads.map(self._answer, question))

    def _answer(self, call: ApiCall) -> Any:
        attempts, ask = CallAttempts(self._driver, call), getattr(self._shared.client, call.method)
        while True:
            answer: Item | Exception
            try:
                answer = ask(**call.parameters)
            except (errors.BotoCoreError, errors.ClientError, OSError) as error:
                answer = error
            found, delay_s = attempts.handle(answer)
            if delay_s is None:
                return found
            threading.Event().wait(delay_s)

    def close(self) -> None:
        self._shared.leave(self)


class AsyncDynamoConnection:
    """Answers lists of calls, awaited."""

    def __init__(self, shared: _AsyncSharedClient, driver: Driver) -> None:
        self._shared = shared
        self._driver = driver

    async def ask(self, question: Sequence[ApiCall] | Pause) -> list[Any] | None:
        if isinstance(question, Pause):
            await asyncio.sleep(question.seconds)
            return None
        if len(question) == 1:
            return [await self._answer(question[0])]
        return list(await asyncio.gather(*map(self._answer, question)))

    async def _answer(self, call: ApiCall) -> Any:
        attempts, ask = CallAttempts(self._driver, call), getattr(self._shared.client, call.method)
        while True:
            answer: Item | Exception
            try:
                answer = await ask(**call.parameters)
            except (errors.BotoCoreError, errors.ClientError, OSError) as error:
                answer = error
            found, delay_s = attempts.handle(answer)
            if delay_s is None:
                return found
            await asyncio.sleep(delay_s)

    async def close(self) -> None:
        await self._shared.leave(self)
