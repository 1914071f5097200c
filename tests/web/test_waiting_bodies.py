"""Requests that wait for the first one hold no body in memory (P11), and can still run."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncekey import Policy
from oncekey.web._body import AWAY_BYTES_MIN, room
from oncekey.web._spool import spool
from tests.web import asgi_world, wsgi_world
from tests.web.client import ask, ask_wsgi
from tests.web.uploads import seen

MIB = 1_048_576
WAIT = Policy(in_flight="wait", wait_s=60.0, waiters_per_key_max=1_000)
PART = bytes(range(256)) * 256
WAITERS = 60


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def upload(world: asgi_world.World) -> Any:
    """A mebibyte, in parts of which the client keeps none."""
    parts = [PART] * 16
    return ask(world.app, "k1", b"", content_type="text/plain", chunks=parts)


@pytest.mark.parametrize("fails", [False, True])
async def test_p11_who_waits_holds_no_body_and_can_run(fails: bool) -> None:
    world = asgi_world.World(policy=WAIT)
    entered, leave = asyncio.Event(), asyncio.Event()
    got: list[str] = []

    async def handler(receive: Any, send: Any) -> None:
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        got.append(hashlib.sha256(body).hexdigest())
        entered.set()
        await leave.wait()
        status = 500 if fails and len(got) == 1 else 201
        await world.answer_with(seen(body), status)(receive, send)

    world.handler = handler
    first = asyncio.create_task(upload(world))
    await entered.wait()
    tracemalloc.start()
    try:
        waiters = [asyncio.create_task(upload(world)) for _ in range(WAITERS)]
        await until(lambda: spool.bytes_used == WAITERS * MIB)
        await asyncio.sleep(0)
        assert tracemalloc.get_traced_memory()[0] < 3 * MIB
        assert room.bytes_held == WAITERS * MIB  # the handler's own is its own
    finally:
        tracemalloc.stop()
    leave.set()
    replies = [await each for each in (first, *waiters)]
    whole = hashlib.sha256(PART * 16).hexdigest()
    assert [reply.status for reply in replies[1:]] == [201] * WAITERS
    assert got == [whole] * (2 if fails else 1)
    assert sum(not reply.replayed for reply in replies) == (2 if fails else 1)
    assert (room.bytes_held, spool.bytes_used) == (0, 0)


@pytest.mark.parametrize("size", [AWAY_BYTES_MIN, AWAY_BYTES_MIN + 1])
def test_p11_in_threads_too(size: int) -> None:
    world = wsgi_world.World(policy=WAIT)
    entered, leave = threading.Event(), threading.Event()
    body, runs = PART[:size], []

    def handler(environ: Any, start_response: Any) -> Any:
        runs.append(environ["wsgi.input"].read(size))
        entered.set()
        leave.wait(10)
        status = "500 No" if len(runs) == 1 else "201 Created"
        return world.answer_with({"run": len(runs)}, status)(environ, start_response)

    world.handler = handler
    with ThreadPoolExecutor(5) as threads:

        def post() -> Any:
            return ask_wsgi(world.app, "k1", body, content_type="text/plain")

        first = threads.submit(post)
        assert entered.wait(10)
        waiters = [threads.submit(post) for _ in range(4)]
        blocks = 4 if size > AWAY_BYTES_MIN else 0
        for _ in range(1_000):
            if spool.bytes_used == blocks * 65_536 and world.app.edge.guard._waiters.total == 4:
                break
            threading.Event().wait(0.01)
        else:
            pytest.fail(f"{spool.bytes_used} bytes are spooled")
        leave.set()
        assert first.result().status == 500
        assert {each.result().status for each in waiters} == {201}
    assert runs == [body, body]
    assert (room.bytes_held, spool.bytes_used) == (0, 0)
    world.app.close()


async def test_p11_a_crowd_of_uploads_is_served_or_refused_within_the_limit() -> None:
    limits = Policy(request_bytes_max=8 * MIB, bodies_bytes_max=8 * MIB)
    world = asgi_world.World(policy=limits.over(WAIT))
    handler, started, go_on = asgi_world.held(world)
    world.handler = handler
    first = asyncio.create_task(upload(world))
    await started.wait()
    waiters = [asyncio.create_task(upload(world)) for _ in range(30)]
    await until(lambda: sum(each.done() for each in waiters) == 23)
    assert room.bytes_held <= 8 * MIB
    go_on.set()
    replies = [await each for each in (first, *waiters)]
    told = sorted(reply.status for reply in replies)
    assert told == [201] * 8 + [503] * 23
    assert {reply.kind for reply in replies if reply.status == 503} == {"no-room"}
    assert world.runs == 1
    assert (room.bytes_held, spool.bytes_used) == (0, 0)
