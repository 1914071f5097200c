"""Send requests of httpx and httpx2 and read their responses, without importing either library."""

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
from oncekey.client._classify import BODY_BYTES_MAX, NoResponse, WholeResponse
from oncekey.client._errors import failed_to_connect
from oncekey.client._key_placement import DELIVERY, OutgoingRequest, RequestMark, key_header
from oncekey.client._sender import TIMED_OUT, DeliveryPlan, Outcome, RequestSender

EXTENSION = DELIVERY
"""In a request's extensions: the caller's key, later our mark. In a response's: the `Exchange`."""
_NO_LIMITS = dict.fromkeys(("connect", "read", "write", "pool"))
_SHORTEST_S = 0.001
"""A socket timeout of zero would mean non-blocking, which fails differently."""
_PIECE_BYTES = 1_024
_EVENT_STREAM, _CONTENT_ENCODING = b"text/event-stream", b"content-encoding"


@functools.cache
def _library_of(kind: Any) -> Any:
    """Return the library of a class."""
    for cls in kind.__mro__:
        library: ModuleType | None = sys.modules.get(cls.__module__.partition(".")[0])
        if hasattr(library, "TransportError"):
            return library
    raise TypeError(f"{kind} is no request of httpx or httpx2")


@functools.cache
def _not_sent_errors(library: Any) -> tuple[type[Exception], ...]:
    """Return errors that are raised only before a connection is made: refused, unknown host, TLS or
    proxy failure, no free connection in the pool.
    """
    return library.ConnectError, library.ConnectTimeout, library.PoolTimeout, library.ProxyError


def has_whole_body(request: Any) -> bool:
    """Whether the body is in memory, not a stream."""
    return isinstance(request.stream, _library_of(request.__class__).ByteStream)


def should_buffer(request: Any, sender: RequestSender) -> bool:
    """Whether a streamed body has a known length and is small enough to buffer."""
    length = request.headers.get("content-length", "")
    return length.isdecimal() and int(length) <= sender.body_bytes_max


