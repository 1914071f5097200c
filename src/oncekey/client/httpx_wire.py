"""Requests and answers of httpx and httpx2, whichever made them: neither is imported here."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

from oncekey.client.attempts import Send
from oncekey.client.place import Outgoing
from oncekey.client.sender import Outcome, Plan, Sender
from oncekey.client.verdict import Broken, Reply

EXTENSION = "oncekey"
"""In a request's extensions: the caller's key, later our mark. In a response's: the outcome."""
_PHASES = ("connect", "read", "write", "pool")
_LATE = "the time for all attempts was over before the whole answer was there"


def library_of(request: object) -> Any:
    """The library whose request it is."""
    for cls in type(request).__mro__:
        library: ModuleType | None = sys.modules.get(cls.__module__.partition(".")[0])
        if hasattr(library, "TransportError"):
            return library
    raise TypeError(f"{type(request).__name__} is no request of httpx or httpx2")


def must_be_read(request: Any, library: Any, bytes_max: int) -> bool:
    """Whether a body is a stream of a known length that is small enough to be kept."""
    if isinstance(request.stream, library.ByteStream):
        return False
    length = request.headers.get("content-length", "")
    return length.isdecimal() and int(length) <= bytes_max


def _lines(headers: Any) -> dict[str, str]:
    """By names in lower case. Asked for several on every request, the library's own headers would
    be most of what this transport costs.
    """
    return {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in headers.raw}


class Exchange:
    """One request and its attempts. Reading the body is left to whoever may block, or await."""

    def __init__(self, request: Any, library: Any, sender: Sender) -> None:
        self._library = library
        self._request = request
        self._sender = sender
        self._refused = (library.UnsupportedProtocol, library.LocalProtocolError)
        self._deadline = 0.0
        known = isinstance(request.stream, library.ByteStream)
        body = request.read() if known else None
        lines = _lines(request.headers)
        outgoing = Outgoing(request.method, str(request.url), lines, body)
        self.plan = sender.plan(outgoing, request.extensions.get(EXTENSION))
        if self.plan.mark is not None:
            request.extensions[EXTENSION] = self.plan.mark
        self._ready = self._prepared(request, self.plan)
        self._timeouts = request.extensions.get("timeout") or {}

    def _prepared(self, request: Any, plan: Plan) -> Any:
        """The request as it is sent. The caller's own stays as it is, so that whoever follows a
        redirect does not carry the key along.
        """
        placed, stream = plan.placed, request.stream
        if placed.body is not None:
            stream = self._library.ByteStream(placed.body)
        ready = self._library.Request(
            request.method,
            placed.url or request.url,
            headers=request.headers,
            stream=stream,
            extensions=request.extensions,
        )
        ready.extensions.pop(EXTENSION, None)
        for name, text in placed.headers:
            ready.headers[name] = text
        if plan.without:
            del ready.headers[plan.without]
        if placed.body is not None:
            ready.headers["content-length"] = str(len(placed.body))
        return ready

    def ready(self, question: Send) -> Any:
        """The request for this attempt: no phase of it may take longer than is left."""
        self._deadline = self._sender.clock.monotonic() + question.left_s
        left_s, limits = question.left_s, self._timeouts
        self._ready.extensions["timeout"] = {
            phase: left_s if (s := limits.get(phase)) is None or s > left_s else s
            for phase in _PHASES
        }
        return self._ready

    def broken(self, error: Exception) -> Broken:
        """What a retry may cure; anything else is raised."""
        if isinstance(error, self._library.TransportError) and not isinstance(error, self._refused):
            return Broken(error)
        raise error

    def reply(self, response: Any, answer: Answer) -> Reply:
        """A whole answer; or one that is left to the caller to read."""
        if answer.rest is not None:
            response.stream = answer.rest
            return Reply(response.status_code, answer.headers, b"", response)
        raw = b"".join(answer.chunks)
        response.stream = self._library.ByteStream(raw)
        body = self._decoded(response, raw) if response.status_code >= 400 else b""
        return Reply(response.status_code, answer.headers, body, response)

    def answer(self, response: Any) -> Answer:
        headers = _lines(response.headers)
        length = headers.get("content-length", "")
        kind = headers.get("content-type", "")
        endless = kind.lower().startswith("text/event-stream")
        large = length.isdecimal() and int(length) > self._sender.answer_bytes_max
        return Answer(
            self._library,
            headers,
            response.stream,
            self._sender.answer_bytes_max,
            self._is_late,
            unread=endless or large,
        )

    def told(self, response: Any, outcome: Outcome) -> Any:
        response.extensions[EXTENSION] = outcome
        return response

    def late(self) -> Exception:
        """What is raised when the time is over."""
        error: Exception = self._library.ReadTimeout(_LATE)
        return error

    def _is_late(self) -> bool:
        return self._sender.clock.monotonic() > self._deadline

    def _decoded(self, response: Any, raw: bytes) -> bytes:
        library = self._library
        try:
            made = library.Response(response.status_code, headers=response.headers, content=raw)
            content: bytes = made.content
        except library.DecodingError:
            return b""
        return content


class Answer:
    """The body of an answer as it comes in. What is too large, or never ends, is not kept: `rest`
    is then the stream that the caller reads, from its first byte.
    """

    def __init__(
        self,
        library: Any,
        headers: dict[str, str],
        stream: Any,
        bytes_max: int,
        late: Callable[[], bool],
        *,
        unread: bool,
    ) -> None:
        self.headers = headers
        self.chunks: list[bytes] = []
        self.rest: Any = stream if unread else None
        self._library = library
        self._stream = stream
        self._left_bytes = bytes_max
        self._late = late

    def collect(self) -> None:
        if self.rest is not None:
            return
        coming = iter(self._stream)
        for chunk in coming:
            if self._full(chunk):
                self.rest = _stream(self._library.SyncByteStream, self, coming)
                return
            if self._late():
                self._stream.close()
                raise self._library.ReadTimeout(_LATE)
        self._stream.close()

    async def acollect(self) -> None:
        if self.rest is not None:
            return
        coming = aiter(self._stream)
        async for chunk in coming:
            if self._full(chunk):
                self.rest = _stream(self._library.AsyncByteStream, self, coming)
                return
            if self._late():
                await self._stream.aclose()
                raise self._library.ReadTimeout(_LATE)
        await self._stream.aclose()

    def _full(self, chunk: bytes) -> bool:
        self.chunks.append(chunk)
        self._left_bytes -= len(chunk)
        return self._left_bytes < 0

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _stream(base: Any, answer: Answer, coming: Any) -> Any:
    """What was read, then what still comes, as a stream of this library."""

    def again(_: Any) -> Iterator[bytes]:
        yield from answer.chunks
        yield from coming

    async def aagain(_: Any) -> AsyncIterator[bytes]:
        for chunk in answer.chunks:
            yield chunk
        async for chunk in coming:
            yield chunk

    async def aclose(_: Any) -> None:
        await answer.aclose()

    parts = {
        "__iter__": again,
        "__aiter__": aagain,
        "close": lambda _: answer.close(),
        "aclose": aclose,
    }
    return type("Stream", (base,), parts)()
