"""Requests and answers of httpx and httpx2, whichever made them: neither is imported here."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from itertools import chain
from types import ModuleType
from typing import Any

from oncekey._system.probes import probe
from oncekey.client._classify import BODY_BYTES_MAX, Broken, Reply
from oncekey.client._connection_errors import came_from_connecting
from oncekey.client._key_placement import Outgoing, header_of
from oncekey.client._request_mark import DELIVERY, Mark
from oncekey.client._sender import LATE, Outcome, Plan, Sender

EXTENSION = DELIVERY
"""In a request's extensions: the caller's key, later our mark. In a response's: the delivery."""
_NO_LIMITS = dict.fromkeys(("connect", "read", "write", "pool"))
_SHORTEST_S = 0.001
"""To a socket, no time at all means not to wait for it, which is another error."""
_PIECE_BYTES = 1_024
_ENDLESS, _CODED = b"text/event-stream", b"content-encoding"


@functools.cache
def _library_of(kind: Any) -> Any:
    """The library whose class it is."""
    for cls in kind.__mro__:
        library: ModuleType | None = sys.modules.get(cls.__module__.partition(".")[0])
        if hasattr(library, "TransportError"):
            return library
    raise TypeError(f"{kind} is no request of httpx or httpx2")


@functools.cache
def _unsent(library: Any) -> tuple[type[Exception], ...]:
    """What is raised only before a connection is there: a refused one, an unknown name, TLS that
    fails, a proxy that refuses, no free one in the pool.
    """
    return library.ConnectError, library.ConnectTimeout, library.PoolTimeout, library.ProxyError


def is_whole(request: Any) -> bool:
    """Whether its body is there, and not a stream."""
    return isinstance(request.stream, _library_of(request.__class__).ByteStream)


def must_be_read(request: Any, sender: Sender) -> bool:
    """Whether a stream is of a known length, and small enough to be kept."""
    length = request.headers.get("content-length", "")
    return length.isdecimal() and int(length) <= sender.body_bytes_max


