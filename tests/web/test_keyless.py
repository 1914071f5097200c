"""What a handler can ask where nothing protects its request: it brought no key, most often."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any
from wsgiref.util import FileWrapper

import pytest

import oncekey
from oncekey import Misuse, Policy, StoreUnavailable
from oncekey.stores.memory import MemoryStore
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.web.client import ask, ask_wsgi
from tests.web.shops import FORMS, shop_of

every_form = pytest.mark.parametrize("form", FORMS)
IN_THREADS = ("wsgi", "flask middleware", "flask extension", "django wsgi", "django asgi")


@every_form
def test_there_is_an_attempt_and_nothing_protects_it(form: str) -> None:
    seen: list[Any] = []

    def work() -> Any:
        attempt = oncekey.current()
        assert attempt is oncekey.current()
        assert oncekey.current_or_none() is None
        attempt.ensure_owned()
        attempt.resource_id = "order_1"
        attempt.on_lost(lambda: seen.append("lost"))
        for say in (attempt.final, attempt.transient, attempt.no_effect, attempt.unknown):
            say()
        seen.append((attempt.protected, attempt.key, attempt.lost, attempt.resumed))
        seen.append((attempt.operation, attempt.lease_s, attempt.attempt))
        return 503, {"child": attempt.child_key("charge")}

    policy = Policy(recovery="block", lease_s=20)
    with shop_of(form, policy=policy) as shop:
        shop.work = work
        first, again = shop.ask(None), shop.ask(None)
        assert (first.status, again.status, shop.runs) == (503, 503, 2)
        assert first.json() != again.json(), "a child key that came again would be a retry"
        assert first.header("idempotency-outcome") is None
        assert shop.records() == []
    assert seen[:2] == [(False, None, False, False), ("POST /orders", 20, 1)]


@pytest.mark.parametrize("form", IN_THREADS)
def test_steps_run_and_are_not_kept(form: str) -> None:
    charged = []

    def charge() -> tuple[str, int]:
        charged.append("ch_1")
        return "ch_1", len(charged)

    def work() -> Any:
        step = oncekey.current().step_sync
        first = step("charge", charge, at_most_once=True)
        with pytest.raises(Misuse, match="taken twice"):
            step("charge", list)
        return 201, {"charge": first, "mail": step("mail", lambda: "sent")}

    with shop_of(form) as shop:
        shop.work = work
        for n in (1, 2):
            assert shop.ask(None).json() == {"charge": ["ch_1", n], "mail": "sent"}
        assert (len(charged), shop.records()) == (2, [])


async def test_steps_of_event_loops_too() -> None:
    from oncekey.web.asgi import IdempotencyMiddleware

    async def charge() -> str:
        return "ch_1"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        step = oncekey.current().step
        given = await step("charge", charge, at_most_once=True)
        assert (await oncekey.current().complete_in(object(), 201, {})).status == 201
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": given.encode()})

    guarded = IdempotencyMiddleware(app, store="memory://", tenant=oncekey.single_tenant)
    assert (await ask(guarded, None)).body == b"ch_1"
    assert (await ask(guarded, None, method="PUT")).body == b"ch_1", "a method that is not guarded"


@every_form
def test_a_request_with_a_key_has_an_attempt_that_is_protected(form: str) -> None:
    with shop_of(form) as shop:
        shop.work = lambda: (201, [oncekey.current().protected, oncekey.current().key])
        assert shop.ask("k1").json() == [True, "k1"]
        shop.work = lambda: (201, [oncekey.current().protected, oncekey.current().key])
        assert shop.ask(None).json() == [False, None]
        assert shop.ask("k2").json() == [True, "k2"]
    with pytest.raises(Misuse, match="outside a guarded application"):
        oncekey.current()


class Closing:
    """An answer that an application makes while it is read, as Werkzeug's are."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __iter__(self) -> Iterator[bytes]:
        self.seen.append(oncekey.current().protected)
        yield b"part"
        self.seen.append(oncekey.current().protected)

    def close(self) -> None:
        self.seen.append("closed")


def test_what_wsgi_reads_of_an_answer_has_an_attempt_too() -> None:
    made: Any = Closing()

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return made

    guarded = WsgiMiddleware(app, store="memory://", tenant=oncekey.single_tenant)
    assert ask_wsgi(guarded, None).body == b"part"
    assert made.seen == [False, False, "closed"]
    for made in ([b"whole"], FileWrapper(io.BytesIO(b"file"))):  # which a server sends its own way
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "wsgi.file_wrapper": FileWrapper}
        assert guarded(environ, lambda *_: None) is made
    guarded.close()


class Down(MemoryStore):
    def perform(self, verbs: Any) -> Any:
        yield from ()
        raise StoreUnavailable("no answer", sent=False)


@every_form
def test_what_runs_while_the_store_is_down_keeps_its_key_and_child_keys(form: str) -> None:
    with shop_of(form, policy=Policy(store_down="run"), store=Down()) as shop:
        shop.work = lambda: (
            201,
            [oncekey.current().protected, oncekey.current().key, oncekey.current().child_key("a")],
        )
        first, again = shop.ask("k1"), shop.ask("k1")
        assert first.json()[:2] == [False, "k1"]
        assert first.json() == again.json()
        assert first.header("idempotency-stored") == "false"
