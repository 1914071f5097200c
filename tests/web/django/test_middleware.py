"""Django's views, each guarded when it is about to be called, under both handlers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.test.utils import override_settings

import oncekey
from oncekey import Misuse, Policy
from oncekey._system import probes
from oncekey._system.clock import FakeClock
from oncekey.errors import StoreUnavailable
from oncekey.stores.memory import MemoryStore
from oncekey.web.django import idempotent
from oncekey.web.django._claim import views
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.web.client import Reply, ask, ask_wsgi
from tests.web.django.site import Site, database, ordering, told

# -------------------------------------------------------------------------------- the main road


def test_p3_a_retry_gets_the_same_answer(site: Site) -> None:
    ordering(site)
    first, again = site.ask("k1"), site.ask("k1")
    assert (first.status, first.json(), first.replayed) == (201, {"run": 1}, False)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    for name in ("content-type", "location", "idempotency-key"):
        assert first.all(name) == again.all(name) != []
    assert (len(first.all("set-cookie")), again.all("set-cookie")) == (1, [])


@pytest.mark.parametrize("handler", ["asgi", "asgi, async views"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_django_s_own_client_of_asgi_is_served_too(handler: str, size: int) -> None:
    """Its body is no file, in which one could look for the end."""
    with Site(handler) as site:

        def order(request: HttpRequest) -> HttpResponse:
            return told({"run": site.run(), "size": len(request.body)})

        site.route("orders", site.both(order))

        async def post(size: int) -> Any:
            headers = {"Idempotency-Key": "k1", "Authorization": "ann"}
            return await AsyncClient().post(
                "/orders", b"x" * size, content_type="text/plain", headers=headers
            )

        for _ in range(2):
            assert asyncio.run(post(size)).json() == {"run": 1, "size": size}
        assert asyncio.run(post(size + 1)).status_code == 422


def test_p5_another_request_or_account_never_gets_the_answer(site: Site) -> None:
    ordering(site).ask("k1")
    assert site.ask("k1", {"other": 1}).kind == "mismatch"
    assert not site.ask("k1", who="bob").replayed


def test_a_request_without_a_key_is_an_ordinary_one(site: Site) -> None:
    ordering(site)
    assert [site.ask(None).json()["run"] for _ in range(2)] == [1, 2]
    assert site.records() == []


def test_the_template_is_the_operation_and_the_concrete_path_is_compared(site: Site) -> None:
    def pay(request: HttpRequest, shop: str, number: int) -> HttpResponse:
        return told({"run": site.run()})

    site.route("shops/<slug:shop>/orders/<int:number>/pay", site.both(pay))
    assert site.ask("k1", path="/shops/a/orders/7/pay").status == 200
    assert site.ask("k1", path="/shops/a/orders/8/pay").kind == "mismatch"
    [record] = site.records()
    assert record.operation == "POST /shops/{shop}/orders/{number}/pay"


@pytest.mark.parametrize("handler", ["wsgi", "asgi"])
def test_a_query_that_is_not_coded_is_compared_all_the_same(handler: str) -> None:
    with Site(handler) as site:
        ordering(site)
        raw = "item=€".encode()
        query = raw.decode("latin-1") if handler == "wsgi" else raw
        assert [site.ask("k1", query=query).replayed for _ in range(2)] == [False, True]
        assert site.ask("k1", query=query[:-1]).status in (400, 422)


def test_a_view_knows_its_attempt_and_its_steps_are_kept(site: Site) -> None:
    def order(request: HttpRequest) -> HttpResponse:
        attempt = oncekey.current()
        charged = attempt.step_sync("charge", site.run)
        attempt.resource_id = "order_1"
        return told(
            {"charged": charged, "n": attempt.attempt}, 503 if attempt.attempt == 1 else 201
        )

    async def async_order(request: HttpRequest) -> HttpResponse:
        attempt = oncekey.current()
        charged = await attempt.step("charge", site.run)
        attempt.resource_id = "order_1"
        return told(
            {"charged": charged, "n": attempt.attempt}, 503 if attempt.attempt == 1 else 201
        )

    site.route("orders", async_order if "async" in site.handler else order)
    assert site.ask("k1").status == 503
    assert site.ask("k1").json() == {"charged": 1, "n": 2}
    assert [record.resource_id for record in site.records()] == ["order_1"]
    assert oncekey.current_or_none() is None, "nothing is left behind in this thread"


def test_e31_a_duplicate_in_flight_is_refused(wsgi: Site) -> None:
    seen: list[Reply] = []

    def order(request: HttpRequest) -> HttpResponse:
        if not seen:
            thread = threading.Thread(target=lambda: seen.append(wsgi.ask("k1")))
            thread.start()
            thread.join()
        return told({"run": wsgi.run()})

    wsgi.route("orders", order)
    assert wsgi.ask("k1").json() == {"run": 1}
    assert [(reply.status, reply.kind) for reply in seen] == [(409, "in-flight")]


def test_e32_a_view_that_takes_longer_than_its_lease_keeps_it(site: Site) -> None:
    site.oncekey["policy"] = Policy(lease_s=0.3)
    renewed = threading.Event()

    def order(request: HttpRequest) -> HttpResponse:
        assert renewed.wait(10), "the lease was not renewed"
        return told({"run": site.run()})

    site.route("orders", site.both(order))
    probes.arm("after_renew", renewed.set)
    try:
        assert [site.ask("k1").replayed for _ in range(2)] == [False, True]
    finally:
        probes.disarm()


# ------------------------------------------------------------- what is refused before the view


def test_p7_what_comes_before_the_view_is_not_claimed(site: Site) -> None:
    ordering(site)
    assert site.ask("k1", who="eve").status == 403
    assert site.ask("k1", headers={"x-csrftoken": None}).status == 403, "CSRF"
    assert site.ask("k1", path="/nothing").status == 404
    assert site.records() == []
    assert site.ask("k1", {"item": "tea"}).status == 201
    assert site.ask("k1", {"item": "tea"}, headers={"x-csrftoken": None}).status == 403


def test_a_view_may_send_requests_to_its_own_application(wsgi: Site) -> None:
    ordering(wsgi)

    def twice(request: HttpRequest) -> HttpResponse:
        inner = wsgi.ask("inner").json()["run"]
        return told({"inner": inner, "key": oncekey.current().key})

    wsgi.route("twice", twice)
    first, again = wsgi.ask("k1", path="/twice"), wsgi.ask("k1", path="/twice")
    assert first.json() == again.json() == {"inner": 1, "key": "k1"}
    assert oncekey.current_or_none() is None


@pytest.mark.parametrize("marked", [False, True])
def test_the_tenant_may_be_looked_up_in_the_database(
    site: Site, tmp_path: Path, marked: bool
) -> None:
    with database(tmp_path / "shop.db") as alias:

        def account_of(request: HttpRequest) -> str:
            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT 'acme'")
                [account] = cursor.fetchone()
            return str(account)

        def order(request: HttpRequest) -> HttpResponse:
            return told({"run": site.run(), "tenant": oncekey.current().tenant})

        site.oncekey["tenant"] = account_of
        view = site.both(order)
        site.route("orders", idempotent(view) if marked else view)
        first, again = site.ask("k1"), site.ask("k1")
    assert first.json() == {"run": 1, "tenant": "acme"}
    assert (again.body, again.replayed) == (first.body, True)


def test_an_unknown_tenant_and_a_large_body_are_refused(wsgi: Site) -> None:
    wsgi.oncekey["policy"] = {"request_bytes_max": 10}
    ordering(wsgi)
    assert wsgi.ask("k1", who=None).kind == "no-tenant"
    assert wsgi.ask("k1", b"x" * 11).kind == "request-too-large"
    assert (wsgi.runs, wsgi.records()) == (0, [])


@pytest.mark.parametrize("length", ["+2", "1_0", "\u00b2", "-1"])
def test_e25_a_length_that_only_python_reads_is_refused(wsgi: Site, length: str) -> None:
    """Django would give as much of the body to the view; it was compared as an empty one."""
    refused = ordering(wsgi).ask("k1", CONTENT_LENGTH=length)
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert (wsgi.runs, wsgi.records()) == (0, [])


def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business(site: Site) -> None:
    site.oncekey |= {"profile": "square", "policy": {"request_bytes_max": 10}}
    assert ordering(site).ask(None, b"x" * 100, content_type="image/png").status == 201


# -------------------------------------------------------------------------------- faults, misuse


def test_e35_a_client_that_hangs_up_stops_nothing() -> None:
    with Site("asgi, async views") as site:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def order(request: HttpRequest) -> HttpResponse:
            entered.set()
            await leave.wait()
            return told({"run": site.run()})

        site.route("orders", order)

        async def scenario() -> Reply:
            app = ASGIHandler()
            request: dict[str, Any] = {
                "headers": [
                    (b"authorization", b"ann"),
                    (b"x-csrftoken", b"x" * 32),
                    (b"cookie", b"csrftoken=" + b"x" * 32),
                ]
            }
            # This client hangs up when the view runs.
            reply = await ask(leaving_after(entered, app), "k1", **request)
            leave.set()
            assert await views().runtime.background.drain(5) == 0
            return reply

        assert asyncio.run(scenario()).status == 0
        again = site.ask("k1")
        assert (again.json(), again.replayed, site.runs) == ({"run": 1}, True, 1)


def leaving_after(event: asyncio.Event, app: Any) -> Any:
    async def left(scope: Any, receive: Any, send: Any) -> None:
        async def wait() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                await event.wait()
            return message

        await app(scope, wait, send)

    return left


@pytest.mark.parametrize("done", [True, False])
def test_ask_finds_out_what_became_of_an_attempt_that_died(site: Site, done: bool) -> None:
    learned = oncekey.Answer(201, (), b"it was done") if done else oncekey.Learned.NOT_DONE
    clock = FakeClock()
    site.oncekey["store"] = MemoryStore(clock)
    site.oncekey["policy"] = Policy(recovery="ask", ask=lambda attempt: learned, lease_s=30)

    def order(request: HttpRequest) -> HttpResponse:
        if site.run() == 1:
            raise asyncio.CancelledError  # as if its process had died
        return HttpResponse(b"run %d" % site.runs, status=201)

    site.route("orders", site.both(order))
    with contextlib.suppress(asyncio.CancelledError):
        site.ask("k1")
    clock.advance(30)
    settled, again = site.ask("k1"), site.ask("k1")
    assert settled.body == again.body == (b"it was done" if done else b"run 2")
    assert (settled.status, settled.replayed) == (201, False)
    assert (again.status, again.replayed) == (201, True)


@pytest.mark.parametrize("store_down", ["refuse", "run"])
def test_e42_a_store_that_is_down(
    wsgi: Site, store_down: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wsgi.oncekey["policy"] = Policy(store_down=store_down)
    ordering(wsgi)

    def down(verb: Any) -> Any:
        raise StoreUnavailable("down", sent=False)

    monkeypatch.setattr(views().runtime.gatherer, "ask", down)
    reply = wsgi.ask("k1")
    if store_down == "refuse":
        assert (reply.kind, wsgi.runs) == ("store-unavailable", 0)
    else:
        assert (reply.status, reply.header("idempotency-stored")) == (201, "false")


def test_two_guards_around_one_view_are_told_apart_at_once(wsgi: Site) -> None:
    ordering(wsgi)
    app = IdempotencyMiddleware(WSGIHandler(), store=wsgi.store, tenant=oncekey.single_tenant)
    known: dict[str, Any] = {"HTTP_X_CSRFTOKEN": "x" * 32, "HTTP_COOKIE": f"csrftoken={'x' * 32}"}
    loud = override_settings(DEBUG_PROPAGATE_EXCEPTIONS=True)
    with loud, pytest.raises(Misuse, match="guarded twice"):
        ask_wsgi(app, "k1", HTTP_AUTHORIZATION="ann", **known)