class Exchange:
    """One request and its attempts.

    Made for every request, so it builds lazily what only failures need, above all the plan.
    """

    attempts = 1
    gave_up: str | None = None
    first = True
    """Nothing was sent with this key before."""

    def __init__(self, request: Any, sender: RequestSender, inner: Any) -> None:
        self._request = request
        self._sender = sender
        self._inner = inner
        self._library = _library_of(request.__class__)
        if getattr(request.stream, "_is_stream_consumed", False):
            # Redirected or resent. An iterator is used up: this would send a different request.
            raise self._library.StreamConsumed
        self.sent_at, self.deadline = sender.begin()
        prior = request.extensions.get(EXTENSION)
        if prior is not None or sender.header is None or not self._take_new_key(sender.header):
            if isinstance(prior, RequestMark):
                request.extensions[EXTENSION] = prior = prior.for_resend(request)
                self.deadline, self.attempts = prior.deadline(self.deadline), prior.attempts
            self.mark, self.first = self.plan.mark, self.plan.first
            self._prepared = self._apply_plan(self.plan)

    @functools.cached_property
    def plan(self) -> DeliveryPlan:
        """How the request is sent. May be read after sending: the mark is on the request."""
        request = self._request
        body = request.read() if has_whole_body(request) else None
        outgoing = OutgoingRequest(request.method, str(request.url), request.headers, body)
        plan = self._sender.plan(outgoing, request.extensions.get(EXTENSION), request.stream)
        if plan.mark is not None:
            request.extensions[EXTENSION] = plan.mark
        return plan

    def attempt(self, left_s: float) -> WholeResponse | NoResponse:
        """Send the request now, within `left_s` seconds."""
        probe("before_request")
        try:
            return self._collect(self._inner.handle_request(self._request_within(left_s)))
        except Exception as error:
            return self._as_no_response(error)
        finally:
            probe("after_answer")

    async def attempt_async(self, left_s: float) -> WholeResponse | NoResponse:
        """Async `attempt`. A request that takes too long is cancelled; blocking requests, and those
        on other event loops than asyncio's, have only their timeouts.
        """
        probe("before_request")
        limit, outer = _time_limit(left_s), sys.exc_info()[1]
        try:
            async with limit:
                response = await self._inner.handle_async_request(self._request_within(left_s))
                return await self._collect_async(response)
        except Exception as error:
            if isinstance(limit, asyncio.Timeout) and limit.expired():
                return NoResponse(self._timeout_error(), sent=not failed_to_connect(error, outer))
            return self._as_no_response(error)
        finally:
            probe("after_answer")

    def finish_response(self, response: Any) -> Any:
        """Attach the delivery to the response that the caller gets."""
        response.extensions[EXTENSION] = self
        if 300 <= response.status_code < 400 and self.mark is not None:
            left = self.mark.after_redirect(self._request, self.deadline, self.attempts - 1)
            is_visible = left.stays_visible_after(response.headers.get("location"))
            if left.is_visible and not is_visible:
                self._request.headers.pop(key_header(self._sender.profile), None)
            self._request.extensions[EXTENSION] = replace(left, is_visible=is_visible)
        return response

    def outcome(self, response: Any) -> Outcome:
        key = None if self.mark is None else self.mark.key
        return self._sender.outcome(key, self.attempts, response.headers, self.gave_up)

    # ------------------------------------------------------------------------------- the request

    def _take_new_key(self, header: str) -> bool:
        """Handle the usual request: it has no key yet, and its key goes into a header."""
        request, sender = self._request, self._sender
        self._prepared = prepared = self._copy_request()
        headers = prepared.headers
        lines = len(headers)
        headers[header] = key = sender.new_key()
        if len(headers) <= lines:  # the request had a key
            return False
        request.headers = headers  # so that the caller can see the key
        mark = RequestMark(key, request.url, request.stream, sender.clock.wall(), is_visible=True)
        self.mark = request.extensions[EXTENSION] = mark
        return True

    def _apply_plan(self, plan: DeliveryPlan) -> Any:
        changes, prepared = plan.changes, self._copy_request()
        prepared.extensions.pop(EXTENSION, None)
        if changes.url is not None:
            prepared.url = self._library.URL(changes.url)
        for name, text in changes.headers:
            prepared.headers[name] = text
        if plan.visible_header is not None:
            name, text = plan.visible_header
            self._request.headers[name] = text
        if plan.removed_header:
            prepared.headers.pop(plan.removed_header, None)
            self._request.headers.pop(plan.removed_header, None)
        if changes.body is not None:
            prepared.stream = self._library.ByteStream(changes.body)
            prepared.headers["content-length"] = str(len(changes.body))
        return prepared

    def _copy_request(self) -> Any:
        """Copy the request for sending. The caller's own request only gets the key's header."""
        request = self._request
        return self._library.Request(
            request.method,
            request.url,
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )

    def _request_within(self, left_s: float) -> Any:
        """Return the request for one attempt, whose phases get no more time than is left when they
        begin.
        """
        if left_s <= 0:
            raise self._timeout_error()
        prepared, given = self._prepared, self._request.extensions.get("timeout") or _NO_LIMITS
        seconds = given.values()
        is_full = len(given) == len(_NO_LIMITS) and None not in seconds
        # Twice: TLS shares the connect timeout, and the body shares the headers' read timeout.
        if is_full and 2 * sum(seconds) <= left_s:
            return prepared
        if not is_full or max(seconds) > left_s:  # for code that copies the timeouts
            every = {**_NO_LIMITS, **given}.items()
            given = {phase: left_s if s is None else min(s, left_s) for phase, s in every}
        prepared.extensions["timeout"] = limits = _RemainingTimeouts(given)
        limits.deadline, limits.now = self.deadline, self._sender.clock.monotonic
        return prepared

    # -------------------------------------------------------------------------------- the answer

    def _collect(self, response: Any) -> WholeResponse:
        """Read a complete response, or leave a stream for the caller to read."""
        lines = _header_bytes(response)
        if _EVENT_STREAM in lines and _is_event_stream(response):
            return self._leave_unread(response)
        stream, left_bytes = response.stream, self._sender.answer_bytes_max
        chunks, rest = [], iter(stream)
        for chunk in rest:
            chunks.append(chunk)
            left_bytes -= len(chunk)
            if left_bytes < 0:
                response.stream = _rejoin_stream(self._library.SyncByteStream, stream, chunks, rest)
                return self._leave_unread(response)
            if self._sender.clock.monotonic() > self.deadline:
                stream.close()
                raise self._timeout_error()
        stream.close()
        return self._read_response(response, b"".join(chunks), _CONTENT_ENCODING in lines)

    async def _collect_async(self, response: Any) -> WholeResponse:
        lines = _header_bytes(response)
        if _EVENT_STREAM in lines and _is_event_stream(response):
            return self._leave_unread(response)
        stream, left_bytes = response.stream, self._sender.answer_bytes_max
        chunks, rest = [], aiter(stream)
        async for chunk in rest:
            chunks.append(chunk)
            left_bytes -= len(chunk)
            if left_bytes < 0:
                response.stream = _rejoin_stream(
                    self._library.AsyncByteStream, stream, chunks, rest
                )
                return self._leave_unread(response)
            if self._sender.clock.monotonic() > self.deadline:
                await stream.aclose()
                raise self._timeout_error()
        await stream.aclose()
        return self._read_response(response, b"".join(chunks), _CONTENT_ENCODING in lines)

    def _leave_unread(self, response: Any) -> WholeResponse:
        """Leave the body to the caller, under the caller's timeouts: the delivery is over."""
        limits = self._prepared.extensions.get("timeout")
        if isinstance(limits, _RemainingTimeouts):
            limits.restore(self._request.extensions.get("timeout") or {})
        return WholeResponse(response.status_code, response.headers, b"", response)

    def _read_response(self, response: Any, raw: bytes, is_encoded: bool) -> WholeResponse:
        response.stream = self._library.ByteStream(raw)
        body = self._decode_start(response, raw) if is_encoded else raw
        return WholeResponse(response.status_code, response.headers, body, response)

    def _decode_start(self, response: Any, raw: bytes) -> bytes:
        """Decode as much of the body as a refusal may have, but read to its end, to detect a
        truncated one. If decoding an error response fails, its status is enough. Decodes in small
        pieces, because each may expand a thousandfold.
        """
        pieces = (raw[at : at + _PIECE_BYTES] for at in range(0, len(raw), _PIECE_BYTES))
        status, body = response.status_code, b""
        made = self._library.Response(status, headers=response.headers, content=pieces)
        try:
            for piece in made.iter_bytes():
                if len(body) <= BODY_BYTES_MAX:  # longer bodies are not refusals
                    body += piece
        except self._library.DecodingError:
            if status < 400:
                raise
        return body

    def _as_no_response(self, error: Exception) -> NoResponse:
        """Convert errors that a retry may fix; raise all others."""
        library = self._library
        transient = library.TransportError, library.DecodingError
        misuse = library.UnsupportedProtocol, library.LocalProtocolError
        if isinstance(error, transient) and not isinstance(error, misuse):
            return NoResponse(error, sent=not isinstance(error, _not_sent_errors(library)))
        raise error

    def _timeout_error(self) -> Exception:
        error: Exception = self._library.ReadTimeout(TIMED_OUT)
        return error


