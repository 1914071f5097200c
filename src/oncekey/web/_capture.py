"""Capture: collects an answer within limits, and knows when it must be let through unkept."""

from __future__ import annotations

from collections.abc import Iterable

from oncekey._core.record import Answer
from oncekey._core.response_headers import BODILESS

_UNBOUNDED = b"text/event-stream"


class Capture:
    """An answer as it comes from the application."""

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
        """What is kept, once that is known: all of it, or None where only the fact is."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.matched = False
        """A route was found: a 404 is then the handler's word, not the router's, which spends
        nothing. Starlette and FastAPI leave `endpoint` or `route` in the scope, Flask its rule in
        the request. Where nothing is left, a 404 counts as the router's.
        """
        self.has_static_route = False
        """That route has no variables: its path is one of few."""
        self.complete = False
        """The application has said its last byte."""
        self.flowing = False
        """Too large to keep, or endless: what follows is not collected any more."""
        self.endless = False
        """Goes on for as long as somebody reads it."""

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head of the answer; of another that had begun nothing is left."""
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
        """Collect a part; True when the answer is known as far as it will be kept."""
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
        """Another answer stands in for the application's: what it still says is not collected."""
        self.status, self.headers = answer.status, list(answer.headers)
        self.body, self.complete = answer.body or b"", True
        self._chunks, self.flowing, self.endless = [self.body], False, False

    def take(self) -> bytes:
        """Hand over what was collected, to be sent: it is not kept here any more."""
        collected = b"".join(self._chunks)
        self._chunks.clear()
        self.body = None
        return collected
