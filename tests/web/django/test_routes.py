"""Which rules a view of Django has: those of the route that Django found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.test.utils import override_settings
from django.urls import re_path

from oncekey import Policy
from tests.web.django.site import Site, ordering, told, urlpatterns

CHARGE = {"POST /charges": Policy(required=True, recovery="block")}


@pytest.mark.parametrize("path", ["/charges", "/Charges", "/CHARGES/", "/charges/"])
def test_e16_an_expression_that_is_lenient_leads_around_no_rule(site: Site, path: str) -> None:
    site.oncekey["routes"] = CHARGE

    def charge(request: HttpRequest) -> Any:
        return told({"run": site.run()})

    urlpatterns.append(re_path("(?i)^charges/?$", site.both(charge)))
    assert site.ask(None, path=path).kind == "missing-key"
    site.ask("k1", path="/charges")
    assert site.ask("k1", path=path).replayed == (path == "/charges")
    assert (site.runs, [record.recovery for record in site.records()]) == (1, ["block"])


@pytest.mark.parametrize(
    ("expression", "path"),
    [
        *(("^charges", "/charges!"), ("^charges", "/charges/more"), ("^/*charges/*$", "//charges")),
        ("^(?P<what>charges|refunds)", "/charges!"),
    ],
)
def test_e16_an_expression_that_serves_more_is_one_route(
    site: Site, expression: str, path: str
) -> None:
    site.oncekey["routes"] = CHARGE

    def charge(request: HttpRequest, **_: str) -> Any:
        return told({"run": site.run()})

    urlpatterns.append(re_path(expression, site.both(charge)))
    assert site.ask(None, path=path).kind == "missing-key"
    assert site.ask(None, path="/charges").kind == "missing-key"
    assert site.ask(None, path="/refunds").status == (200 if "refunds" in expression else 404)


def test_e16_what_an_expression_calls_otherwise_is_another_route(site: Site) -> None:
    site.oncekey["routes"] = {"POST /charges/{id}": Policy(required=True)}

    def pay(request: HttpRequest, **_: str) -> Any:
        return told({"run": site.run()})

    urlpatterns.append(re_path(r"^(?P<what>charges|refunds)/(?P<id>\w+)", site.both(pay)))
    assert site.ask(None, path="/charges/7!").kind == "missing-key"
    assert site.ask(None, path="/refunds/7!").status == 200


def test_e16_the_name_under_which_a_site_is_served_may_be_left_out(site: Site) -> None:
    """Django's handler for ASGI takes the path as it comes; the one for WSGI puts it together."""
    site.oncekey["routes"] = CHARGE
    is_asgi = site.handler.startswith("asgi")
    with override_settings(FORCE_SCRIPT_NAME="/shop"):

        def charge(request: HttpRequest) -> Any:
            return told({"run": site.run()})

        site.route("charges", site.both(charge))
        assert site.ask(None, path="/charges").kind == "missing-key"
        assert site.ask("k1", path="/charges").status == 200
        if is_asgi:
            assert site.ask(None, path="/shop/charges").kind == "missing-key"
    name = "POST /charges" if is_asgi else "POST /shop/charges"  # as 0.1 named them
    assert [record.operation for record in site.records()] == [name]


class Overriding:
    """Goes by a header, as packages for Django do: when the view is about to be called."""

    sync_capable = async_capable = True

    process_view: Any

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.process_view = self._override
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self.process_view = self._awaited

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def _override(self, request: HttpRequest, *_: Any) -> None:
        request.method = request.headers.get("X-HTTP-Method-Override", request.method)

    async def _awaited(self, request: HttpRequest, *_: Any) -> None:
        self._override(request)


def test_e26_the_method_counts_by_which_the_view_is_called(site: Site) -> None:
    site.middleware.insert(-1, f"{__name__}.Overriding")
    site.oncekey["routes"] = {"DELETE /orders": Policy(required=True, recovery="block")}
    with override_settings(MIDDLEWARE=site.middleware):
        ordering(site)
        delete = {"x-http-method-override": "DELETE"}
        assert site.ask(None, headers=delete).kind == "missing-key"
        assert site.ask("k1", headers=delete).status == 201
        assert site.ask("k1").status == 201
    operations = [record.operation for record in site.records()]
    assert sorted(operations) == ["DELETE /orders", "POST /orders"]


def test_e26_a_get_that_becomes_a_post_too_late_is_told(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.middleware.insert(-1, f"{__name__}.Overriding")
    site.oncekey["routes"] = {"POST /orders": Policy(required=True)}
    with override_settings(MIDDLEWARE=site.middleware):
        ordering(site)
        assert site.ask(None, method="GET").status == 201
        late = site.ask(None, method="GET", headers={"x-http-method-override": "POST"})
    assert (late.status, site.runs) == (500, 1)
    assert "changed the method in its process_view" in caplog.text
