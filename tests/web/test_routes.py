"""Routes: which policy a request has and what its operation is called."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey import Policy
from oncekey.errors import Misuse
from oncekey.web._routes import Routes

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


@pytest.mark.parametrize("path", ["/orders", "//orders", "/Orders/"])
@pytest.mark.parametrize("declared", [True, False])
def test_e16_a_path_keeps_its_name_with_and_without_its_root(path: str, declared: bool) -> None:
    """As 0.1 named them. Servers and proxies take the root away, or leave it there."""
    routes = Routes(Policy(), {"POST /orders": BLOCKED})
    routes.declared_root, root = ("/api", "") if declared else ("", "/api")
    assert operation(routes, "POST", path, root) == ("POST /orders", "block")
    assert operation(routes, "POST", f"/api{path}", root) == ("POST /api/orders", "block")
    assert operation(routes, "POST", "/refunds", root) == ("POST /refunds", "rerun")
    assert operation(routes, "POST", "/api/refunds", root) == ("POST /api/refunds", "rerun")
    assert operation(routes, "POST", "/apiorders", root) == ("POST /apiorders", "rerun")


def test_e16_a_template_may_have_the_root_that_only_the_application_declares() -> None:
    routes = Routes(Policy(), {"POST /api/orders": BLOCKED, "POST /{name}/refunds": Policy()})
    routes.declared_root = "/api"
    assert operation(routes, "POST", "/api/orders") == ("POST /api/orders", "block")
    own = Routes(Policy(), {"POST /{name}/refunds": Policy(), "POST /refunds": BLOCKED})
    own.declared_root = "/api"
    assert operation(own, "POST", "/api/refunds") == ("POST /api/refunds", "block")


SPELT = [
    *("//orders", "/orders/", "orders", "/./orders", "/x/../orders", "http://host/orders"),
    *("/ORDERS", "//Orders/", "/orders\udcff"),
    *(
        "http://host/orders?x",
        "http://host/orders;x",
        "http://host/or\tders",
        "x:orders#",
        " /orders",
    ),
]
CHARGE = Policy(required=True, recovery="block")


@pytest.mark.parametrize("path", SPELT)
def test_e16_a_template_applies_to_every_spelling_of_its_path(path: str) -> None:
    routes = Routes(Policy(), {"POST /orders": CHARGE})
    route = routes.match("POST", path)
    assert (route.operation, route.policy.recovery) == ("POST /orders", "block")
    assert not route.is_unclear


@pytest.mark.parametrize("path", SPELT)
def test_e16_weaker_rules_are_not_got_by_another_spelling(path: str) -> None:
    """A router that does not read it so may lead it to a route with the stricter rules."""
    routes = Routes(CHARGE, {"POST /orders": Policy(required=False)})
    assert routes.match("POST", "/orders").policy.required is False
    assert routes.match("POST", path).is_unclear


@pytest.mark.parametrize("path", SPELT)
def test_e16_a_path_that_is_left_out_is_left_out_as_it_is_written(path: str) -> None:
    routes = Routes(CHARGE, {"/orders": Policy(methods=())})
    assert "POST" not in routes.match("POST", "/orders").policy.methods
    assert routes.match("POST", path).policy == CHARGE.settled()


def test_a_route_without_methods_is_left_out_also_where_its_method_is_named() -> None:
    routes = Routes(CHARGE, {"POST /orders": Policy(methods=()), "/orders": Policy()})
    assert "POST" not in routes.match("POST", "/orders").policy.methods
    assert "PATCH" in routes.match("PATCH", "/orders").policy.methods


def test_e16_two_templates_that_differ_by_a_slash_are_two() -> None:
    routes = Routes(Policy(), {"/orders": Policy(), "/orders/": CHARGE})
    assert operation(routes, "POST", "/orders") == ("POST /orders", "rerun")
    assert operation(routes, "POST", "/orders/") == ("POST /orders/", "block")
    assert operation(routes, "POST", "//orders/") == ("POST /orders/", "block")


def test_e16_of_what_dots_lead_to_the_stricter_rules_count() -> None:
    """`/files/{name}` is how a router reads it that leaves dots alone."""
    routes = Routes(Policy(), {"/files/{name}": CHARGE, "/search": Policy()})
    assert operation(routes, "POST", "/files/../search")[1] == "rerun"
    assert operation(routes, "POST", "/files/..") == ("POST /files/{name}", "block")
    weaker = Routes(Policy(), {"/files/{name}": CHARGE, "/": Policy(recovery="ask", ask=print)})
    assert operation(weaker, "POST", "/files/..") == ("POST /files/{name}", "block")


@pytest.mark.parametrize("path", ["//refunds", "refunds", "/refunds\n", "http://host/refunds"])
def test_e16_a_path_without_a_template_has_one_name(path: str) -> None:
    assert operation(Routes(Policy()), "POST", path)[0] == "POST /refunds"


@pytest.mark.parametrize(
    "path", ["/refunds", "/refunds/", "/", "/a.b/..c", "/Refunds", "/a:b@c", "/7/%20"]
)
def test_e16_an_ordinary_path_is_named_as_it_always_was(path: str) -> None:
    """Another name would hide its records from the retries of an earlier release's clients."""
    for routes in (Routes(Policy()), Routes(Policy(), {"POST /orders": CHARGE})):
        assert operation(routes, "POST", path)[0] == f"POST {path}"
        assert operation(routes, "POST", f"/api{path}", "/api")[0] == f"POST /api{path}"


