"""Django's views, each guarded when it is about to be called, under both handlers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.checks import run_checks
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import Context, Engine
from django.template.response import SimpleTemplateResponse
from django.test.utils import override_settings
from django.utils.decorators import method_decorator
from django.views import View

import oncekey
from oncekey import Misuse, Policy, probes
from oncekey.clock import FakeClock
from oncekey.errors import StoreUnavailable
from oncekey.stores.memory import MemoryStore
from oncekey.web import marks
from oncekey.web.django import idempotent, not_idempotent
from oncekey.web.django.claim import views
from oncekey.web.django.settings import check
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.web.client import Reply, ask, ask_wsgi
from tests.web.django_site import Site, body_of, database, login_required, told

HANDLERS = ("wsgi", "asgi", "asgi, async views", "wsgi, async views")


@pytest.fixture(params=HANDLERS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with Site(request.param) as site:
        yield site


@pytest.fixture
def wsgi() -> Iterator[Site]:
    with Site("wsgi") as site:
        yield site


def ordering(site: Site) -> Site:
    """With one view: `POST /orders`."""

    def order(request: HttpRequest) -> HttpResponse:
        response = told({"run": site.run()}, 201)
        response["Location"] = "/orders/1"
        response.set_cookie("basket", "1")
        return response

    site.route("orders", site.both(order))
    return site


# -------------------------------------------------------------------------------- the main road


def test_p3_a_retry_gets_the_same_answer(site: Site) -> None:
    ordering(site)
    first, again = site.ask("k1"), site.ask("k1")
    assert (first.status, first.json(), first.replayed) == (201, {"run": 1}, False)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    for name in ("content-type", "location", "idempotency-key"):
        assert first.all(name) == again.all(name) != []
    assert (len(first.all("set-cookie")), again.all("set-cookie")) == (1, [])


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


def test_e18_decorators_above_the_mark_run_before_the_claim_and_on_every_retry(
    site: Site,
) -> None:
    def order(request: HttpRequest) -> HttpResponse:
        return told({"run": site.run()})

    site.route("orders", login_required(idempotent(site.both(order))))
    assert (site.ask("k1", who="banned").status, site.records()) == (403, [])
    assert [site.ask("k1").replayed for _ in range(2)] == [False, True]
    assert site.ask("k1", who="banned").status == 403


def test_marks_give_a_view_its_own_rules(site: Site) -> None:
    def change(request: HttpRequest, number: int = 0) -> HttpResponse:
        return told({"run": site.run()})

    site.route("orders/<int:number>", idempotent(Policy(required=True))(site.both(change)))
    site.route("search", not_idempotent(site.both(change)))
    put: dict[str, Any] = {"method": "PUT", "path": "/orders/1"}
    assert site.ask(None, **put).kind == "missing-key"
    assert [site.ask("k1", **put).replayed for _ in range(2)] == [False, True]
    assert site.ask(None, method="GET", path="/orders/1").json() == {"run": 2}
    assert [site.ask("k1", path="/search").json()["run"] for _ in range(2)] == [3, 4]


def test_a_class_of_views_is_marked_by_its_method_or_as_a_whole(wsgi: Site) -> None:
    class Orders(View):  # type: ignore[misc]  # Django has no types
        @method_decorator(idempotent(Policy(required=True)))  # type: ignore[untyped-decorator]
        def post(self, request: HttpRequest) -> HttpResponse:
            return told({"run": wsgi.run()})

    @method_decorator(idempotent(Policy(required=True)), name="dispatch")
    class Refunds(View):  # type: ignore[misc]
        def put(self, request: HttpRequest) -> HttpResponse:
            return told({"run": wsgi.run()})

    wsgi.route("orders", Orders.as_view())
    wsgi.route("refunds", Refunds.as_view())
    for request in ({"path": "/orders"}, {"path": "/refunds", "method": "PUT"}):
        assert wsgi.ask(None, **request).kind == "missing-key"
        assert [wsgi.ask("k1", **request).replayed for _ in range(2)] == [False, True]


def test_a_set_of_views_is_marked_by_its_actions(wsgi: Site) -> None:
    class Orders:
        @method_decorator(idempotent(Policy(required=True)))  # type: ignore[untyped-decorator]
        def create(self, request: HttpRequest) -> HttpResponse:
            return told({"run": wsgi.run()})

    def view(request: HttpRequest) -> Any:
        return Orders().create(request)

    view.cls, view.actions = Orders, {"post": "create"}  # type: ignore[attr-defined]
    wsgi.route("orders", view)
    assert wsgi.ask(None).kind == "missing-key"
    assert [wsgi.ask("k1").replayed for _ in range(2)] == [False, True]


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


def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business(site: Site) -> None:
    site.oncekey |= {"profile": "square", "policy": {"request_bytes_max": 10}}
    assert ordering(site).ask(None, b"x" * 100, content_type="image/png").status == 201


# ------------------------------------------------------------------------------ kinds of answers


@pytest.mark.parametrize(
    ("raised", "status", "replayed"),
    [(Http404, 404, True), (BadRequest, 400, True), (ValueError, 500, False)],
)
def test_e38_e40_an_exception_of_the_view_is_its_answer_or_none(
    site: Site, raised: type[Exception], status: int, replayed: bool
) -> None:
    site.oncekey["policy"] = Policy(keep=oncekey.keep_errors_too)

    def order(request: HttpRequest) -> HttpResponse:
        site.run()
        raise raised

    site.route("orders", site.both(order))
    first, again = site.ask("k1"), site.ask("k1")
    assert (first.status, again.status, again.replayed) == (status, status, replayed)
    assert site.runs == (1 if replayed else 2)


def test_a_mistake_that_the_view_finds_can_be_said_to_spend_nothing(site: Site) -> None:
    def order(request: HttpRequest) -> HttpResponse:
        if "item" not in body_of(request):
            oncekey.current().no_effect()
            return told({"error": "no item"}, 422)
        return told({"run": site.run()}, 201)

    site.route("orders", site.both(order))
    assert site.ask("k1", {}).status == 422
    assert site.ask("k1", {"item": "tea"}).status == 201


def test_a_template_is_kept_as_it_was_rendered(site: Site) -> None:
    template = Engine().from_string("run {{ run }}")

    class Rendered(SimpleTemplateResponse):  # type: ignore[misc]
        @property
        def rendered_content(self) -> str:
            return str(template.render(Context(self.context_data)))

    def order(request: HttpRequest) -> HttpResponse:
        return Rendered(template, {"run": site.run()})

    site.route("orders", site.both(order))
    first, again = site.ask("k1"), site.ask("k1")
    assert (first.body, again.body, again.replayed) == (b"run 1", b"run 1", True)


# As Django itself warns, of streams that do not fit their handler.
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_e60_a_stream_is_kept_whole_and_one_that_is_too_large_flows(site: Site) -> None:
    site.oncekey["policy"] = Policy(answer_bytes_max=100)

    def parts(count: int) -> Iterator[bytes]:
        site.run()
        yield from (b"part %d\n" % n for n in range(count))

    async def async_parts(count: int) -> AsyncIterator[bytes]:
        for part in parts(count):
            yield part

    def order(request: HttpRequest, count: int) -> HttpResponse:
        made = async_parts(count) if "async" in site.handler else parts(count)
        return StreamingHttpResponse(made, content_type="text/plain")

    site.route("parts/<int:count>", site.both(order))
    first, again = site.ask("k1", path="/parts/3"), site.ask("k1", path="/parts/3")
    assert (first.body, again.body) == (b"part 0\npart 1\npart 2\n",) * 2
    large = site.ask("k2", path="/parts/50")
    assert large.body.endswith(b"part 49\n")
    assert site.ask("k2", path="/parts/50").kind == "answer-not-kept"
    assert site.runs == 2


def test_e22_a_form_that_the_csrf_check_reads_is_compared_all_the_same(site: Site) -> None:
    ordering(site)

    def form(item: str, boundary: str) -> dict[str, Any]:
        parts = {"csrfmiddlewaretoken": "x" * 32, "item": item}
        body = "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'
            for n, v in parts.items()
        )
        return {
            "body": f"{body}--{boundary}--\r\n".encode(),
            "content_type": f"multipart/form-data; boundary={boundary}",
            "headers": {"x-csrftoken": None},
        }

    assert site.ask("k1", **form("tea", "aaa")).status == 201
    assert site.ask("k1", **form("tea", "bbb")).replayed
    assert site.ask("k1", **form("coffee", "aaa")).kind == "mismatch"


# ---------------------------------------------------------------------------------- transactions


def test_with_atomic_requests_what_fails_leaves_no_rows_and_no_answer(
    wsgi: Site, tmp_path: Path
) -> None:
    with database(tmp_path / "shop.db", ATOMIC_REQUESTS=True) as shop:

        def order(request: HttpRequest) -> HttpResponse:
            assert transaction.get_connection(shop).in_atomic_block
            with connections[shop].cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES ('tea')")
            if wsgi.run() == 1:
                raise ValueError("broken")
            return told({"run": wsgi.runs})

        wsgi.route("orders", order)
        assert wsgi.ask("k1").status == 500
        assert rows(shop) == 0
        assert [wsgi.ask("k1").json() for _ in range(2)] == [{"run": 2}] * 2
        assert rows(shop) == 1


def rows(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        return int(cursor.fetchone()[0])


@pytest.fixture
def shared(wsgi: Site, tmp_path: Path) -> Iterator[str]:
    """A database of Django's that is also the store."""
    file = tmp_path / "shop.db"
    wsgi.oncekey["store"] = f"sqlite:///{file}"
    with database(file) as shop:
        yield shop


