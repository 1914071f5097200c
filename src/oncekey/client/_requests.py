"""Requests and answers of the library requests, which is not imported here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from oncekey._system.probes import probe
from oncekey.client._classify import Broken, Reply
from oncekey.client._connection_errors import came_from_connecting
from oncekey.client._key_placement import Outgoing, header_of
from oncekey.client._request_mark import DELIVERY, Mark
from oncekey.client._sender import LATE, Outcome, Plan, Sender

_MARK = DELIVERY
"""Among a request's hooks, because that is what its copy for a redirect shares with it."""


Send = Callable[[Any, Any], Any]
"""Takes a request and a timeout."""


def mark_of(request: Any) -> Mark | None:
    """What an earlier request left on this one."""
    mark: Mark | None = request.hooks.get(_MARK)
    return mark


def _marked(request: Any, mark: Mark) -> Mark:
    """Leave it on this one, and on what is copied from it later: those that it was copied from or
    beside may become other requests.
    """
    request.hooks = {**request.hooks, _MARK: mark}
    return mark


class Exchange:
    """One request and its attempts."""

    attempts = 1
    gave_up: str | None = None
    first = True
    """Nothing can have been sent under its key before."""

    def __init__(self, request: Any, sender: Sender, send: Send, stream: bool, limit: Any) -> None:
        """`limit` is the caller's timeout."""
        self._request = request
        self._sender = sender
        self._send = send
        self._stream = stream
        self._limit = limit
        self.sent_at, self.deadline = sender.begin()
        self._body = _body(request, sender.body_bytes_max)
        brought = mark_of(request)
        if brought is not None and self._body is None:
            _must_be_there(request)
        if brought is not None or sender.header is None or not self._take_new_key(sender.header):
            if brought is not None:
                brought = _marked(request, brought.again(request))
                self.deadline, self.attempts = brought.deadline(self.deadline), brought.attempts
            self.mark, self.first = self.plan.mark, self.plan.first
            self._ready = self._planned(self.plan)

    @functools.cached_property
    def plan(self) -> Plan:
        """How it is sent; also when that is done already, since it was left its mark."""
        request = self._request
        outgoing = Outgoing(request.method, request.url, request.headers, self._body)
        plan = self._sender.plan(outgoing, mark_of(request), request.body)
        if plan.mark is not None:
            _marked(request, plan.mark)
        return plan

    def attempt(self, left_s: float) -> Reply | Broken:
        """What comes of sending it now, in at most so many seconds."""
        probe("before_request")
        outer = sys.exc_info()[1]
        try:
            return self._collect(self._send(self._ready, self._limited(left_s)))
        except Exception as error:
            return self._broken(error, outer)
        finally:
            probe("after_answer")

    def told(self, response: Any) -> Any:
        """The answer as the caller gets it, with what is known of its delivery. Whoever answers a
        challenge in it (Digest) sends a copy of its request, which is the caller's therefore.
        """
        response.oncekey, response.request = self, self._request
        if self._ready.url is not self._request.url:  # with the key in it, and errors show that
            response.url = self._request.url
        if 300 <= response.status_code < 400 and self.mark is not None:
            left = self.mark.redirected(self._request, self.deadline, self.attempts - 1)
            shown = left.is_shown_after(response.headers.get("location"))
            if left.shown and not shown:
                self._request.headers.pop(header_of(self._sender.profile), None)
            _marked(self._request, replace(left, shown=shown))
        return response

    def outcome(self, response: Any) -> Outcome:
        key = None if self.mark is None else self.mark.key
        return self._sender.outcome(key, self.attempts, response.headers, self.gave_up)

    # ------------------------------------------------------------------------------- the request

    def _take_new_key(self, header: str) -> bool:
        """Nearly every request: one that has no key yet, and takes it in a header."""
        request = self._request
        if header in request.headers:
            return False
        self._ready = ready = self._copied()
        ready.headers[header] = key = self._sender.new_key()
        request.headers = ready.headers  # for whoever inspects it
        mark = Mark(key, request.url, request.body, self._sender.clock.wall(), shown=True)
        self.mark = _marked(request, mark)
        return True

    def _planned(self, plan: Plan) -> Any:
        placed, ready = plan.placed, self._copied()
        for name, text in placed.headers:
            ready.headers[name] = text
        if plan.shown is not None:
            name, text = plan.shown
            self._request.headers[name] = text
        if plan.without:
            ready.headers.pop(plan.without, None)
            self._request.headers.pop(plan.without, None)
        if placed.url is not None:
            ready.url = placed.url
        if placed.body is not None:
            ready.headers["Content-Length"] = str(len(placed.body))
            ready.body = placed.body
        return ready

    def _copied(self) -> Any:
        """The request as it is sent. Of the caller's own nothing changes but that its key stands in
        its headers too. Its cookies are in its headers by now: the jar, which
        is most of what its own `copy` copies, stays behind.
        """
        request = self._request
        ready = request.__class__()
        ready.method, ready.url, ready.hooks = request.method, request.url, request.hooks
        ready.headers = request.headers.copy()
        ready.body = self._body or request.body
        return ready

    def _limited(self, left_s: float) -> Any:
        """The caller's timeout, and no more than is left for connecting, sending and the first
        bytes of the answer together.
        """
        if left_s <= 0:
            raise self._late()
        limits = _limits_of(self._limit)
        total_s = limits.total
        limits.total = min(total_s, left_s) if isinstance(total_s, int | float) else left_s
        return limits

    # -------------------------------------------------------------------------------- the answer

    def _collect(self, response: Any) -> Reply:
        """A whole answer; or its head, where the caller wants to read a success as a stream."""
        status = response.status_code
        if status < 200:  # http.client skips no interim answer but 100, and leaves the rest unread
            response.raw.close()
            raise _errors().ConnectionError(f"an interim answer, {status}, and no other was read")
        if self._stream and status < 400:
            limits = _limits_of(self._limit)
            if limits.total is None:
                _give_time(response.raw, limits.read_timeout)
            return Reply(status, response.headers, b"", response)
        raw = response.raw
        if hasattr(raw, "read1"):
            response.raw = _Watched(raw, self._check)
        try:
            content: bytes = response.content
        except BaseException:
            raw.close()
            raise
        finally:
            response.raw = raw
        return Reply(status, response.headers, content, response)

    def _check(self) -> None:
        if self._sender.clock.monotonic() > self.deadline:
            raise self._late()

    def _broken(self, error: Exception, outer: BaseException | None) -> Broken:
        """What a retry may cure; anything else is raised."""
        errors = _errors()
        cut_short = errors.ChunkedEncodingError, errors.ContentDecodingError
        if isinstance(error, (errors.ConnectionError, errors.Timeout, *cut_short)):
            early = isinstance(error, errors.ConnectTimeout) or came_from_connecting(error, outer)
            return Broken(error, sent=not early)
        raise error

    def _late(self) -> Exception:
        error: Exception = _errors().ReadTimeout(LATE, request=self._request)
        return error


