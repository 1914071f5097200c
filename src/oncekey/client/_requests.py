"""Send requests of the library requests and read its responses, without importing it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from oncekey._system.probes import probe
from oncekey.client._classify import NoResponse, WholeResponse
from oncekey.client._errors import failed_to_connect
from oncekey.client._key_placement import DELIVERY, OutgoingRequest, RequestMark, key_header
from oncekey.client._sender import TIMED_OUT, DeliveryPlan, Outcome, RequestSender

_MARK = DELIVERY
"""A key among the request's hooks, because requests copies those for a redirect."""


SendFunction = Callable[[Any, Any], Any]
"""Sends a request with a timeout."""


def mark_of(request: Any) -> RequestMark | None:
    """Return the mark that an earlier request left on this one."""
    mark: RequestMark | None = request.hooks.get(_MARK)
    return mark


def _leave_mark(request: Any, mark: RequestMark) -> RequestMark:
    """Put the mark on this request and its later copies only: the request it was copied from may
    become a different one.
    """
    request.hooks = {**request.hooks, _MARK: mark}
    return mark


class Exchange:
    """One request and its attempts."""

    attempts = 1
    gave_up: str | None = None
    first = True
    """Nothing was sent with this key before."""

    def __init__(
        self, request: Any, sender: RequestSender, send: SendFunction, stream: bool, limit: Any
    ) -> None:
        """`limit` is the caller's timeout."""
        self._request = request
        self._sender = sender
        self._send = send
        self._stream = stream
        self._limit = limit
        self.sent_at, self.deadline = sender.begin()
        self._body = _body(request, sender.body_bytes_max)
        earlier_mark = mark_of(request)
        if earlier_mark is not None and self._body is None:
            _require_body(request)
        if (
            earlier_mark is not None
            or sender.header is None
            or not self._take_new_key(sender.header)
        ):
            if earlier_mark is not None:
                earlier_mark = _leave_mark(request, earlier_mark.for_resend(request))
                self.deadline, self.attempts = (
                    earlier_mark.deadline(self.deadline),
                    earlier_mark.attempts,
                )
            self.mark, self.first = self.plan.mark, self.plan.first
            self._prepared = self._apply_plan(self.plan)

    @functools.cached_property
    def plan(self) -> DeliveryPlan:
        """How the request is sent. May be read after sending: the mark is on the request."""
        request = self._request
        outgoing = OutgoingRequest(request.method, request.url, request.headers, self._body)
        plan = self._sender.plan(outgoing, mark_of(request), request.body)
        if plan.mark is not None:
            _leave_mark(request, plan.mark)
        return plan

    def attempt(self, left_s: float) -> WholeResponse | NoResponse:
        """Send the request now, within `left_s` seconds."""
        probe("before_request")
        outer = sys.exc_info()[1]
        try:
            return self._collect(self._send(self._prepared, self._timeout_within(left_s)))
        except Exception as error:
            return self._as_no_response(error, outer)
        finally:
            probe("after_answer")

    def finish_response(self, response: Any) -> Any:
        """Attach the delivery and the caller's own request to the response. Code that answers a
        challenge (Digest) resends a copy of the response's request.
        """
        response.oncekey, response.request = self, self._request
        if self._prepared.url is not self._request.url:  # it has the key, and errors show the URL
            response.url = self._request.url
        if 300 <= response.status_code < 400 and self.mark is not None:
            left = self.mark.after_redirect(self._request, self.deadline, self.attempts - 1)
            is_visible = left.stays_visible_after(response.headers.get("location"))
            if left.is_visible and not is_visible:
                self._request.headers.pop(key_header(self._sender.profile), None)
            _leave_mark(self._request, replace(left, is_visible=is_visible))
        return response

    def outcome(self, response: Any) -> Outcome:
        key = None if self.mark is None else self.mark.key
        return self._sender.outcome(key, self.attempts, response.headers, self.gave_up)

    # ------------------------------------------------------------------------------- the request

    def _take_new_key(self, header: str) -> bool:
        """Handle the usual request: it has no key yet, and its key goes into a header."""
        request = self._request
        if header in request.headers:
            return False
        self._prepared = prepared = self._copy_request()
        prepared.headers[header] = key = self._sender.new_key()
        request.headers = prepared.headers  # so that the caller can see the key
        mark = RequestMark(
            key, request.url, request.body, self._sender.clock.wall(), is_visible=True
        )
        self.mark = _leave_mark(request, mark)
        return True

    def _apply_plan(self, plan: DeliveryPlan) -> Any:
        changes, prepared = plan.changes, self._copy_request()
        for name, text in changes.headers:
            prepared.headers[name] = text
        if plan.visible_header is not None:
            name, text = plan.visible_header
            self._request.headers[name] = text
        if plan.removed_header:
            prepared.headers.pop(plan.removed_header, None)
            self._request.headers.pop(plan.removed_header, None)
        if changes.url is not None:
            prepared.url = changes.url
        if changes.body is not None:
            prepared.headers["Content-Length"] = str(len(changes.body))
            prepared.body = changes.body
        return prepared

    def _copy_request(self) -> Any:
        """Copy the request for sending. The caller's own request only gets the key's header. The
        cookies are in the headers already, so the jar, most of the cost of `copy`, is left out.
        """
        request = self._request
        prepared = request.__class__()
        prepared.method, prepared.url, prepared.hooks = request.method, request.url, request.hooks
        prepared.headers = request.headers.copy()
        prepared.body = self._body or request.body
        return prepared

    def _timeout_within(self, left_s: float) -> Any:
        """Return the caller's timeout, with a total of `left_s` for connecting, sending and the
        first bytes of the response.
        """
        if left_s <= 0:
            raise self._timeout_error()
        limits = _urllib3_timeout(self._limit)
        total_s = limits.total
        limits.total = min(total_s, left_s) if isinstance(total_s, int | float) else left_s
        return limits

    # -------------------------------------------------------------------------------- the answer

    def _collect(self, response: Any) -> WholeResponse:
        """Read a complete response; only its head if the caller wants to stream a success."""
        status = response.status_code
        if status < 200:  # http.client skips 100 but no other interim response
            response.raw.close()
            raise _errors().ConnectionError(f"only an interim response, {status}, was read")
        if self._stream and status < 400:
            limits = _urllib3_timeout(self._limit)
            if limits.total is None:
                _restore_socket_timeout(response.raw, limits.read_timeout)
            return WholeResponse(status, response.headers, b"", response)
        raw = response.raw
        if hasattr(raw, "read1"):
            response.raw = _CheckedBody(raw, self._check)
        try:
            content: bytes = response.content
        except BaseException:
            raw.close()
            raise
        finally:
            response.raw = raw
        return WholeResponse(status, response.headers, content, response)

    def _check(self) -> None:
        if self._sender.clock.monotonic() > self.deadline:
            raise self._timeout_error()

    def _as_no_response(self, error: Exception, outer: BaseException | None) -> NoResponse:
        """Convert errors that a retry may fix; raise all others."""
        errors = _errors()
        cut_short = errors.ChunkedEncodingError, errors.ContentDecodingError
        if isinstance(error, (errors.ConnectionError, errors.Timeout, *cut_short)):
            not_sent = isinstance(error, errors.ConnectTimeout) or failed_to_connect(error, outer)
            return NoResponse(error, sent=not not_sent)
        raise error

    def _timeout_error(self) -> Exception:
        error: Exception = _errors().ReadTimeout(TIMED_OUT, request=self._request)
        return error


