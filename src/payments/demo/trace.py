"""Trace: what happens to a request in the system, for the checkout page that shows it.

Each entry names a part (client, limiter, key, handler, network, webhook), what it did and for which
request. Entries come from the access middleware, oncekey's events, the client of the card network
and the webhook listener. Only the last ones are stored, in this process only, and only on the
embedded server with the demo.
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

ENTRIES_MAX = 512
KEYS_MAX = 1_000
LISTENERS_MAX = 32
STREAM_S = 2.0
"""How long one stream lasts. Listeners reconnect at once and miss nothing; a server that shuts down
waits for no listener longer than this.
"""
RECONNECT_MS = 100
TRACED_PATH = "/v1/charges"
WITH_EVENT = (200, 402)
"""Statuses of a charge that succeeded or failed, and so has an event."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One thing that happened."""

    number: int
    request: int | None
    """Counted by this process; None if no request did it, but a consequence of one."""
    key: str | None
    part: str
    kind: str
    """busy, good, warn or bad: how it looks."""
    says: str


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """The request an entry is about."""

    request: int
    key: str | None


_current: ContextVar[TracedRequest | None] = ContextVar("payments_trace", default=None)


class TraceLog:
    """Stores the last entries and streams them to listeners."""

    def __init__(self) -> None:
        self._entries: deque[TraceEntry] = deque(maxlen=ENTRIES_MAX)
        self._numbers = itertools.count(1)
        self._requests = itertools.count(1)
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def requests_of(self, key: str) -> int:
        """Return how many requests came with this key."""
        return self._seen.get(key, 0)

    def add(self, part: str, kind: str, says: str, *, key: str | None = None) -> None:
        """Add an entry, from any thread. `key`: for a request that is not the current one."""
        traced = _current.get()
        request, key = (traced.request, traced.key) if traced else (None, key)
        self._entries.append(TraceEntry(next(self._numbers), request, key, part, kind, says))
        for event, loop in list(self._listeners.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    # ---------------------------------------------------------------------------- middleware

    def wrap_outside(self, app: App) -> App:
        """Wrap everything: trace requests and responses."""

        async def traced_app(scope: Scope, receive: Receive, send: Send) -> None:
            if not _is_traced(scope):
                return await app(scope, receive, send)
            key = _key(scope)
            reset = _current.set(TracedRequest(next(self._requests), key))
            try:
                self._count(key)
                self.add("client", "busy", "a request arrives")
                await app(scope, receive, self._trace_responses(send))
            finally:
                _current.reset(reset)

        return traced_app

    def wrap_inside(self, app: App) -> App:
        """Wrap what is behind the access middleware: trace accepted requests."""

        async def traced_app(scope: Scope, receive: Receive, send: Send) -> None:
            if _current.get() is not None:
                self.add("limiter", "good", "accepted: valid key, within the limits")
            await app(scope, receive, send)

        return traced_app

    def _trace_responses(self, send: Send) -> Send:
        async def send_traced(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                self._trace_status(message["status"], dict(message["headers"]))

        return send_traced

    def _trace_status(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status == 429:
            self.add("limiter", "warn", "refused: too many requests. No key is spent")
        is_replay = headers.get(b"idempotent-replayed") == b"true"
        kind = "good" if status < 400 else "warn" if status < 500 else "bad"
        self.add("client", kind, f"gets {status}{', the stored response' if is_replay else ''}")

    def _count(self, key: str | None) -> None:
        if key is None:
            return
        self._seen[key] = self._seen.pop(key, 0) + 1
        if len(self._seen) > KEYS_MAX:
            self._seen.popitem(last=False)

    # --------------------------------------------------------------------- hooks

    def __call__(self, event: events.Event) -> None:
        """Handle events, as a hook of oncekey's middleware and of the network's client."""
        if _current.get() is None:  # another route, or recovery
            return
        match event:
            case Attempted():
                self._trace_network_call(event)
            case events.Started(attempt=attempt, fence=fence):
                self.add("key", "good", f"claimed: attempt {attempt}, fence {fence}")
                self.add("handler", "busy", "runs")
            case events.TakenOver():
                self.add("key", "warn", "taken over from an attempt that died")
            case events.Completed(status=status):
                self.add("handler", "good", f"done: {status}, recorded together with its rows")
                if status in WITH_EVENT:
                    self.add("webhook", "busy", "an event is written together with the charge")
            case events.Replayed():
                self.add("key", "good", "known: the stored response, nothing runs")
            case events.Declined(reason=reason):
                self.add("key", "warn", f"refused: {reason}")
            case events.Released():
                self.add("handler", "warn", "did not finish: a retry continues it")
            case events.LeaseWasLost():
                self.add("key", "warn", "an attempt was too late: its writes are refused")

    def _trace_network_call(self, event: Attempted) -> None:
        retry = "" if event.retry_in_s is None else "; retried with the same key"
        if event.status is None:
            self.add("network", "bad", f"no answer ({event.error}){retry}")
        elif event.status >= 400:
            self.add("network", "bad", f"answers {event.status}{retry}")
        elif event.replayed:
            self.add("network", "good", "knows this key: charged before, not again")
        else:
            self.add("network", "good", "charges the card")

    # ------------------------------------------------------------------------------ listeners

    @property
    def is_full(self) -> bool:
        return len(self._listeners) >= LISTENERS_MAX

    async def stream(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """Stream entries after number `after`, or from now on, as server-sent events."""
        latest = self._entries[-1].number if self._entries else 0
        last = (
            latest if after is None else min(after, latest)
        )  # the number may be another process's
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        self._listeners[changed] = loop
        try:
            yield b"retry: %d\nid: %d\n\n" % (RECONNECT_MS, last)
            async with asyncio.timeout(STREAM_S):
                while True:
                    for entry in [each for each in self._entries if each.number > last]:
                        last = entry.number
                        yield b"id: %d\ndata: %s\n\n" % (last, json.dumps(asdict(entry)).encode())
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return
        finally:
            del self._listeners[changed]


def _is_traced(scope: Scope) -> bool:
    """Whether the request may be the page's; keys of others would displace its keys."""
    return bool(
        scope["type"] == "http"
        and scope["method"] == "POST"
        and scope["path"] == TRACED_PATH
        and read_key(scope["headers"]) == LOCAL_KEY
    )


def _key(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            key: str = value.decode("latin-1")
            return key
    return None
