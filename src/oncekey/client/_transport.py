"""A transport that adds idempotency keys and retries to existing code.

    httpx.Client(transport=retrying(httpx.HTTPTransport()))
    httpx.AsyncClient(transport=retrying(httpx.AsyncHTTPTransport()))
    session.mount("https://", retrying(requests.adapters.HTTPAdapter()))

`_retry` and `_classify` make the decisions; this module sends and waits, async and blocking. None
of the libraries is imported.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, Unpack, cast

from oncekey._core.op import Pause, arun, run
from oncekey.client import _httpx as httpx_wire
from oncekey.client import _requests as requests_wire
from oncekey.client._classify import NoResponse, WholeResponse
from oncekey.client._httpx import EXTENSION
from oncekey.client._retry import FirstAttempt, SendAgain
from oncekey.client._sender import Options, Outcome, RequestSender
from oncekey.client._wrapper import (
    TransportWrapper,
    must_be_a_transport,
    must_not_give_keys,
    must_not_retry,
)

T = TypeVar("T")
_EXCHANGES = (httpx_wire.Exchange, requests_wire.Exchange)


def retrying(transport: T, **options: Unpack[Options]) -> T:
    """Wrap a transport so that each request that changes state gets a key and is retried.

    Options: `profile` is how the server takes keys and words its refusals; `retries` and `budget`
    limit retries of one request and to one host; `methods` get a key; `keys_as` is "uuid7",
    "uuid4" or "ulid"; `body_bytes_max` and `answer_bytes_max` limit which request bodies are
    buffered for retries and which responses are read to their end; `hooks` get an event for each
    attempt.
    """
    return cast(T, wrap(transport, RequestSender(**options)))


def wrap(transport: Any, sender: RequestSender) -> RetryingTransport:
    """Wrap a transport with this sender. Raises `Misuse` for what cannot be wrapped."""
    must_be_a_transport(transport, "retrying")
    must_not_give_keys(transport)
    must_not_retry(transport)
    return RetryingTransport(transport, sender)


def outcome_of(answer: Any) -> Outcome | None:
    """Return the `Outcome` of a response, or of an exception raised instead of one; None if this
    client did not deliver it.
    """
    found = getattr(answer, "extensions", {}).get(EXTENSION) or getattr(answer, EXTENSION, None)
    if isinstance(found, Outcome):
        return found
    return found.outcome(answer) if isinstance(found, _EXCHANGES) else None


async def _sleep(seconds: float) -> None:
    """Sleep on any event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # not asyncio's loop: httpx runs there through anyio
        await importlib.import_module("anyio").sleep(seconds)
    else:
        await asyncio.sleep(seconds)


class RetryingTransport(TransportWrapper):
    """A retrying transport for httpx, httpx2 and requests."""

    gives_retries = True

    def __init__(
        self,
        inner: Any,
        sender: RequestSender,
        sleep: Callable[[float], None] = time.sleep,
        async_sleep: Callable[[float], Awaitable[None]] = _sleep,
    ) -> None:
        super().__init__(inner)
        self._sender = sender
        self._sleep = sleep
        self._async_sleep = async_sleep

    def handle_request(self, request: Any) -> Any:
        """Called by httpx."""
        sender = self._sender
        if not sender.handles(request.method, request.extensions.get(EXTENSION)):
            return self._inner.handle_request(request)
        if not httpx_wire.has_whole_body(request) and httpx_wire.should_buffer(request, sender):
            request.read()
        return self._deliver(httpx_wire.Exchange(request, sender, self._inner))

    async def handle_async_request(self, request: Any) -> Any:
        """Called by async httpx."""
        sender = self._sender
        if not sender.handles(request.method, request.extensions.get(EXTENSION)):
            return await self._inner.handle_async_request(request)
        if not httpx_wire.has_whole_body(request) and httpx_wire.should_buffer(request, sender):
            await request.aread()
        return await self._deliver_async(httpx_wire.Exchange(request, sender, self._inner))

    def send(
        self, request: Any, stream: bool = False, timeout: Any = None, *args: Any, **more: Any
    ) -> Any:
        """Called by requests. Passes keyword arguments, since many adapters accept only those."""
        more = {**dict(zip(("verify", "cert", "proxies"), args, strict=False)), **more}
        if not self._sender.handles(request.method, requests_wire.mark_of(request)):
            return self._inner.send(request, stream=stream, timeout=timeout, **more)

        def send(prepared: Any, limit: Any) -> Any:
            return self._inner.send(prepared, stream=stream, timeout=limit, **more)

        exchange = requests_wire.Exchange(request, self._sender, send, stream, limit=timeout)
        response = self._deliver(exchange)
        response.connection = self  # auth handlers resend through it
        return response

    # ---------------------------------------------------------------- the first attempt, and others

    def _deliver(self, exchange: httpx_wire.Exchange | requests_wire.Exchange) -> Any:
        sender = self._sender
        last = exchange.attempt(exchange.deadline - exchange.sent_at)
        if sender.is_plain_success(last):
            return exchange.finish_response(last.native)

        def ask(question: SendAgain | Pause) -> WholeResponse | NoResponse | None:
            nonlocal last
            if isinstance(question, Pause):  # keep the response open: it may be the last
                self._sleep(question.seconds)
                return None
            if isinstance(last, WholeResponse):
                last.native.close()
            last = exchange.attempt(question.left_s)
            return last

        first = FirstAttempt(exchange.sent_at, exchange.deadline, last)
        try:
            result = run(sender.continue_delivery(exchange.plan, first), ask)
        except BaseException:  # interrupted in a pause, say
            if isinstance(last, WholeResponse):
                last.native.close()
            raise
        exchange.attempts, exchange.gave_up = result.attempts, result.gave_up
        return exchange.finish_response(sender.finish(exchange.plan, result, exchange.first).native)

    async def _deliver_async(self, exchange: httpx_wire.Exchange) -> Any:
        sender = self._sender
        last = await exchange.attempt_async(exchange.deadline - exchange.sent_at)
        if sender.is_plain_success(last):
            return exchange.finish_response(last.native)

        async def ask(question: SendAgain | Pause) -> WholeResponse | NoResponse | None:
            nonlocal last
            if isinstance(question, Pause):
                await self._async_sleep(question.seconds)
                return None
            if isinstance(last, WholeResponse):
                await last.native.aclose()
            last = await exchange.attempt_async(question.left_s)
            return last

        first = FirstAttempt(exchange.sent_at, exchange.deadline, last)
        try:
            result = await arun(sender.continue_delivery(exchange.plan, first), ask)
        except BaseException:
            if isinstance(last, WholeResponse):
                await last.native.aclose()
            raise
        exchange.attempts, exchange.gave_up = result.attempts, result.gave_up
        return exchange.finish_response(sender.finish(exchange.plan, result, exchange.first).native)