@pytest.mark.parametrize(
    ("root", "path"),
    [
        *(("/api", "/api//orders"), ("/api", "//api/orders"), ("/api", "//api//orders/")),
        *(("/api/", "/api//orders"), ("//api", "//api/orders"), ("/api", "/./api/orders")),
    ],
)
def test_e16_a_mounted_application_is_no_way_around(root: str, path: str) -> None:
    routes = Routes(Policy(), {"POST /orders": CHARGE})
    assert routes.match("POST", path, root).policy.required


def test_e16_the_place_where_it_is_mounted_is_its_root() -> None:
    """Django serves `/` there, without a slash at the end."""
    routes = Routes(Policy(), {"POST /": CHARGE})
    assert operation(routes, "POST", "/shop", "/shop") == ("POST /shop/", "block")
    assert operation(Routes(Policy()), "POST", "/shop", "/shop")[0] == "POST /shop"


def test_the_route_that_the_framework_found_decides() -> None:
    routes = Routes(Policy(), {"/orders/mine": Policy(recovery="resume"), "/orders/{id}": CHARGE})
    assert routes.policy_of("POST", "/orders/7", "/orders/{number}").recovery == "block"
    assert routes.policy_of("POST", "/orders/mine", "/orders/{number}").recovery == "resume"
    assert routes.policy_of("POST", "/what/ever", "/orders/{number}").recovery == "block"
    assert routes.policy_of("POST", "/what/ever", "/{a}/{b}").recovery == "rerun"
    assert routes.policy_of("PUT", "/orders/7", "/orders/{number}").recovery == "block"


@pytest.mark.parametrize("path", ["/Orders", "/orders/", "/ORDERS/"])
def test_a_regular_expression_may_leave_much_open(path: str) -> None:
    expression = "/(?i)^orders/?$"
    strict = Routes(Policy(), {"POST /orders": CHARGE})
    assert strict.policy_of("POST", path, expression).recovery == "block"
    assert strict.policy_of("POST", path, "/{name}").recovery == "rerun"
    loose = Routes(CHARGE, {"POST /orders": Policy(required=False)})
    assert loose.policy_of("POST", path, expression).required


@pytest.mark.parametrize(("rule", "text"), [("/orders/", "/orders"), ("/orders", "/orders/")])
def test_e16_a_rule_whose_slash_at_the_end_does_not_count(rule: str, text: str) -> None:
    strict = Routes(Policy(), {f"POST {text}": CHARGE})
    assert strict.policy_of("POST", rule, rule).required
    assert not strict.policy_of("POST", "/refunds/", "/{name}/").required
    loose = Routes(CHARGE, {f"POST {text}": Policy(required=False)})
    assert loose.policy_of("POST", rule, rule).required


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