def test_p2_the_answer_commits_with_the_rows_in_the_views_own_transaction(
    wsgi: Site, shared: str
) -> None:
    def order(request: HttpRequest) -> HttpResponse:
        wsgi.run()
        with transaction.atomic(using=shared):
            with connections[shared].cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES ('tea')")
            oncekey.current().complete_in_sync(connections[shared], 201, {"run": wsgi.runs})
        raise RuntimeError("after the commit")

    wsgi.route("orders", order)
    first, again = wsgi.ask("k1"), wsgi.ask("k1")
    assert (first.status, first.json()) == (201, {"run": 1}), "what was committed is what counts"
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert rows(shared) == 1


def test_atomic_mode_commits_claim_rows_and_answer_together(wsgi: Site, shared: str) -> None:
    wsgi.oncekey["atomic"] = shared

    @idempotent(Policy(atomic=True))
    def order(request: HttpRequest) -> HttpResponse:
        with connections[shared].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('tea')")
        if wsgi.run() == 1:
            raise ValueError("broken")
        return told({"run": wsgi.runs}, 201)

    wsgi.route("orders", order)
    assert wsgi.ask("k1").status == 500
    assert rows(shared) == 0
    first, again = wsgi.ask("k1"), wsgi.ask("k1")
    assert (first.status, again.body, again.replayed) == (201, first.body, True)
    assert (rows(shared), wsgi.runs) == (1, 2)


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


