"""Which answers of an ASGI application are kept, and what becomes of the others."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import pytest

import oncekey
from oncekey import Policy
from oncekey._core.record import State
from oncekey._core.verbs import Scan
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware
from tests.web.asgi_world import Handler, World, down, flaky_world, tenant_of
from tests.web.client import ask

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("status", [200, 201, 204, 303, 400, 402, 404, 410, 422])
async def test_e40_definitive_answers_are_kept(status: int) -> None:
    world = World()
    world.handler = world.answer_with(b"", status)
    await ask(world.app, "k1")
    again = await ask(world.app, "k1")
    assert (again.status, again.replayed, world.runs) == (status, True, 1)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_e39_server_errors_release_after_failure(status: int) -> None:
    world = World()
    world.handler = world.answer_with({}, status)
    assert (await ask(world.app, "k1", {"a": 1})).status == status
    assert (await ask(world.app, "k1", {"a": 2})).kind == "mismatch"
    world.handler = world.answer_with({}, 201)
    assert (await ask(world.app, "k1", {"a": 1})).status == 201


REFUSED = [307, 308, 401, 403, 405, 407, 408, 409, 413, 415, 425, 429]


@pytest.mark.parametrize("status", REFUSED)
async def test_p7_e40_refusals_leave_nothing_that_answers_or_blocks(status: int) -> None:
    world = World()
    world.handler = world.answer_with({}, status)
    assert (await ask(world.app, "k1", {"a": 1})).status == status
    world.handler = world.counting()
    assert (await ask(world.app, "k1", {"a": 2})).json() == {"run": 2}


async def test_p7_a_router_404_leaves_nothing() -> None:
    async def router(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"no such route"})

    store = MemoryStore()
    app = IdempotencyMiddleware(router, store=store, tenant=tenant_of)
    for _ in range(2):
        reply = await ask(app, "k1")
        assert (reply.status, reply.replayed) == (404, False)
    assert [r.no_effect for r in Gatherer(store).ask(Scan(10))] == [True]


async def test_e38_an_exception_releases_after_failure() -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    world.handler = handler
    with pytest.raises(ZeroDivisionError):
        await ask(world.app, "k1")
    world.handler = world.counting()
    assert (await ask(world.app, "k1")).json() == {"run": 2}


async def test_under_block_a_handler_that_was_cut_off_is_not_run_again() -> None:
    """It did not say that it failed: its effect may have happened."""
    world = World(policy=Policy(recovery="block", lease_s=10))

    async def handler(receive: Any, send: Any) -> None:
        raise asyncio.CancelledError

    world.handler = handler
    with pytest.raises(asyncio.CancelledError):
        await ask(world.app, "k1")
    assert (await ask(world.app, "k1")).kind == "outcome-unknown"
    assert world.app.edge.heartbeat._schedule.next_at() is None, "P6: nobody renews it"
    assert world.runs == 1


async def test_an_application_that_never_answers_is_released() -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    world.handler = handler
    with pytest.raises(RuntimeError, match="without a complete answer"):
        await ask(world.app, "k1")
    assert world.states() == [State.RELEASED]


@pytest.mark.parametrize(
    ("say", "status", "then"),
    [("final", 503, "kept"), ("transient", 201, "again"), ("no_effect", 201, "any")],
)
async def test_e39_the_handler_has_the_last_word(say: str, status: int, then: str) -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        getattr(oncekey.current(), say)()
        await world.answer_with({"run": world.runs}, status)(receive, send)

    world.handler = handler
    await ask(world.app, "k1", {"a": 1})
    same = await ask(world.app, "k1", {"a": 1})
    other = await ask(world.app, "k1", {"a": 2})
    assert same.replayed == (then == "kept")
    assert (other.status == status) == (then == "any")


@pytest.mark.parametrize("says_so", [False, True])
async def test_p5_who_raises_keeps_its_key_unless_it_says_that_nothing_happened(
    says_so: bool,
) -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        if says_so:
            oncekey.current().no_effect()
        raise ZeroDivisionError

    world.handler = handler
    with pytest.raises(ZeroDivisionError):
        await ask(world.app, "k1", {"a": 1})
    world.handler = world.counting()
    other = await ask(world.app, "k1", {"a": 2})
    assert (other.status, world.runs) == ((201, 2) if says_so else (422, 1))


async def test_what_the_handler_marks_as_transient_by_a_header_is_not_kept() -> None:
    world = World(profile="adyen")
    world.handler = world.answer_with({"errorCode": "704"}, 422, [(b"transient-error", b"true")])
    await ask(world.app, "k1")
    world.handler = world.counting()
    assert (await ask(world.app, "k1")).json() == {"run": 2}


async def test_p3_a_status_may_be_one_of_the_names_that_python_has_for_it() -> None:
    """Frameworks pass them on, and not every driver takes them for numbers."""
    world = World()
    world.handler = world.answer_with({"ok": True}, HTTPStatus.CREATED)
    await ask(world.app, "k1")
    [record] = await world.app.gatherer.ask(Scan(10))
    assert type(record.answer.status) is int
    assert (await ask(world.app, "k1")).status == 201


async def test_e59_an_answer_over_the_limit_is_sent_whole_but_only_the_fact_is_kept() -> None:
    world = World(policy=Policy(answer_bytes_max=1000))
    whole = bytes(range(256)) * 20
    world.handler = world.answer_with(whole, 201, [(b"location", b"/exports/7")], parts=9)
    first = await ask(world.app, "k1")
    again = await ask(world.app, "k1")
    assert (first.status, first.body) == (201, whole)
    assert again.kind == "answer-not-kept"
    assert again.header("location") == "/exports/7"
    assert world.runs == 1


async def test_e60_a_stream_that_fails_after_the_limit_stays_completed() -> None:
    world = World(policy=Policy(answer_bytes_max=10))

    async def handler(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 20, "more_body": True})
        raise ConnectionError

    world.handler = handler
    with pytest.raises(ConnectionError):
        await ask(world.app, "k1")
    assert (await ask(world.app, "k1")).kind == "answer-not-kept"


async def test_e60_an_error_page_is_not_glued_to_an_answer_that_flows() -> None:
    """As servers have it: an answer that breaks is cut off, so that its client notices."""
    world, sent = World(policy=Policy(answer_bytes_max=10)), list[bytes]()

    async def handler(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 20, "more_body": True})
        await world.answer_with(b"an error page", status=500)(receive, send)

    world.handler = handler
    with pytest.raises(RuntimeError, match="another answer"):
        await ask(world.app, "k1", on_message=lambda m: sent.append(m.get("body", b"")))
    assert b"".join(sent) == b"x" * 20


async def test_e60_an_event_stream_flows_at_once() -> None:
    world = World()
    seen: list[bytes] = []

    async def handler(receive: Any, send: Any) -> None:
        lines = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        seen.append(b"".join(sent))
        await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": False})

    sent: list[bytes] = []
    world.handler = handler
    reply = await ask(world.app, "k1", on_message=lambda m: sent.append(m.get("body", b"")))
    assert seen == [b"data: 1\n\n"]
    assert reply.body == b"data: 1\n\ndata: 2\n\n"


def streaming(ended: list[str], *, listens: bool) -> Handler:
    """Streams for as long as it does not learn that the client has left."""

    async def stream(send: Any) -> None:
        while True:
            await send({"type": "http.response.body", "body": b"data\n\n", "more_body": True})
            await asyncio.sleep(0)

    async def handler(receive: Any, send: Any) -> None:
        await receive()
        lines = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        streaming = asyncio.ensure_future(stream(send))
        try:
            if listens:
                assert (await receive())["type"] == "http.disconnect"
                ended.append("told")
            else:
                await streaming
        except OSError:
            ended.append("raised")
        finally:
            streaming.cancel()

    return handler


@pytest.mark.parametrize("listens", [True, False])
async def test_p11_an_endless_stream_ends_when_its_client_hangs_up(listens: bool) -> None:
    world, ended, sent = World(), list[str](), list[Any]()
    world.handler = streaming(ended, listens=listens)

    def leaving(message: Any) -> None:
        sent.append(message)
        if len(sent) > 3 and not listens:
            raise OSError("the client is gone")

    async with asyncio.timeout(5):
        await ask(world.app, "k1", on_message=leaving)
    assert ended == ["told" if listens else "raised"]
    assert (await ask(world.app, "k1")).kind == "answer-not-kept"
    assert world.runs == 1


async def test_p11_an_endless_stream_that_never_reached_its_client_ends() -> None:
    world, ended = World(), list[str]()
    world.handler = streaming(ended, listens=False)

    def gone(message: Any) -> None:
        raise OSError("the client is gone")

    async with asyncio.timeout(5):
        await ask(world.app, "k1", on_message=gone)
    assert ended == ["raised"]


async def test_an_unprotected_stream_ends_when_its_client_hangs_up() -> None:
    world, store = flaky_world(policy=Policy(store_down="run"))
    ended: list[str] = []
    world.handler = streaming(ended, listens=True)
    store.before = [down(False)] * 4
    async with asyncio.timeout(5):
        await ask(world.app, "k1")
    assert ended == ["told"]


async def test_e57_a_retry_that_accepts_other_formats_gets_the_stored_answer() -> None:
    world = World()
    first = await ask(world.app, "k1", headers=[(b"accept", b"application/json")])
    other = [(b"accept", b"text/csv"), (b"accept-language", b"de")]
    again = await ask(world.app, "k1", headers=other)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert again.header("content-type") == first.header("content-type")


async def test_e58_an_answer_is_not_coded_for_one_client() -> None:
    world = World()
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]).get(b"accept-encoding"))
        await world.answer_with({})(receive, send)

    guarded = IdempotencyMiddleware(app, store=world.store, tenant=tenant_of)
    await ask(guarded, "k1", headers=[(b"accept-encoding", b"gzip")])
    await ask(guarded, None, headers=[(b"accept-encoding", b"gzip")])
    assert seen == [None, b"gzip"]


async def test_e51_extensions_that_bypass_the_capture_are_hidden() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(sorted(scope["extensions"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    guarded = IdempotencyMiddleware(app, store=MemoryStore(), tenant=tenant_of)
    await ask(guarded, "k1", extensions={"http.response.pathsend": {}, "tls": {}})
    assert seen == [["tls"]]


async def test_p12_e53_secrets_are_sent_once_and_never_stored() -> None:
    world = World()
    world.handler = world.answer_with({}, 201, [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")])
    first = await ask(world.app, "k1")
    again = await ask(world.app, "k1")
    assert first.all("set-cookie") == [b"a=1", b"b=2"]
    assert again.all("set-cookie") == []
    [record] = Gatherer(world.store).ask(Scan(10))
    assert b"set-cookie" not in dict(record.answer.headers)