class _RemainingTimeouts(dict[str, float | None]):
    """The caller's timeouts by phase, each limited by the time left when the library reads it, as
    the phase begins.
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

    def restore(self, given: dict[str, float | None]) -> None:
        """Go back to the caller's own timeouts."""
        self.update({**_NO_LIMITS, **given})
        self.deadline = math.inf


def _time_limit(seconds: float) -> asyncio.Timeout | contextlib.nullcontext[None]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return contextlib.nullcontext()
    return asyncio.timeout(seconds)


def _header_bytes(response: Any) -> bytes:
    """Join all headers, so that one search finds what is mostly in none of them."""
    return b" ".join(chain.from_iterable(response.headers.raw)).lower()


def _is_event_stream(response: Any) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.lower().startswith(_EVENT_STREAM.decode())


def _rejoin_stream(base: Any, stream: Any, chunks: list[bytes], rest: Any) -> Any:
    """Make a stream of this library from the chunks already read and the rest."""

    def iterate(_: Any) -> Iterator[bytes]:
        yield from chunks
        yield from rest

    async def aiterate(_: Any) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        async for chunk in rest:
            yield chunk

    async def aclose(_: Any) -> None:
        await stream.aclose()

    parts = {
        "__iter__": iterate,
        "__aiter__": aiterate,
        "close": lambda _: stream.close(),
        "aclose": aclose,
    }
    return type("Stream", (base,), parts)()
