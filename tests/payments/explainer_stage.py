"""A stage for the explainer: the real middleware on a real store, a network and a client whose
every move a script decides, and a recorder that writes down what can be seen after each.

Nothing that is recorded is made up: requests and answers are those that went through the
middleware, the record is read from the store, charges are counted by the card network, and events
are the engine's own. Only captions are written by hand. Time is the store's clock, and moves when
the script says so; a process that dies takes no further step, which is all that others can see of
a death.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields, replace
from typing import Any

import oncekey
from oncekey import Answer, Policy, Versions
from oncekey._core.op import run
from oncekey._core.verbs import Scan
from oncekey._system.clock import FakeClock
from oncekey.events import Event, StoreAsked
from oncekey.stores.memory import MemoryStore
from oncekey.web._asgi_messages import Receive, Scope, Send
from oncekey.web.asgi import IdempotencyMiddleware

WAIT_S_MAX = 30.0
LEASE_S = 30.0
MARKED = ("idempotent-replayed", "retry-after")

versions = Versions()


@versions.upcast(1, 2)
def in_minor_units(answer: Answer) -> Answer:
    """Release 2 answers {"amount": {"minor": 2000, "currency": "eur"}}."""
    charge = json.loads(answer.body or b"{}")
    charge["amount"] = {"minor": charge["amount"], "currency": "eur"}
    return replace(answer, body=json.dumps(charge).encode())


class CardNetwork:
    """Knows nothing of oncekey: it tells retries by the key that is forwarded, as networks do."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.asked = 0

    def authorise(self, key: str, amount: int) -> str:
        self.asked += 1
        self.charges.setdefault(key, amount)
        return f"ch_{list(self.charges).index(key) + 1}"


class Stage:
    """One scenario on its way to becoming a recording."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.network = CardNetwork()
        self.servers: dict[str, Server] = {}
        self.frames: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._start = self.clock.wall()

    def server(self, name: str, version: int = 1) -> Server:
        self.servers[name] = Server(self, name, version)
        return self.servers[name]

    def show(self, caption: str, detail: str, **arrow: Any) -> None:
        """The next picture: what can be seen now."""
        self.frames.append(
            {
                "at_s": round(self.clock.wall() - self._start, 3),
                "caption": caption,
                "detail": detail,
                "arrow": arrow or None,
                "servers": {name: server.snapshot() for name, server in self.servers.items()},
                "record": self._record(),
                "charges": list(self.network.charges.values()),
                "network_asked": self.network.asked,
                "events": self.events,
            }
        )
        self.events = []

    def record_event(self, server: str, event: Event) -> None:
        if isinstance(event, StoreAsked):
            return
        # What time it took is the real clock's, and not worth recording.
        values = {
            field.name: getattr(event, field.name)
            for field in fields(event)
            if field.name not in ("operation", "key_hash", "named")
            and not field.name.endswith("_s")
        }
        self.events.append({"server": server, "event": type(event).__name__, **values})

    def _record(self) -> dict[str, Any] | None:
        [found] = run(self.store.perform([Scan(10)]), self.store.connect().ask)
        if not found:
            return None
        [record] = found
        return {
            "state": "lapsed" if record.lapsed else str(record.state),
            "fence": record.fence,
            "attempt": record.attempt,
            "lease_left_s": max(0.0, round(record.lease_left_s, 3)) if _runs(record) else None,
            "status": record.answer.status if record.answer else None,
            "schema_version": record.schema_version,
        }


def _runs(record: Any) -> bool:
    return str(record.state) == "running"


class Server:
    """A process that runs the middleware, and a handler that stops where it is told to."""

    def __init__(self, stage: Stage, name: str, version: int) -> None:
        self.stage, self.name, self.version = stage, name, version
        self.state = "waits"
        self._stops: dict[str, tuple[asyncio.Event, asyncio.Event]] = {}
        self.asgi = IdempotencyMiddleware(
            self._charge,
            store=stage.store,
            tenant=oncekey.single_tenant,
            policy=Policy(
                required=True,
                recovery="resume",
                lease_s=LEASE_S,
                schema_version=version,
                upcasts=versions,
            ),
            hooks=[lambda event: stage.record_event(name, event)],
            recent_s=0.0,
        )

    def snapshot(self) -> dict[str, Any]:
        return {"state": self.state, "release": self.version}

    def stop_at(self, point: str) -> None:
        """Stand still when the handler comes to this point."""
        self._stops[point] = asyncio.Event(), asyncio.Event()

    async def wait_until_stopped(self, point: str) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await self._stops[point][0].wait()

    def go_on(self, point: str) -> None:
        self.state = "runs"
        self._stops.pop(point)[1].set()

    async def _charge(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.state = "runs"
        asked = json.loads((await receive())["body"])
        await self._come_to("before charging")
        key = oncekey.current().child_key("authorise")
        charge: dict[str, Any] = {"id": self.stage.network.authorise(key, asked["amount"])}
        await self._come_to("after charging")
        minor = {"minor": asked["amount"], "currency": "eur"}
        charge["amount"] = asked["amount"] if self.version == 1 else minor
        lines = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": json.dumps(charge).encode()})
        self.state = "waits"

    async def _come_to(self, point: str) -> None:
        if point in self._stops:
            reached, free = self._stops[point]
            reached.set()
            await free.wait()


class Sent:
    """One request that is under way from a client, who is told what the script lets through."""

    def __init__(self, server: Server, key: str, amount: int = 2000) -> None:
        self.server = server
        self.asks = {
            "line": "POST /charges",
            "key": key,
            "body": json.dumps({"amount": amount, "currency": "eur"}),
        }
        self._messages: list[Any] = []
        self._task = asyncio.create_task(self._run(key, self.asks["body"].encode()))

    @property
    def arrow(self) -> dict[str, Any]:
        return {"from": "client", "to": self.server.name, "request": self.asks}

    async def answer(self) -> dict[str, Any]:
        """What the server says: an arrow back."""
        async with asyncio.timeout(WAIT_S_MAX):
            await self._task
        start, *parts = self._messages
        lines = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        body = json.loads(b"".join(part["body"] for part in parts))
        says = body if start["status"] < 400 else {"type": body["type"], "title": body["title"]}
        return {
            "from": self.server.name,
            "to": "client",
            "answer": {
                "status": start["status"],
                "headers": {name: lines[name] for name in MARKED if name in lines},
                "body": json.dumps(says),
            },
        }

    async def _run(self, key: str, body: bytes) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/charges",
            "raw_path": b"/charges",
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"idempotency-key", key.encode()),
            ],
        }
        queue = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return queue.pop() if queue else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            self._messages.append(message)

        await self.server.asgi(scope, receive, send)