def test_a_mark_without_the_middleware_is_told(wsgi: Site) -> None:
    wsgi.middleware.pop()
    with override_settings(MIDDLEWARE=wsgi.middleware, DEBUG_PROPAGATE_EXCEPTIONS=True):
        wsgi.route("orders", idempotent(lambda request: told({})))
        with pytest.raises(Misuse, match="MIDDLEWARE has no"):
            wsgi.ask("k1")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_e18_a_decorator_that_hides_the_mark_is_told(
    site: Site, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    order = site.both(lambda request: told({"run": site.run()}))
    marked = idempotent(Policy(required=True))(order)
    hiding: Any = lambda request: marked(request)  # noqa: E731
    site.route("orders", markcoroutinefunction(hiding) if iscoroutinefunction(order) else hiding)
    assert [site.ask(key, method=method).status for key in ("k1", None)] == [500, 500]
    assert caplog.text.count("is @idempotent, which could not be seen when its request came") == 2
    assert site.runs == 0


def test_a_mark_that_is_not_for_views_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.route("orders", marks.idempotent(site.both(lambda request: told({"run": site.run()}))))
    assert site.ask("k1").status == 500
    assert "from oncekey.web.django import idempotent" in caplog.text
    assert site.runs == 0


def test_a_class_or_a_method_of_one_is_told_how_it_is_marked(wsgi: Site) -> None:
    class Orders(View):  # type: ignore[misc]  # Django has no types
        @idempotent
        def post(self, request: HttpRequest) -> HttpResponse:
            raise AssertionError("it ran")

    wsgi.route("orders", Orders.as_view())
    loud = override_settings(DEBUG_PROPAGATE_EXCEPTIONS=True)
    with (
        loud,
        pytest.raises(Misuse, match=r"post is a method .* write @method_decorator\(idempotent\)"),
    ):
        wsgi.ask("k1")
    with pytest.raises(Misuse, match=r"Orders is a class: write @method_decorator\(idempotent, "):
        idempotent(Orders)


# ------------------------------------------------------------------------- settings and commands


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (None, "settings.ONCEKEY is missing"),
        ({}, "has no 'store'"),
        ({"store": "memory://"}, "has no 'tenant'"),
        ({"store": "keys.db", "tenant": "oncekey.single_tenant"}, "such as sqlite:///keys.db"),
        (
            {"store": "memory://", "tenant": "oncekey.single_tenant", "routes": ["POST /orders"]},
            "policies by route",
        ),
        ({"store": "memory://", "tenant": "tests.nothing.account_of"}, "tests.nothing"),
        ({"store": "memory://", "tenant": 7}, "takes a function"),
        ({"store": "nowhere://", "tenant": "oncekey.single_tenant"}, "nowhere"),
        ({"store": "memory://", "tenant": "oncekey.single_tenant", "lease": 3}, "lease"),
        (
            {"store": "memory://", "tenant": "oncekey.single_tenant", "policy": {"lease": 3}},
            "policy takes an oncekey.Policy",
        ),
        (
            {"store": "memory://", "tenant": "oncekey.single_tenant", "quota": {"records": 3}},
            "quota takes an oncekey.Quota",
        ),
        (
            {"store": "memory://", "tenant": "oncekey.single_tenant", "hooks": "shop.hooks.tell"},
            "takes a list of functions",
        ),
        (
            {
                "store": "memory://",
                "tenant": "oncekey.single_tenant",
                "hooks": ["oncekey.metrics.LoggingHook"],
            },
            "LoggingHook is a class",
        ),
        (
            {"store": "memory://", "tenant": "oncekey.single_tenant", "atomic": "shop"},
            "'shop', which DATABASES has not: name one of default",
        ),
        (
            {"store": "memory://", "tenant": "oncekey.single_tenant", "routes": {"orders": {}}},
            "write a route as",
        ),
    ],
)
def test_wrong_settings_are_told_by_the_check(wsgi: Site, setting: Any, said: str) -> None:
    with override_settings(ONCEKEY=setting):
        [message] = check()
        assert message.id == "oncekey.E001"
        assert said in message.msg
        with pytest.raises(Misuse):
            views()