class _CheckedBody:
    """A urllib3 response that is read as its bytes arrive and checks the deadline after each piece.
    urllib3's own `stream` waits until a piece has the requested size, however slowly it arrives.
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


def _urllib3_timeout(limit: Any) -> Any:
    """Convert a timeout of requests to one of urllib3, which supports a total."""
    timeouts = sys.modules["requests"].adapters.TimeoutSauce
    match limit:
        case timeouts():
            return limit.clone()
        case (connect_s, read_s):
            return timeouts(connect=connect_s, read=read_s)
        case _:
            return timeouts(connect=limit, read=limit)


def _restore_socket_timeout(raw: Any, read_s: object) -> None:
    """Give the caller's read timeout back to the socket: the delivery is over. urllib3 sets the
    socket's timeout only once, when the response begins.
    """
    connection = getattr(getattr(raw, "connection", None), "sock", None)
    if connection is None:  # the server closes it: only the response still has it
        connection = getattr(getattr(getattr(raw, "_fp", None), "fp", None), "raw", None)
        connection = getattr(connection, "_sock", None)
    if connection is not None:
        connection.settimeout(read_s if isinstance(read_s, int | float) else None)


def _body(request: Any, bytes_max: int) -> bytes | None:
    """Return the body's bytes, or None for a stream. A small enough file is read into memory, so
    that it can be resent.
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
            return _read_file(request, stream)


def _require_body(request: Any) -> None:
    """Refuse to resend an iterator: it is used up, so this would be a different request. A file is
    rewound by requests.
    """
    if isinstance(request.body, Iterator) and not isinstance(request._body_position, int):
        raise _errors().UnrewindableBodyError(
            "this request was not sent: its body is an iterator, which is used up"
        )


def _read_file(request: Any, stream: Any) -> bytes:
    """Read all of a file and restore its position, to which requests rewinds for a redirect."""
    if hasattr(stream, "seekable") and stream.seekable():
        start = stream.tell()
        body = stream.read()
        stream.seek(start)
    else:
        body = request.body = stream.read()
    return body.encode() if isinstance(body, str) else bytes(body)
