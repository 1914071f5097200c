"""Watch: what happens to a request on its way through the system, for the page that shows it.

Each notice names a part (client, limiter, key, handler, network, webhook), says what it did, and
which request it did it for. They come from where things happen: from around the gate, from
oncekey's own events, from the client that asks the card network, and from who is told of charges by
webhooks. Only the last ones are kept, in this process
alone, and only where the embedded server runs for somebody who tries it out.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from oncekey import events
from oncekey.client import Attempted
from payments.access.accounts import LOCAL_KEY
from payments.access.auth import read_key
from payments.access.middleware import App, Message, Receive, Scope, Send

NOTICES_MAX = 512
KEYS_MAX = 1_000
LISTENERS_MAX = 32
STREAM_S = 2.0
"""How long one stream lasts. Whoever listens comes back at once and misses nothing; a server that
shuts down waits for no listener longer than this.
"""
COME_BACK_MS = 100
WATCHED = "/v1/charges"
SETTLED = (200, 402)
"""A charge that succeeded or failed; each of them has an event."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One thing that happened."""

    number: int
    request: int | None
    """Counted by this process; None if it is no request's doing, but follows from one."""
    key: str | None
    part: str
    kind: str
    """busy, good, warn or bad: how it looks."""
    says: str


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """The request that something happens for."""

    request: int
    key: str | None


_trace: ContextVar[TracedRequest | None] = ContextVar("payments_trace", default=None)


class TraceLog:
    """Keeps the last notices, and tells them to whoever listens."""

    def __init__(self) -> None:
        self._notices: deque[TraceEntry] = deque(maxlen=NOTICES_MAX)
        self._numbers = itertools.count(1)
        self._requests = itertools.count(1)
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def requests_of(self, key: str) -> int:
        """How many requests have come with this key."""
        return self._seen.get(key, 0)

    def add(self, part: str, kind: str, says: str, *, key: str | None = None) -> None:
        """From any thread. `key`: whose it is, where that is not the request that is under way."""
        trace = _trace.get()
        request, key = (trace.request, trace.key) if trace else (None, key)
        self._notices.append(TraceEntry(next(self._numbers), request, key, part, kind, says))
        for event, loop in list(self._listeners.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    # ---------------------------------------------------------------------------- around the gate

    def outside(self, app: App) -> App:
        """In front of everything: a request comes, an answer goes."""

        async def traced_app(scope: Scope, receive: Receive, send: Send) -> None:
            if not _concerns(scope):
                return await app(scope, receive, send)
            key = _key(scope)
            reset = _trace.set(TracedRequest(next(self._requests), key))
            try:
                self._count(key)
                self.add("client", "busy", "a request arrives")
                await app(scope, receive, self._tracing(send))
            finally:
                _trace.reset(reset)

        return traced_app

    def inside(self, app: App) -> App:
        """Behind the gate: whoever comes here was let in."""

        async def traced_app(scope: Scope, receive: Receive, send: Send) -> None:
            if _trace.get() is not None:
                self.add("limiter", "good", "let in: known, and within the limits")
            await app(scope, receive, send)

        return traced_app

    def _tracing(self, send: Send) -> Send:
        async def send_traced(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                self._trace_status(message["status"], dict(message["headers"]))

        return send_traced

    def _trace_status(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status == 429:
            self.add("limiter", "warn", "refused: too many requests. No key is spent")
        replay_body = headers.get(b"idempotent-replayed") == b"true"
        kind = "good" if status < 400 else "warn" if status < 500 else "bad"
        self.add(
            "client", kind, f"is answered {status}{', the kept answer' if replay_body else ''}"
        )

    def _count(self, key: str | None) -> None:
        if key is None:
            return
        self._seen[key] = self._seen.pop(key, 0) + 1
        if len(self._seen) > KEYS_MAX:
            self._seen.popitem(last=False)

    # --------------------------------------------------------------------- from where it happens

    def __call__(self, event: events.Event) -> None:
        """A hook, for oncekey's middleware and for the client of the network."""
        if _trace.get() is None:  # another route, or recovery: nobody watches that
            return
        match event:
            case Attempted():
                self._asked_network(event)
            case events.Started(attempt=attempt, fence=fence):
                self.add("key", "good", f"claimed: attempt {attempt}, fence {fence}")
                self.add("handler", "busy", "runs")
            case events.TakenOver():
                self.add("key", "warn", "taken over from an attempt that died")
            case events.Completed(status=status):
                self.add("handler", "good", f"done: {status}, recorded together with its rows")
                if status in SETTLED:
                    self.add("webhook", "busy", "an event is written, together with the charge")
            case events.Replayed():
                self.add("key", "good", "known: the kept answer, nothing runs")
            case events.Declined(reason=reason):
                self.add("key", "warn", f"refused: {reason}")
            case events.Released():
                self.add("handler", "warn", "could not end: a retry continues it")
            case events.LeaseWasLost():
                self.add("key", "warn", "an attempt was too late: its writes are refused")

    def _asked_network(self, event: Attempted) -> None:
        replay_body = "" if event.retry_in_s is None else "; asked again, with the same key"
        if event.status is None:
            self.add("network", "bad", f"no answer ({event.error}){replay_body}")
        elif event.status >= 400:
            self.add("network", "bad", f"answers {event.status}{replay_body}")
        elif event.replayed:
            self.add("network", "good", "knows this key: charged before, not again")
        else:
            self.add("network", "good", "charges the card")

    # ------------------------------------------------------------------------------ for who listens

    @property
    def full(self) -> bool:
        return len(self._listeners) >= LISTENERS_MAX

    async def stream(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """Server-sent events: what was noticed since the notice `after`; None: from now on."""
        latest = self._notices[-1].number if self._notices else 0
        known = latest if after is None else min(after, latest)  # it may be another process's
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        self._listeners[changed] = loop
        try:
            yield b"retry: %d\nid: %d\n\n" % (COME_BACK_MS, known)
            async with asyncio.timeout(STREAM_S):
                while True:
                    for notice in [each for each in self._notices if each.number > known]:
                        known = notice.number
                        yield b"id: %d\ndata: %s\n\n" % (known, json.dumps(asdict(notice)).encode())
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return
        finally:
            del self._listeners[changed]


def _concerns(scope: Scope) -> bool:
    """Whether it may be the page's: others' keys would push out those that it asks for."""
    return bool(
        scope["type"] == "http"
        and scope["method"] == "POST"
        and scope["path"] == WATCHED
        and read_key(scope["headers"]) == LOCAL_KEY
    )


def _key(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            key: str = value.decode("latin-1")
            return key
    return None
