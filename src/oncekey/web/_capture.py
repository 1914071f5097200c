"""Capture: collect a response within limits; a longer one is sent on and not stored."""

from __future__ import annotations

from collections.abc import Iterable

from oncekey._core.record import Answer
from oncekey._core.response_headers import BODILESS

_UNBOUNDED = b"text/event-stream"


class Capture:
    """Collects the response of an application."""

    __slots__ = (
        "_bodiless",
        "_bytes_max",
        "_chunks",
        "_size",
        "body",
        "complete",
        "endless",
        "flowing",
        "has_static_route",
        "headers",
        "matched",
        "status",
    )

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bodiless = False
        self._chunks: list[bytes] = []
        self._size = 0
        self.body: bytes | None = b""
        """The body to store, once it is complete; None if only the fact is stored."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.matched = False
        """Whether a route was found: a 404 is then the handler's, not the router's, which spends
        nothing. Starlette and FastAPI leave `endpoint` or `route` in the scope, Flask its rule in
        the request. Where nothing is left, a 404 counts as the router's.
        """
        self.has_static_route = False
        """Whether that route has no variables: its path is one of few."""
        self.complete = False
        """Whether the application has sent its last byte."""
        self.flowing = False
        """Whether it is too large to store, or endless: the rest is not collected."""
        self.endless = False
        """Whether it is a stream that continues for as long as its client reads."""

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Take the status and headers; they replace a response that had begun."""
        self._chunks, self._size, self.body = [], 0, b""
        self.status = int(status)  # frameworks pass on names of the standard library's for it
        self.headers = [(bytes(name).lower(), bytes(value)) for name, value in headers]
        self._bodiless = self.status in BODILESS
        if self._bodiless:  # no server sends what is forbidden
            self.headers = [line for line in self.headers if line[0] != b"content-length"]
        self.endless = False
        for name, value in self.headers:
            if name == b"content-type" and value.lower().startswith(_UNBOUNDED):
                self.endless = True

    def add(self, chunk: bytes, *, last: bool) -> bool:
        """Collect a part; True when the response is known as far as it is stored."""
        if self.status == 0:
            raise RuntimeError("the application sent a body before it sent a status")
        # Itself, unless it is a view of memory that is used again.
        part = b"" if self._bodiless else bytes(chunk)
        self._chunks.append(part)
        self._size += len(part)
        self.complete = last
        self.flowing = self.endless or self._size > self._bytes_max
        if self.flowing:
            self.body = None
        elif last:
            self.body = b"".join(self._chunks)
            self._chunks = [self.body]
        return last or self.flowing

    def replace(self, answer: Answer) -> None:
        """Put another response in place of the application's."""
        self.status, self.headers = answer.status, list(answer.headers)
        self.body, self.complete = answer.body or b"", True
        self._chunks, self.flowing, self.endless = [self.body], False, False

    def take(self) -> bytes:
        """Return what was collected, to send it, and drop it here."""
        collected = b"".join(self._chunks)
        self._chunks.clear()
        self.body = None
        return collected
