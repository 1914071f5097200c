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
import contextlib
import importlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

from oncekey.client import httpx_wire, requests_wire
from oncekey.client.attempts import Send
from oncekey.client.httpx_wire import EXTENSION
from oncekey.client.sender import Outcome, Sender
from oncekey.client.verdict import Broken, Reply
from oncekey.client.wrapping import Wrapping, must_be_a_transport
from oncekey.core.op import Pause, arun, run

T = TypeVar("T")


def retrying(transport: T, **options: Any) -> T:
    """The same transport, which sends each change of state under a key, and again if need be.

    The options are those of `oncekey.client.sender.Sender`, among them `profile`, `retries`,
    `budget`, `methods`, `keys_as` and `hooks`.
    """
    must_be_a_transport(transport, "retrying")
    return cast(T, Retrying(transport, Sender(**options)))


def outcome_of(response: Any) -> Outcome | None:
    """What there is to know about the delivery of this answer; None if it was not ours."""
    found = getattr(response, "extensions", {}).get(EXTENSION) or getattr(response, EXTENSION, None)
    return found if isinstance(found, Outcome) else None


@contextlib.asynccontextmanager
async def _at_most(seconds: float, late: Callable[[], Exception]) -> AsyncIterator[None]:
    """What takes longer is cancelled. A blocking attempt cannot be: it has its timeouts only, and
    so has one on another loop than asyncio's.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        yield
        return
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise late() from None
        raise


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
        if not self._sender.concerns(request.method, request.extensions.get(EXTENSION)):
            return self._inner.handle_request(request)
        library = httpx_wire.library_of(request)
        if httpx_wire.must_be_read(request, library, self._sender.body_bytes_max):
            request.read()
        exchange = httpx_wire.Exchange(request, library, self._sender)
        last: Any = None

        def ask(question: Send | Pause) -> Reply | Broken | None:
            nonlocal last
            if isinstance(question, Pause):
                if last is not None:
                    last.close()
                self._sleep(question.seconds)
                return None
            try:
                last = response = self._inner.handle_request(exchange.ready(question))
                answer = exchange.answer(response)
                answer.collect()
            except Exception as error:
                return exchange.broken(error)
            return exchange.reply(response, answer)

        ended = run(self._sender.deliver(exchange.plan), ask)
        reply, outcome = self._sender.settle(exchange.plan, ended)
        return exchange.told(reply.native, outcome)

    async def handle_async_request(self, request: Any) -> Any:
        """As httpx calls an async transport."""
        if not self._sender.concerns(request.method, request.extensions.get(EXTENSION)):
            return await self._inner.handle_async_request(request)
        library = httpx_wire.library_of(request)
        if httpx_wire.must_be_read(request, library, self._sender.body_bytes_max):
            await request.aread()
        exchange = httpx_wire.Exchange(request, library, self._sender)
        last: Any = None

        async def ask(question: Send | Pause) -> Reply | Broken | None:
            nonlocal last
            if isinstance(question, Pause):
                if last is not None:
                    await last.aclose()
                await self._async_sleep(question.seconds)
                return None
            try:
                async with _at_most(question.left_s, exchange.late):
                    ready = exchange.ready(question)
                    last = response = await self._inner.handle_async_request(ready)
                    answer = exchange.answer(response)
                    await answer.acollect()
            except Exception as error:
                return exchange.broken(error)
            return exchange.reply(response, answer)

        ended = await arun(self._sender.deliver(exchange.plan), ask)
        reply, outcome = self._sender.settle(exchange.plan, ended)
        return exchange.told(reply.native, outcome)

    def send(
        self, request: Any, stream: bool = False, timeout: Any = None, *args: Any, **more: Any
    ) -> Any:
        """As requests calls an adapter."""
        if not self._sender.concerns(request.method, requests_wire.mark_of(request)):
            return self._inner.send(request, stream, timeout, *args, **more)
        exchange = requests_wire.Exchange(request, self._sender, stream, timeout)
        last: Any = None

        def ask(question: Send | Pause) -> Reply | Broken | None:
            nonlocal last
            if isinstance(question, Pause):
                if last is not None:
                    last.close()
                self._sleep(question.seconds)
                return None
            try:
                limit = exchange.timeout(question)
                last = self._inner.send(exchange.ready, stream, limit, *args, **more)
                return exchange.reply(last)
            except Exception as error:
                return exchange.broken(error)

        ended = run(self._sender.deliver(exchange.plan), ask)
        reply, outcome = self._sender.settle(exchange.plan, ended)
        return exchange.told(reply.native, outcome)
