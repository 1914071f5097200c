"""A transport that gives requests their keys and retries them: existing code gains both by one
object.

    httpx.Client(transport=retrying(httpx.HTTPTransport()))
    httpx.AsyncClient(transport=retrying(httpx.AsyncHTTPTransport()))
    session.mount("https://", retrying(requests.adapters.HTTPAdapter()))

What is decided is decided in `attempts` and `verdict`; here are the two ways to ask and to wait.
None of the libraries is imported.
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
from oncekey.client._classify import Broken, Reply
from oncekey.client._httpx import EXTENSION
from oncekey.client._retry import First, Send
from oncekey.client._sender import Options, Outcome, Sender
from oncekey.client._wrapper import (
    Wrapping,
    must_be_a_transport,
    must_not_give_keys,
    must_not_retry,
)

T = TypeVar("T")
_EXCHANGES = (httpx_wire.Exchange, requests_wire.Exchange)


def retrying(transport: T, **options: Unpack[Options]) -> T:
    """The same transport, which sends each change of state under a key, and again if need be.

    Options: `profile` says how the server wants its keys and words its refusals; `retries` and
    `budget`, how long and how often one request and one host are tried; `methods`, which requests
    get a key; `keys_as`, "uuid7", "uuid4" or "ulid"; `body_bytes_max` and `answer_bytes_max`, what
    is kept to be sent again and read to its end; `hooks` are told of every attempt.
    """
    return cast(T, around(transport, Sender(**options)))


def around(transport: Any, sender: Sender) -> Retrying:
    """A transport by which this sender sends. Raises `Misuse` for what cannot be inside."""
    must_be_a_transport(transport, "retrying")
    must_not_give_keys(transport)
    must_not_retry(transport)
    return Retrying(transport, sender)


def outcome_of(answer: Any) -> Outcome | None:
    """What there is to know about the delivery of this answer, or of what was raised in place of
    one; None if it was not ours.
    """
    found = getattr(answer, "extensions", {}).get(EXTENSION) or getattr(answer, EXTENSION, None)
    if isinstance(found, Outcome):
        return found
    return found.outcome(answer) if isinstance(found, _EXCHANGES) else None


async def _sleep(seconds: float) -> None:
    """On whichever event loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # another one, on which httpx runs by anyio
        await importlib.import_module("anyio").sleep(seconds)
    else:
        await asyncio.sleep(seconds)


class Retrying(Wrapping):
    """A transport around another one, for whichever library calls it."""

    gives_retries = True

    def __init__(
        self,
        inner: Any,
        sender: Sender,
        sleep: Callable[[float], None] = time.sleep,
        async_sleep: Callable[[float], Awaitable[None]] = _sleep,
    ) -> None:
        super().__init__(inner)
        self._sender = sender
        self._sleep = sleep
        self._async_sleep = async_sleep

    def handle_request(self, request: Any) -> Any:
        """As httpx calls a transport."""
        sender = self._sender
        if not sender.concerns(request.method, request.extensions.get(EXTENSION)):
            return self._inner.handle_request(request)
        if not httpx_wire.is_whole(request) and httpx_wire.must_be_read(request, sender):
            request.read()
        return self._deliver(httpx_wire.Exchange(request, sender, self._inner))

    async def handle_async_request(self, request: Any) -> Any:
        """As httpx calls an async transport."""
        sender = self._sender
        if not sender.concerns(request.method, request.extensions.get(EXTENSION)):
            return await self._inner.handle_async_request(request)
        if not httpx_wire.is_whole(request) and httpx_wire.must_be_read(request, sender):
            await request.aread()
        return await self._deliver_async(httpx_wire.Exchange(request, sender, self._inner))

    def send(
        self, request: Any, stream: bool = False, timeout: Any = None, *args: Any, **more: Any
    ) -> Any:
        """As requests calls an adapter: by names, and many adapters take nothing else."""
        more = {**dict(zip(("verify", "cert", "proxies"), args, strict=False)), **more}
        if not self._sender.concerns(request.method, requests_wire.mark_of(request)):
            return self._inner.send(request, stream=stream, timeout=timeout, **more)

        def send(ready: Any, limit: Any) -> Any:
            return self._inner.send(ready, stream=stream, timeout=limit, **more)

        exchange = requests_wire.Exchange(request, self._sender, send, stream, limit=timeout)
        response = self._deliver(exchange)
        response.connection = self  # whoever answers a challenge in it sends through that
        return response

    # ---------------------------------------------------------------- the first attempt, and others

    def _deliver(self, exchange: httpx_wire.Exchange | requests_wire.Exchange) -> Any:
        sender = self._sender
        last = exchange.attempt(exchange.deadline - exchange.sent_at)
        if sender.smooth(last):
            return exchange.told(last.native)

        def ask(question: Send | Pause) -> Reply | Broken | None:
            nonlocal last
            if isinstance(question, Pause):  # the answer may be the last after all: it stays open
                self._sleep(question.seconds)
                return None
            if isinstance(last, Reply):
                last.native.close()
            last = exchange.attempt(question.left_s)
            return last

        first = First(exchange.sent_at, exchange.deadline, last)
        try:
            ended = run(sender.go_on(exchange.plan, first), ask)
        except BaseException:  # interrupted in a pause, say
            if isinstance(last, Reply):
                last.native.close()
            raise
        exchange.attempts, exchange.gave_up = ended.attempts, ended.gave_up
        return exchange.told(sender.settle(exchange.plan, ended, exchange.first).native)

    async def _deliver_async(self, exchange: httpx_wire.Exchange) -> Any:
        sender = self._sender
        last = await exchange.attempt_async(exchange.deadline - exchange.sent_at)
        if sender.smooth(last):
            return exchange.told(last.native)

        async def ask(question: Send | Pause) -> Reply | Broken | None:
            nonlocal last
            if isinstance(question, Pause):
                await self._async_sleep(question.seconds)
                return None
            if isinstance(last, Reply):
                await last.native.aclose()
            last = await exchange.attempt_async(question.left_s)
            return last

        first = First(exchange.sent_at, exchange.deadline, last)
        try:
            ended = await arun(sender.go_on(exchange.plan, first), ask)
        except BaseException:
            if isinstance(last, Reply):
                await last.native.aclose()
            raise
        exchange.attempts, exchange.gave_up = ended.attempts, ended.gave_up
        return exchange.told(sender.settle(exchange.plan, ended, exchange.first).native)
