"""A server that remembers keys and does everything else wrong, in virtual time.

It stands where a client library's own transport would: requests and answers are the library's, only
the network between them is made up. Time passes when it says so, and when the client pauses.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oncekey._system.clock import FakeClock

HOME = "https://api.test"
AWAY = "https://elsewhere.test"

IN_FLIGHT = {"type": "urn:oncekey:problem:in-flight", "retryable": True, "detail": "running"}
MISMATCH = {"type": "urn:oncekey:problem:mismatch", "retryable": False, "detail": "another"}


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one attempt."""

    kind: str
    """drop, status, in-flight, truncate, drip, redirect, redirect-away."""
    processed: bool = False
    """Whether the server carries the request out before it goes wrong."""
    seconds: float = 0.0
    status: int = 503
    retry_after: str | None = None


class Hostile:
    """Serves `faults`, one per attempt, then behaves."""

    def __init__(self, library: Any, clock: FakeClock, faults: Sequence[Fault] = ()) -> None:
        self._library = library
        self._clock = clock
        self._faults = list(faults)
        self.attempts: list[tuple[float, str, str | None]] = []
        """When, to which origin, with which key."""
        self.effects: Counter[str] = Counter()
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

    @property
    def keys(self) -> set[str | None]:
        return {key for _, origin, key in self.attempts if origin == HOME}

    def handle_request(self, request: Any) -> Any:
        origin = f"{request.url.scheme}://{request.url.host}"
        key = request.headers.get("idempotency-key")
        self.attempts.append((self._clock.monotonic(), origin, key))
        self.paths.append(str(request.url))
        self.bodies.append(b"".join(request.stream))
        read_s: float = request.extensions["timeout"]["read"]
        if origin != HOME:
            return self._answer(200, {})
        fault = self._faults.pop(0) if self._faults else Fault("none")
        if fault.processed or fault.kind in ("none", "truncate", "drip"):
            assert key is not None
            self.effects[key] = 1  # as a server does that remembers keys
        return self._wrong(fault, read_s)

    async def handle_async_request(self, request: Any) -> Any:
        return self.handle_request(request)

    def close(self) -> None: ...

    def __exit__(self, *args: object) -> None: ...

    def __enter__(self) -> Hostile:
        return self

    async def __aenter__(self) -> Hostile:
        return self

    async def __aexit__(self, *args: object) -> None: ...

    def _wrong(self, fault: Fault, read_s: float) -> Any:
        if fault.kind != "drip":
            self._clock.advance(min(fault.seconds, read_s))
            if fault.seconds > read_s:
                raise self._library.ReadTimeout("too slow")
        lines = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
        match fault.kind:
            case "drop":
                raise self._library.RemoteProtocolError("server disconnected")
            case "status":
                return self._answer(fault.status, {"detail": "sick"}, lines)
            case "in-flight":
                return self._answer(409, IN_FLIGHT, lines)
            case "redirect":
                return self._answer(307, {}, {"location": f"{HOME}/moved"})
            case "redirect-away":
                return self._answer(308, {}, {"location": f"{AWAY}/moved"})
            case _:
                return self._slowly(fault, read_s)

    def _slowly(self, fault: Fault, read_s: float) -> Any:
        raw = json.dumps({"done": True}).encode()

        def chunks() -> Iterator[bytes]:
            for byte in raw[: len(raw) // 2] if fault.kind == "truncate" else raw:
                if fault.kind == "drip":
                    self._clock.advance(min(fault.seconds, read_s))
                    if fault.seconds > read_s:
                        raise self._library.ReadTimeout("too slow")
                yield bytes([byte])
            if fault.kind == "truncate":
                raise self._library.RemoteProtocolError("incomplete body")

        async def async_chunks() -> AsyncIterator[bytes]:
            for chunk in chunks():
                yield chunk

        bases = self._library.SyncByteStream, self._library.AsyncByteStream
        parts = {"__iter__": lambda _: chunks(), "__aiter__": lambda _: async_chunks()}
        stream = type("Slow", bases, parts)()
        lines = {"content-type": "application/json", "content-length": str(len(raw))}
        return self._library.Response(201, headers=lines, stream=stream)

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> Any:
        lines = {"content-type": "application/problem+json", **(headers or {})}
        raw = json.dumps(body).encode()
        made = self._library.ByteStream(raw)
        return self._library.Response(status, headers=lines, stream=made)
