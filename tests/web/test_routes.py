"""Routes: which policy a request has and what its operation is called."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey import Policy
from oncekey.errors import Misuse
from oncekey.web.routes import Routes

BLOCKED = Policy(recovery="block")


def operation(routes: Routes, method: str, path: str, root: str = "") -> tuple[str, str]:
    route = routes.match(method, path, root)
    return route.operation, route.policy.recovery


def test_the_template_is_the_name_and_a_path_that_none_matches_its_own() -> None:
    routes = Routes(Policy(), {"POST /orders/{id}/pay": BLOCKED})
    assert operation(routes, "POST", "/orders/7/pay") == ("POST /orders/{id}/pay", "block")
    for method, path in (("POST", "/orders/7/8/pay"), ("PATCH", "/orders/7/pay")):
        assert operation(routes, method, path) == (f"{method} {path}", "rerun")


@pytest.mark.parametrize("root", ["/api", "/api/v1"])
def test_a_template_does_not_know_where_the_application_is_mounted(root: str) -> None:
    routes = Routes(Policy(), {"POST /orders/{id}": BLOCKED})
    mounted = operation(routes, "POST", f"{root}/orders/7", root)
    assert mounted == (f"POST {root}/orders/{{id}}", "block")
    assert operation(routes, "POST", f"{root}/refunds", root) == (f"POST {root}/refunds", "rerun")


def test_a_path_that_the_server_handed_over_without_its_root_is_taken_as_it_is() -> None:
    routes = Routes(Policy(), {"POST /orders": BLOCKED})
    assert operation(routes, "POST", "/orders", "/api") == ("POST /orders", "block")
    assert operation(routes, "POST", "/apiorders", "/api") == ("POST /apiorders", "rerun")


def test_a_line_end_behind_a_path_leads_around_no_rule() -> None:
    """Starlette's router, for one, passes over it."""
    routes = Routes(Policy(), {"POST /orders": BLOCKED, "POST /orders/{id}/pay": BLOCKED})
    assert operation(routes, "POST", "/orders\n") == ("POST /orders", "block")
    assert operation(routes, "POST", "/orders/7/pay\n") == ("POST /orders/{id}/pay", "block")
    assert operation(routes, "POST", "/orders\n\n") == ("POST /orders\n\n", "rerun")


def test_whoever_names_a_method_wants_it_guarded() -> None:
    routes = Routes(Policy(), {"DELETE /orders/{id}": Policy()})
    assert "DELETE" in routes.match("DELETE", "/orders/7").policy.methods
    assert "DELETE" in routes.methods


def test_a_route_that_cannot_be_read_is_named() -> None:
    with pytest.raises(Misuse, match="orders without a slash"):
        Routes(Policy(), {"orders without a slash": Policy()})


def test_what_is_no_policy_is_refused_with_its_route() -> None:
    given: Any = {"POST /orders": {"required": True}}
    with pytest.raises(Misuse, match=r"'POST /orders': …\} takes an oncekey\.Policy"):
        Routes(Policy(), given)
    with pytest.raises(Misuse, match=r"policies by route.* given a list"):
        Routes(Policy(), [*given])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "route",
    [
        *("POST /files/{path:path}", "POST /orders/<id>", "/files/*", "/orders/{order-id}"),
        *("POST /orders?draft=1", "POST /orders#new"),
    ],
)
def test_what_would_silently_match_nothing_is_refused(route: str) -> None:
    with pytest.raises(Misuse, match="has no meaning here"):
        Routes(Policy(), {route: Policy()})
