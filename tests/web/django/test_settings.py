"""`settings.ONCEKEY`, what the check says of it, and the command."""

from __future__ import annotations

import functools
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test.utils import override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View

from oncekey import Misuse, Policy
from oncekey.web.django import idempotent, not_idempotent
from oncekey.web.django._claim import views
from oncekey.web.django.settings import MIDDLEWARE, check
from tests.web.django.site import Site, database, login_required, told


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
        (
            {
                "store": "memory://",
                "tenant": "oncekey.single_tenant",
                "policy": {"methods": ("GET", "POST")},
            },
            "Policy(methods=('GET',))",
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


def test_a_middleware_that_stands_there_twice_is_told_by_the_check(wsgi: Site) -> None:
    with override_settings(MIDDLEWARE=[*wsgi.middleware, MIDDLEWARE]):
        [error] = check()
        assert error.id == "oncekey.E004"
    with override_settings(MIDDLEWARE=[*wsgi.middleware, "django.middleware.gzip.GZipMiddleware"]):
        [warning] = check()
        assert warning.id == "oncekey.W003"


def test_of_the_views_of_an_admin_nobody_is_told(
    wsgi: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """They check who sends a request, and nobody can mark them."""

    def order(request: HttpRequest) -> HttpResponse:
        return told({})

    def index(request: HttpRequest) -> HttpResponse:
        return told({})

    checked: Any = login_required(index)
    for module in ("sites", "options"):
        there = {**checked.__globals__, "__name__": f"django.contrib.admin.{module}"}
        theirs = FunctionType(checked.__code__, there, "checked", None, checked.__closure__)
        wsgi.route(module, functools.update_wrapper(theirs, index))
    wsgi.route("orders", login_required(order))
    assert wsgi.ask("k1").status == 200
    [said] = [each.getMessage() for each in caplog.records if each.name == "oncekey.order"]
    assert said.startswith("login_required of order checks who sends a request within the view")


def test_the_order_is_told_of_by_a_server_too(wsgi: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody runs `manage.py check` where the site is served."""
    wsgi.oncekey["tenant"] = "oncekey.single_tenant"
    wsgi.middleware[:] = [*wsgi.middleware[1:], wsgi.middleware[0]]
    wsgi.route("orders", login_required(lambda request: told({})))
    wsgi.route("marked", login_required(idempotent(lambda request: told({}))))

    class AccessMixin:
        """As in `django.contrib.auth.mixins`, which needs models."""

    class LoginRequiredMixin(AccessMixin):
        pass

    class Pages(LoginRequiredMixin, View):  # type: ignore[misc]
        pass

    wsgi.route("pages", Pages.as_view())
    for _ in range(2):
        assert wsgi.ask("k1", path="/marked").status == 200
    said = [each.getMessage() for each in caplog.records if each.name == "oncekey.order"]
    assert len(said) == 2
    assert "CsrfViewMiddleware check requests after their keys were claimed" in said[0]
    assert said[1].startswith("login_required of <lambda>, LoginRequiredMixin of Pages checks who")


def test_a_login_below_the_mark_of_a_view_is_told_of(
    wsgi: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def order(request: HttpRequest) -> HttpResponse:
        return told({})

    wsgi.route("orders", idempotent(login_required(order)))
    wsgi.route("search", not_idempotent(login_required(order)))
    assert wsgi.ask("k1").status == 200
    [said] = [each.getMessage() for each in caplog.records if each.name == "oncekey.order"]
    assert said.startswith("login_required of order checks who sends a request within the view")


def test_policies_by_route_that_apply_to_nothing_are_told_by_the_check(wsgi: Site) -> None:
    wsgi.route("orders/<int:number>", lambda request, number: told({}))
    names = ("POST /orders/{number}", "POST /order/{number}")
    wsgi.oncekey["routes"] = {name: {"recovery": "block"} for name in names}
    [warning] = check()
    assert warning.id == "oncekey.W002"
    assert warning.msg.startswith("routes['POST /order/{number}']: the application has no such")


@pytest.mark.parametrize("by", ["nothing", "a mark", "a class's mark", "the policy"])
def test_a_database_for_atomic_mode_that_no_policy_asks_for_is_told(
    wsgi: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    """Its rows would be committed without the answer."""
    marked = idempotent(Policy(atomic=True))

    class Orders(View):  # type: ignore[misc]
        @method_decorator(marked if by == "a class's mark" else idempotent)  # type: ignore[untyped-decorator]
        def put(self, request: HttpRequest) -> HttpResponse:
            return told({})

    def order(request: HttpRequest) -> HttpResponse:
        return told({})

    wsgi.route("", include([path("orders", Orders.as_view())]))
    wsgi.route("order", marked(order) if by == "a mark" else order)
    file = tmp_path / "keys.db"
    with database(file) as alias:
        wsgi.oncekey |= {"store": f"sqlite:///{file}", "atomic": alias}
        if by == "the policy":
            wsgi.oncekey["policy"] = {"atomic": True}
        said = r"is given, but no policy says Policy(atomic=True)"
        assert [said in message.msg for message in check()] == [True] * (by == "nothing")
        for _ in range(2):
            assert wsgi.ask(None, path="/order").status == 200
        assert caplog.text.count(said) == (by == "nothing")


def test_a_mark_that_needs_a_database_is_told_by_the_check(wsgi: Site) -> None:
    wsgi.route("orders", idempotent(Policy(atomic=True))(lambda request: told({})))
    [message] = check()
    assert message.id == "oncekey.E003"
    assert message.msg.startswith("Policy(atomic=True) of @idempotent")


def test_the_application_brings_the_check_and_the_command(wsgi: Site, tmp_path: Path) -> None:
    file = tmp_path / "keys.db"
    settings = {"store": f"sqlite:///{file}", "tenant": "oncekey.single_tenant"}
    with override_settings(INSTALLED_APPS=["oncekey.web.django"], ONCEKEY=settings):
        assert run_checks() == []
        call_command("oncekey_migrate", verbosity=0)
        assert file.exists()
        with override_settings(ONCEKEY={}):
            assert [message.id for message in run_checks()] == ["oncekey.E001"]
