"""Deliver one webhook: a single attempt, within limits, to an allowed address.

    sender = Sender()
    match sender.send(url, signed_headers(id, body, secrets, now), body):
        case Answered(status) if 200 <= status < 300: ...

Each attempt opens its own HTTP/1.1 connection to a checked address, with the URL's Host and TLS
name. It follows no redirects, uses no proxy, keeps no connection alive, and stops at its timeout
however slowly the other side sends.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any, TypeVar

from oncekey._core.backoff import retry_after
from oncekey._core.printable import printable
from oncekey._core.validation import must_be_limits
from oncekey._core.values import value
from oncekey._system.clock import Clock, SystemClock
from oncekey.errors import Misuse
from oncekey.webhooks._address import Destinations, Forbidden, Lookup, Target, system_lookup

T = TypeVar("T")

SEND_BYTES = 65_536
DETAIL_CHARS_MAX = 300
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(r"[\t !-~\x80-\xff]*")
_OWN = {"host", "content-length", "connection", "transfer-encoding"}


@value
class SendLimits:
    """How long one attempt may take, and how much of the response is read."""

    connect_s: float = 5.0
    """Timeout of the DNS lookup, and of connecting to each address, TLS included."""
    total_s: float = 20.0
    head_bytes_max: int = 32_768
    excerpt_bytes_max: int = 4_096
    """How much of the response body is read and returned; the rest stays unread."""
    body_bytes_max: int = 1_048_576

    def __post_init__(self) -> None:
        must_be_limits("SendLimits", asdict(self))


@value
class Answered:
    """The endpoint responded. Only 2xx means that it has the message."""

    status: int
    excerpt: bytes
    """The beginning of the response body."""
    retry_after_s: float | None
    seconds: float

    @property
    def is_delivered(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """Whether the endpoint asks for no further webhooks (410)."""
        return self.status == http.client.GONE


@value
class Unanswered:
    """No response: the endpoint may or may not have the message."""

    reason: str
    seconds: float


@value
class NotSent:
    """Nothing was sent: the URL is forbidden, has no address, or refuses the connection."""

    reason: str
    seconds: float


Sent = Answered | Unanswered | NotSent


def _require_type(name: str, kind: type, given: object) -> None:
    if given is not None and not isinstance(given, kind):
        what = type(given).__name__
        raise Misuse(f"{name}=… takes a {kind.__name__}(…), not a {what}")


def _require_bytes(body: object) -> None:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise Misuse(f"a webhook's body is bytes, as it was signed, not a {type(body).__name__}")


class Sender:
    """Delivers webhooks to the URLs that `destinations` allows. Thread-safe."""

    def __init__(
        self,
        destinations: Destinations | None = None,
        *,
        limits: SendLimits | None = None,
        lookup: Lookup = system_lookup,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        _require_type("destinations", Destinations, destinations)
        _require_type("limits", SendLimits, limits)
        self._destinations = destinations or Destinations()
        self._limits = limits or SendLimits()
        self._lookup = lookup
        self._tls = tls
        self._clock = clock or SystemClock()

    def objection(self, url: str) -> str | None:
        """Return why this URL is forbidden now; None if it is allowed, or its name has no address
        yet. Use it when a URL is registered; every delivery checks again.
        """
        target = self._destinations.target(url)
        if isinstance(target, Forbidden):
            return target.reason
        try:
            found = self._addresses(target, _Attempt(self._limits.total_s, self._clock))
        except (OSError, UnicodeError):
            return None
        return found.reason if isinstance(found, Forbidden) else None

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Sent:
        """POST `body` and return the outcome as a value; only misuse raises."""
        _require_bytes(body)
        if len(body) > self._limits.body_bytes_max:
            raise Misuse(f"a webhook has at most body_bytes_max={self._limits.body_bytes_max}")
        attempt = _Attempt(self._limits.total_s, self._clock)
        target = self._destinations.target(url)
        if isinstance(target, Forbidden):
            return NotSent(f"the URL may not be sent to: {target.reason}", attempt.seconds())
        request = _request(target, headers, body)
        try:
            connection = self._connect(target, attempt)
        except (OSError, UnicodeError) as error:
            return NotSent(_describe_error(error), attempt.seconds())
        if isinstance(connection, Forbidden):
            return NotSent(f"the URL may not be sent to: {connection.reason}", attempt.seconds())
        with closing(connection):
            try:
                attempt.write(connection, request)
                return self._answer(connection, attempt)
            except (OSError, http.client.HTTPException) as error:
                return Unanswered(_describe_error(error), attempt.seconds())

    def _connect(self, target: Target, attempt: _Attempt) -> socket.socket | Forbidden:
        """Connect to a checked address; the name is resolved only here."""
        addresses = self._addresses(target, attempt)
        if isinstance(addresses, Forbidden):
            return addresses
        *others, last = addresses
        for address in others:
            with contextlib.suppress(OSError):
                return self._connect_to(address, target, attempt)
        return self._connect_to(last, target, attempt)

    def _addresses(self, target: Target, attempt: _Attempt) -> list[str] | Forbidden:
        resolve = functools.partial(self._destinations.addresses, target, self._lookup)
        return attempt.call_within(self._limits.connect_s, resolve)

    def _connect_to(self, address: str, target: Target, attempt: _Attempt) -> socket.socket:
        limit_s = attempt.seconds_left(self._limits.connect_s)
        connection = socket.create_connection((address, target.port), timeout=limit_s)
        if not target.is_tls:
            return connection
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(connection.close)
            connection.settimeout(attempt.seconds_left(self._limits.connect_s))
            # By the URL's name, not by the address: that is what the certificate is for.
            tls = self._tls or _usual_tls()
            wrapped = tls.wrap_socket(connection, server_hostname=target.host)
            cleanup.pop_all()
        return wrapped

    def _answer(self, connection: socket.socket, attempt: _Attempt) -> Answered:
        bytes_max = self._limits.head_bytes_max + self._limits.excerpt_bytes_max
        incoming = _Incoming(connection, attempt, bytes_max)
        response = http.client.HTTPResponse(incoming, method="POST")  # type: ignore[arg-type]
        with closing(response):
            _read_head(response)
            excerpt = b"".join(_read_excerpt(response, self._limits.excerpt_bytes_max))
            asked = response.headers.get("Retry-After")
            wait_s = None if asked is None else retry_after(asked, self._clock.wall())
            return Answered(response.status, excerpt, wait_s, attempt.seconds())


@functools.cache
def _usual_tls() -> ssl.SSLContext:
    """Cached, because loading the system's certificates takes longer than most deliveries."""
    return ssl.create_default_context()