class _Watched:
    """The raw answer of urllib3, read in the pieces that arrive. By itself it would wait until a
    piece is as large as asked for, however long its bytes take to drip in.
    """

    def __init__(self, raw: Any, check: Callable[[], None]) -> None:
        self._raw = raw
        self._check = check

    def stream(self, amt: int, decode_content: bool | None = None) -> Iterator[bytes]:
        while chunk := self._raw.read1(amt, decode_content=decode_content):
            yield chunk
            self._check()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


@functools.cache
def _errors() -> Any:
    return sys.modules["requests"].exceptions


def _limits_of(limit: Any) -> Any:
    """A timeout as requests takes it, in the form of urllib3, which alone knows a total."""
    timeouts = sys.modules["requests"].adapters.TimeoutSauce
    match limit:
        case timeouts():
            return limit.clone()
        case (connect_s, read_s):
            return timeouts(connect=connect_s, read=read_s)
        case _:
            return timeouts(connect=limit, read=limit)


def _give_time(raw: Any, read_s: object) -> None:
    """Whoever reads this answer has so long for each read: its delivery is over. urllib3 tells the
    socket once, when the answer begins.
    """
    line = getattr(getattr(raw, "connection", None), "sock", None)
    if line is None:  # of a server that closes it, only the answer knows
        line = getattr(getattr(getattr(raw, "_fp", None), "fp", None), "raw", None)
        line = getattr(line, "_sock", None)
    if line is not None:
        line.settimeout(read_s if isinstance(read_s, int | float) else None)


def _body(request: Any, bytes_max: int) -> bytes | None:
    """The bytes that are sent, None where they are a stream. A file that is small enough is read,
    so that it can be sent again.
    """
    match request.body:
        case None:
            return b""
        case bytes() as body:
            return body
        case bytearray() | memoryview() as view:
            return bytes(view)
        case str() as text:
            return text.encode()
        case stream:
            length = request.headers.get("Content-Length") or ""
            if not (length.isdecimal() and int(length) <= bytes_max and hasattr(stream, "read")):
                return None
            return _read(request, stream)


def _must_be_there(request: Any) -> None:
    """Redirected, or sent again: an iterator gives nothing now, and that is another request. Of a
    file, whoever follows a redirect goes back to where it began.
    """
    if isinstance(request.body, Iterator) and not isinstance(request._body_position, int):
        raise _errors().UnrewindableBodyError(
            "this request was not sent: its body is an iterator, which is used up"
        )


def _read(request: Any, stream: Any) -> bytes:
    """All of a file, which is left where it was: whoever follows a redirect goes back there."""
    if hasattr(stream, "seekable") and stream.seekable():
        start = stream.tell()
        body = stream.read()
        stream.seek(start)
    else:
        body = request.body = stream.read()
    return body.encode() if isinstance(body, str) else bytes(body)