def test_a_quota_may_be_given_by_its_fields(wsgi: Site) -> None:
    setting = {"store": "memory://", "tenant": "oncekey.single_tenant"}
    with override_settings(ONCEKEY={**setting, "quota": {"records_max": 1}}):
        made = views()
        assert made.runtime.guard.quotas is not None
        made.close()


def test_a_middleware_that_is_missing_or_not_the_last_is_told_by_the_check(wsgi: Site) -> None:
    assert check() == []
    with override_settings(MIDDLEWARE=wsgi.middleware[:2]):
        assert [message.id for message in check()] == ["oncekey.E002"]
    with override_settings(MIDDLEWARE=[*wsgi.middleware[1:], wsgi.middleware[0]]):
        [warning] = check()
        assert warning.id == "oncekey.W001"
        assert "CsrfViewMiddleware" in warning.msg


def test_policies_by_route_that_apply_to_nothing_are_told_by_the_check(wsgi: Site) -> None:
    wsgi.route("orders/<int:number>", lambda request, number: told({}))
    names = ("POST /orders/{number}", "POST /order/{number}")
    wsgi.oncekey["routes"] = {name: {"recovery": "block"} for name in names}
    [warning] = check()
    assert warning.id == "oncekey.W002"
    assert warning.msg.startswith("routes['POST /order/{number}']: the application has no such")


def test_the_application_brings_the_check_and_the_command(wsgi: Site, tmp_path: Path) -> None:
    file = tmp_path / "keys.db"
    settings = {"store": f"sqlite:///{file}", "tenant": "oncekey.single_tenant"}
    with override_settings(INSTALLED_APPS=["oncekey.web.django"], ONCEKEY=settings):
        assert run_checks() == []
        call_command("oncekey_migrate", verbosity=0)
        assert file.exists()
        with override_settings(ONCEKEY={}):
            assert [message.id for message in run_checks()] == ["oncekey.E001"]