class _Attempt:
    """The time budget of one attempt."""

    def __init__(self, total_s: float, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._until = self._began + total_s

    def seconds(self) -> float:
        return self._clock.monotonic() - self._began

    def seconds_left(self, at_most_s: float = float("inf")) -> float:
        left_s = self._until - self._clock.monotonic()
        if left_s <= 0:
            raise TimeoutError("the attempt's time was over")
        return min(left_s, at_most_s)

    def write(self, connection: socket.socket, data: bytes) -> None:
        """Like `sendall`, whose timeout starts again with every piece a TLS socket sends."""
        view = memoryview(data)
        while view:
            connection.settimeout(self.seconds_left())
            view = view[connection.send(view[:SEND_BYTES]) :]

    def call_within(self, limit_s: float, ask: Callable[[], T]) -> T:
        """Run a call that has no timeout of its own (a DNS lookup) in a thread, within `limit_s`.

        A call that takes longer keeps running in its thread; nothing waits for it.
        """
        results: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(ask())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True, name="oncekey-lookup")
        thread.start()
        thread.join(self.seconds_left(limit_s))
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError("the host name was not resolved in time")
        return results[0]


class _Incoming(io.RawIOBase):
    """Reads the response until the attempt's time or bytes run out."""

    def __init__(self, connection: socket.socket, attempt: _Attempt, bytes_max: int) -> None:
        self._connection = connection
        self._attempt = attempt
        self._left = bytes_max

    def makefile(self, mode: str) -> io.BufferedReader:
        """Called by `http.client` in place of a socket's `makefile`."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._left]
        if not view:
            raise http.client.HTTPException("larger than the limit")
        self._connection.settimeout(self._attempt.seconds_left())
        count = self._connection.recv_into(view)
        self._left -= count
        return count


def _read_head(response: http.client.HTTPResponse) -> None:
    """Read the head of the final response. `http.client` skips only 100 of the interim responses
    that may come first; this skips all of them, such as 103 Early Hints.
    """
    response.begin()
    while response.status < 200 and response.status != http.client.SWITCHING_PROTOCOLS:
        response.headers = response.msg = None  # type: ignore[assignment]  # as before `begin`
        response.begin()


def _read_excerpt(response: http.client.HTTPResponse, bytes_max: int) -> Iterator[bytes]:
    """Yield the start of the body. Errors are ignored: only the status counts."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while bytes_max > 0 and (piece := response.read1(bytes_max)):
            yield piece
            bytes_max -= len(piece)


def _request(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    return b"".join([*_head_lines(target, headers, body), b"\r\n", body])


def _head_lines(target: Target, headers: Mapping[str, str], body: bytes) -> Iterator[bytes]:
    yield f"POST {target.path} HTTP/1.1\r\n".encode("ascii")
    yield f"Host: {target.authority}\r\n".encode("ascii")
    yield b"Content-Length: %d\r\nConnection: close\r\n" % len(body)
    for name, text in headers.items():
        if not _NAME.fullmatch(name) or not _LINE.fullmatch(text) or name.lower() in _OWN:
            raise Misuse(f"a webhook cannot carry the header {name!r} like this")
        yield f"{name}: {text}\r\n".encode("latin-1")


def _describe_error(error: Exception) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            text = f"its certificate is not trusted: {error.verify_message}"
        case TimeoutError():
            text = f"it took too long: {error}"
        case http.client.HTTPException():
            text = f"its response is not HTTP: {type(error).__name__}: {error}"
        case _:
            text = f"{type(error).__name__}: {error}"
    return printable(text, DETAIL_CHARS_MAX)
