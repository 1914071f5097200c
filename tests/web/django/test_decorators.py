"""`@idempotent` on a view: its own rules, after the decorators above it."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.test.utils import override_settings
from django.utils.decorators import method_decorator
from django.views import View

from oncekey import Misuse, Policy
from oncekey.web import _decorators as marks
from oncekey.web.django import idempotent, not_idempotent
from tests.web.django.site import Site, login_required, told


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
