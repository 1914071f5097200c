"""How many functions of oncekey one request calls: exact, so commits can be compared.

Counted are calls and resumptions of coroutines and generators in files of oncekey, without lambdas
and comprehensions, in every thread and task, until the last message was sent and the event loop
has turned once more.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from bench.rounds import Settings
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from oncekey.web.asgi import IdempotencyMiddleware

App = Callable[[Any, Any, Any], Awaitable[None]]

WARM_UPS = 30
REPEATS = 5
BODY = b'{"item":"tea"}'
_PACKAGE = f"{Path(oncekey.__file__).parent}/"
HOW = (
    "One POST with a JSON object of one field through the ASGI middleware to a Starlette route, on "
    "`memory://`, the memory of recent responses switched off, after 30 others. *First*: the key "
    "is new; *replay*: its response is stored. *Calls* of functions of oncekey include the "
    "resumptions of coroutines and generators, but not lambdas and comprehensions; a *change of "
    "file* is a call in another file of oncekey than the call before it. The counts are exact: "
    "`./dev bench --only calls --list` shows each call."
)


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    file: str


@dataclass(slots=True)
class Trace:
    """The calls of one request, in order."""

    calls: list[Call] = field(default_factory=list)

    def file_changes(self) -> int:
        return sum(before.file != after.file for before, after in pairwise(self.calls))

    def files(self) -> int:
        return len({call.file for call in self.calls})

    def text(self) -> str:
        width = max(len(call.function) for call in self.calls)
        return "\n".join(
            f"{number:4} {call.function:{width}} {call.file}"
            for number, call in enumerate(self.calls, start=1)
        )


class Profiler:
    """Notes calls in every thread while a trace is being recorded."""

    def __init__(self) -> None:
        self._trace: Trace | None = None

    @contextmanager
    def install(self) -> Iterator[None]:
        """For threads that start meanwhile, too."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def record(self) -> Iterator[Trace]:
        """Without garbage collections, whose finalizers would be counted."""
        gc.collect()
        gc.disable()
        self._trace = trace = Trace()
        try:
            yield trace
        finally:
            self._trace = None
            gc.enable()

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if self._trace is None or event != "call" or code.co_name.startswith("<"):
            return
        if code.co_filename.startswith(_PACKAGE):
            file = code.co_filename.removeprefix(_PACKAGE)
            self._trace.calls.append(Call(code.co_qualname, file))


def traces() -> dict[str, Trace]:
    """Of a first POST and of its replay."""
    log = logging.getLogger("oncekey.store")
    level = log.level
    log.setLevel("ERROR")  # memory:// warns that it forgets
    profiler = Profiler()
    try:
        with profiler.install():
            return asyncio.run(_traces(profiler))
    finally:
        log.setLevel(level)


async def _traces(profiler: Profiler) -> dict[str, Trace]:
    app = build()
    for number in range(WARM_UPS):
        await post(app, f"warm-up-{number:016d}")
    return {name: await _shortest(profiler, app) for name in ("first", "replay")}


async def _shortest(profiler: Profiler, app: App) -> Trace:
    """What is done once a second, such as writing a date, is in one of the traces at most."""
    found = []
    for number in range(REPEATS):
        with profiler.record() as trace:
            await post(app, f"counted-{number:016d}")
            await asyncio.sleep(0)
        found.append(trace)
    return min(found, key=lambda trace: len(trace.calls))


def build() -> App:
    return IdempotencyMiddleware(
        build_bare(),
        store="memory://",
        tenant=lambda request: "shop",
        policy=oncekey.Policy(recovery="block"),  # costs the same, and needs no warning
        recent_s=0,
    )


def build_bare() -> App:
    async def create(request: Request) -> JSONResponse:
        order = await request.json()
        return JSONResponse({"id": "order_1", "item": order["item"]}, 201)

    return Starlette(routes=[Route("/orders", create, methods=["POST"])])


async def post(app: App, key: str) -> None:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/orders",
        "raw_path": b"/orders",
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"shop.example"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(BODY)).encode()),
            (b"idempotency-key", key.encode()),
        ],
    }
    unread = [{"type": "http.request", "body": BODY, "more_body": False}]
    statuses = []

    async def receive() -> Any:
        if unread:
            return unread.pop()
        return await asyncio.Event().wait()  # the client stays

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    if statuses != [201]:
        raise RuntimeError(f"a POST was answered with {statuses}")


def section(settings: Settings) -> Section:
    return Section("Calls", HOW, tuple(try_rows("calls of a request", _rows)))


def estimate_s(settings: Settings) -> float:
    return 1


def list_calls() -> str:
    """Every call with its file."""
    return "\n\n".join(f"{name}:\n{trace.text()}" for name, trace in traces().items())


def _rows() -> list[Row]:
    found = traces()
    first, replay = found["first"], found["replay"]
    return [
        _row("first POST: calls", len(first.calls), 120),
        _row("first POST: changes of file", first.file_changes(), 70),
        _row("first POST: files", first.files()),
        _row("replay: calls", len(replay.calls), 80),
        _row("replay: changes of file", replay.file_changes()),
        _row("replay: files", replay.files()),
    ]


def _row(what: str, count: int, at_most: int | None = None) -> Row:
    goal = None if at_most is None else Goal(at_most, at_least=False, unit="")
    return Row(what, value=count, goal=goal, unit="", steady=True)