class Exchange:
    """One request and its attempts.

    It is made for every request. Whatever is needed only when something goes wrong is not made
    before: in the first place the plan.
    """

    attempts = 1
    gave_up: str | None = None
    first = True
    """Nothing can have been sent under its key before."""

    def __init__(self, request: Any, sender: Sender, inner: Any) -> None:
        self._request = request
        self._sender = sender
        self._inner = inner
        self._library = _library_of(request.__class__)
        if getattr(request.stream, "_is_stream_consumed", False):
            # Redirected, or sent again. An iterator gives nothing now: that is another request.
            raise self._library.StreamConsumed
        self.sent_at, self.deadline = sender.begin()
        brought = request.extensions.get(EXTENSION)
        if brought is not None or sender.header is None or not self._take_new_key(sender.header):
            if isinstance(brought, Mark):
                request.extensions[EXTENSION] = brought = brought.again(request)
                self.deadline, self.attempts = brought.deadline(self.deadline), brought.attempts
            self.mark, self.first = self.plan.mark, self.plan.first
            self._ready = self._planned(self.plan)

    @functools.cached_property
    def plan(self) -> Plan:
        """How it is sent; also when that is done already, since it was left its mark."""
        request = self._request
        body = request.read() if is_whole(request) else None
        outgoing = Outgoing(request.method, str(request.url), request.headers, body)
        plan = self._sender.plan(outgoing, request.extensions.get(EXTENSION), request.stream)
        if plan.mark is not None:
            request.extensions[EXTENSION] = plan.mark
        return plan

    def attempt(self, left_s: float) -> Reply | Broken:
        """What comes of sending it now, in at most so many seconds."""
        probe("before_request")
        try:
            return self._collect(self._inner.handle_request(self._limited(left_s)))
        except Exception as error:
            return self._broken(error)
        finally:
            probe("after_answer")

    async def attempt_async(self, left_s: float) -> Reply | Broken:
        """The same, awaited. What takes longer is cancelled, which nothing that blocks can be: it
        has its timeouts only, and so has one on another loop than asyncio's.
        """
        probe("before_request")
        limit, outer = _within(left_s), sys.exc_info()[1]
        try:
            async with limit:
                response = await self._inner.handle_async_request(self._limited(left_s))
                return await self._collect_async(response)
        except Exception as error:
            if isinstance(limit, asyncio.Timeout) and limit.expired():
                return Broken(self._late(), sent=not came_from_connecting(error, outer))
            return self._broken(error)
        finally:
            probe("after_answer")

    def told(self, response: Any) -> Any:
        """The answer as the caller gets it, with what is known of its delivery."""
        response.extensions[EXTENSION] = self
        if 300 <= response.status_code < 400 and self.mark is not None:
            left = self.mark.redirected(self._request, self.deadline, self.attempts - 1)
            shown = left.is_shown_after(response.headers.get("location"))
            if left.shown and not shown:
                self._request.headers.pop(header_of(self._sender.profile), None)
            self._request.extensions[EXTENSION] = replace(left, shown=shown)
        return response

    def outcome(self, response: Any) -> Outcome:
        key = None if self.mark is None else self.mark.key
        return self._sender.outcome(key, self.attempts, response.headers, self.gave_up)

    # ------------------------------------------------------------------------------- the request

    def _take_new_key(self, header: str) -> bool:
        """Nearly every request: one that has no key yet, and takes it in a header."""
        request, sender = self._request, self._sender
        self._ready = ready = self._copied()
        headers = ready.headers
        lines = len(headers)
        headers[header] = key = sender.new_key()
        if len(headers) <= lines:  # it had one
            return False
        request.headers = headers  # for whoever inspects it
        mark = Mark(key, request.url, request.stream, sender.clock.wall(), shown=True)
        self.mark = request.extensions[EXTENSION] = mark
        return True

    def _planned(self, plan: Plan) -> Any:
        placed, ready = plan.placed, self._copied()
        ready.extensions.pop(EXTENSION, None)
        if placed.url is not None:
            ready.url = self._library.URL(placed.url)
        for name, text in placed.headers:
            ready.headers[name] = text
        if plan.shown is not None:
            name, text = plan.shown
            self._request.headers[name] = text
        if plan.without:
            ready.headers.pop(plan.without, None)
            self._request.headers.pop(plan.without, None)
        if placed.body is not None:
            ready.stream = self._library.ByteStream(placed.body)
            ready.headers["content-length"] = str(len(placed.body))
        return ready

    def _copied(self) -> Any:
        """The request as it is sent. Of the caller's own nothing changes but that its key stands in
        its headers too.
        """
        request = self._request
        return self._library.Request(
            request.method,
            request.url,
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )

    def _limited(self, left_s: float) -> Any:
        """The request for one attempt: no phase of it is given more time than is left when it
        begins.
        """
        if left_s <= 0:
            raise self._late()
        ready, given = self._ready, self._request.extensions.get("timeout") or _NO_LIMITS
        seconds = given.values()
        is_full = len(given) == len(_NO_LIMITS) and None not in seconds
        # Twice: TLS follows the connection under the same limit, the body follows the headers.
        if is_full and 2 * sum(seconds) <= left_s:
            return ready
        if not is_full or max(seconds) > left_s:  # what counts for those who copy them
            every = {**_NO_LIMITS, **given}.items()
            given = {phase: left_s if s is None else min(s, left_s) for phase, s in every}
        ready.extensions["timeout"] = limits = _Limits(given)
        limits.deadline, limits.now = self.deadline, self._sender.clock.monotonic
        return ready

    # -------------------------------------------------------------------------------- the answer

    def _collect(self, response: Any) -> Reply:
        """A whole answer; or one that is left to the caller to read."""
        lines = _lines(response)
        if _ENDLESS in lines and _is_endless(response):
            return self._left_unread(response)
        stream, left_bytes = response.stream, self._sender.answer_bytes_max
        chunks, coming = [], iter(stream)
        for chunk in coming:
            chunks.append(chunk)
            left_bytes -= len(chunk)
            if left_bytes < 0:
                response.stream = _stream(self._library.SyncByteStream, stream, chunks, coming)
                return self._left_unread(response)
            if self._sender.clock.monotonic() > self.deadline:
                stream.close()
                raise self._late()
        stream.close()
        return self._whole(response, b"".join(chunks), _CODED in lines)

    async def _collect_async(self, response: Any) -> Reply:
        lines = _lines(response)
        if _ENDLESS in lines and _is_endless(response):
            return self._left_unread(response)
        stream, left_bytes = response.stream, self._sender.answer_bytes_max
        chunks, coming = [], aiter(stream)
        async for chunk in coming:
            chunks.append(chunk)
            left_bytes -= len(chunk)
            if left_bytes < 0:
                response.stream = _stream(self._library.AsyncByteStream, stream, chunks, coming)
                return self._left_unread(response)
            if self._sender.clock.monotonic() > self.deadline:
                await stream.aclose()
                raise self._late()
        await stream.aclose()
        return self._whole(response, b"".join(chunks), _CODED in lines)

    def _left_unread(self, response: Any) -> Reply:
        """Whoever reads it takes the time that the caller gives it: its delivery is over."""
        limits = self._ready.extensions.get("timeout")
        if isinstance(limits, _Limits):
            limits.lift(self._request.extensions.get("timeout") or {})
        return Reply(response.status_code, response.headers, b"", response)

    def _whole(self, response: Any, raw: bytes, is_coded: bool) -> Reply:
        response.stream = self._library.ByteStream(raw)
        body = self._decoded(response, raw) if is_coded else raw
        return Reply(response.status_code, response.headers, body, response)

    def _decoded(self, response: Any, raw: bytes) -> bytes:
        """As much of it as a refusal has. To its end, for half an answer is none; of one that fails
        the status says enough. In small pieces: each may be a thousand times as large.
        """
        pieces = (raw[at : at + _PIECE_BYTES] for at in range(0, len(raw), _PIECE_BYTES))
        status, body = response.status_code, b""
        made = self._library.Response(status, headers=response.headers, content=pieces)
        try:
            for piece in made.iter_bytes():
                if len(body) <= BODY_BYTES_MAX:  # what is longer is none
                    body += piece
        except self._library.DecodingError:
            if status < 400:
                raise
        return body

    def _broken(self, error: Exception) -> Broken:
        """What a retry may cure; anything else is raised."""
        library = self._library
        passing = library.TransportError, library.DecodingError
        refused = library.UnsupportedProtocol, library.LocalProtocolError
        if isinstance(error, passing) and not isinstance(error, refused):
            return Broken(error, sent=not isinstance(error, _unsent(library)))
        raise error

    def _late(self) -> Exception:
        error: Exception = self._library.ReadTimeout(LATE)
        return error


class _Limits(dict[str, float | None]):
    """The caller's timeouts by phase, each within what is left of all: whoever sends asks for one
    when its phase begins.
    """

    deadline: float
    now: Callable[[], float]

    def __getitem__(self, phase: str) -> float | None:
        return self.get(phase)

    def get(self, phase: str, default: object = None) -> float | None:
        given_s, left_s = dict.get(self, phase), self.deadline - self.now()
        if given_s is None or given_s <= left_s:
            return given_s
        return left_s if left_s > _SHORTEST_S else _SHORTEST_S

    def lift(self, given: dict[str, float | None]) -> None:
        """From now on they are the caller's own."""
        self.update({**_NO_LIMITS, **given})
        self.deadline = math.inf


def _within(seconds: float) -> asyncio.Timeout | contextlib.nullcontext[None]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return contextlib.nullcontext()
    return asyncio.timeout(seconds)


def _lines(response: Any) -> bytes:
    """All headers at once: what is looked for there is most often in none of them."""
    return b" ".join(chain.from_iterable(response.headers.raw)).lower()


def _is_endless(response: Any) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.lower().startswith(_ENDLESS.decode())


def _stream(base: Any, stream: Any, chunks: list[bytes], coming: Any) -> Any:
    """What was read, then what still comes, as a stream of this library."""

    def again(_: Any) -> Iterator[bytes]:
        yield from chunks
        yield from coming

    async def aagain(_: Any) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        async for chunk in coming:
            yield chunk

    async def aclose(_: Any) -> None:
        await stream.aclose()

    parts = {
        "__iter__": again,
        "__aiter__": aagain,
        "close": lambda _: stream.close(),
        "aclose": aclose,
    }
    return type("Stream", (base,), parts)()
