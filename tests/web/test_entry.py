"""Which rules a request is given at the door, under ASGI and WSGI, whatever it calls itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from oncekey import Policy
from tests.web import asgi_world, wsgi_world
from tests.web.client import Reply, ask, ask_wsgi

CHARGE = {"POST /charges": Policy(required=True)}
OVERRIDE = "x-http-method-override"

NONE: Mapping[str, str] = {}

Asks = Callable[..., Reply]


@pytest.fixture(params=["asgi", "wsgi"])
def door(request: pytest.FixtureRequest) -> Callable[..., tuple[Any, Asks]]:
    """A world by its settings, and how to ask it."""

    def made(**settings: Any) -> tuple[Any, Asks]:
        world: Any
        if request.param == "asgi":
            world = asgi_world.World(**settings)

            def by_asgi(key: str | None, headers: Mapping[str, str] = NONE, **more: Any) -> Reply:
                lines = [(name.encode(), text.encode()) for name, text in headers.items()]
                return asyncio.run(ask(world.app, key, headers=lines, **more))

            return world, by_asgi
        world = wsgi_world.World(**settings)
        request.addfinalizer(world.app.close)

        def by_wsgi(key: str | None, headers: Mapping[str, str] = NONE, **more: Any) -> Reply:
            names: Any = {
                f"HTTP_{n.upper().replace('-', '_')}": text for n, text in headers.items()
            }
            return ask_wsgi(world.app, key, **more, **names)

        return world, by_wsgi

    return made


@pytest.mark.parametrize("method", ["post", "Post"])
def test_e26_a_method_is_the_same_in_either_case(door: Any, method: str) -> None:
    """Frameworks take it so."""
    world, asks = door(routes=CHARGE)
    assert asks(None, method=method, path="/charges").kind == "missing-key"
    assert asks("k1", path="/charges").status == 201
    assert asks("k1", method=method, path="/charges").replayed
    assert world.runs == 1


@pytest.mark.parametrize("method", ["HEAD", "head"])
def test_e26_head_does_not_run_what_a_guarded_get_would(door: Any, method: str) -> None:
    world, asks = door(routes={"GET /pay": Policy(required=True), "GET /ask": Policy()})
    for path, key in (("/pay", None), ("/pay", "k1"), ("/ask", "k1")):
        assert asks(key, method=method, path=path).status == 400
    assert world.runs == 0
    assert asks(None, method=method, path="/ask").status == 201
    assert asks(None, method=method, path="/other").status == 201


def test_e26_what_is_asked_in_lower_case_may_be_guarded_by_name(door: Any) -> None:
    world, asks = door(policy=Policy(methods=("DELETE",)))
    assert asks("k1", method="delete").status == 201
    assert asks("k1", method="DELETE").replayed
    assert world.runs == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
@pytest.mark.parametrize("name", [OVERRIDE, "X-HTTP-Method", "X-Method-Override"])
def test_e26_a_request_with_two_methods_is_refused(door: Any, name: str, method: str) -> None:
    """What stands inside may go by the other one, whose rules nobody has asked."""
    world, asks = door(routes={**CHARGE, "PATCH /charges": Policy(required=True)})
    other = "patch" if method == "POST" else "post"
    for key in (None, "k1"):
        refused = asks(key, {name.lower(): other}, method=method, path="/charges")
        assert refused.kind == "malformed-request"
    assert (world.runs, world.stored()) == (0, 0)


def test_e26_each_of_several_methods_counts(door: Any) -> None:
    world, asks = door(routes=CHARGE)
    names = {OVERRIDE: "MADEUP", "x-http-method": "POST"}
    assert asks(None, names, method="GET", path="/charges").kind == "malformed-request"
    assert asks(None, names, method="GET", path="/orders").status == 201
    assert (world.runs, world.stored()) == (1, 0)


@pytest.mark.parametrize(("method", "other"), [("HEAD", "MADEUP"), ("PUT", "HEAD")])
def test_e26_head_runs_no_guarded_get_whatever_else_is_named(
    door: Any, method: str, other: str
) -> None:
    world, asks = door(routes={"GET /pay": Policy(required=True)})
    assert asks(None, {OVERRIDE: other}, method=method, path="/pay").status == 400
    assert asks(None, {OVERRIDE: other}, method=method, path="/other").status == 201
    assert world.runs == 1


def test_p11_few_of_many_methods_are_looked_at() -> None:
    world = asgi_world.World(routes=CHARGE)
    many = [(OVERRIDE.encode(), b"A%d" % n) for n in range(5)]
    refused = asyncio.run(ask(world.app, None, method="GET", path="/charges", headers=many))
    assert refused.kind == "malformed-request"


def test_e26_two_names_for_one_method_are_one(door: Any) -> None:
    """As it is, where the middleware that goes by the header stands outside."""
    world, asks = door(routes=CHARGE)
    assert asks("k1", {OVERRIDE: "post"}, path="/charges").status == 201
    assert asks("k1", path="/charges").replayed
    assert world.runs == 1


def test_e26_two_methods_do_not_matter_where_neither_is_guarded_or_needs_a_key(door: Any) -> None:
    world, asks = door(routes=CHARGE)
    assert asks("k1", {OVERRIDE: "PUT"}, method="GET", path="/charges").status == 201
    assert asks(None, {OVERRIDE: "POST"}, method="GET", path="/orders").status == 201
    assert (world.runs, world.stored()) == (2, 0)


def test_e16_a_path_that_may_mean_weaker_rules_is_refused(door: Any) -> None:
    rules = {"policy": Policy(required=True), "routes": {"/notes/{id}": Policy(required=False)}}
    world, asks = door(**rules)
    assert asks(None, path="/notes/7").status == 201
    for key in (None, "k1"):
        assert asks(key, path="//notes/7").kind == "malformed-request"
    assert (world.runs, world.stored()) == (1, 0)


def test_e16_a_request_that_is_not_guarded_may_be_spelt_as_it_likes(door: Any) -> None:
    world, asks = door(routes={"/notes/{id}": Policy(recovery="resume"), "/{a}": Policy()})
    for path in ("//notes/7", "notes/7", "/notes/7/", "/./notes/7"):
        assert asks(None, path=path).status == 201
        assert asks("k1", path=path, method="GET").status == 201
    assert (world.runs, world.stored()) == (8, 0)


def test_e16_one_path_may_be_left_out(door: Any) -> None:
    rules = {"policy": Policy(required=True), "routes": {"/search": Policy(methods=())}}
    world, asks = door(**rules)
    assert asks(None, path="/search").status == 201
    assert asks("k1", path="/search").status == 201
    assert asks(None, path="/other").kind == "missing-key"
    assert asks(None, path="/x/../search").kind == "missing-key"
    assert (world.runs, world.stored()) == (2, 0)


def test_e66_a_status_query_finds_an_operation_however_it_is_spelt(door: Any) -> None:
    world, asks = door(status_path="/status", routes=CHARGE)
    asks("k1", path="/charges")
    for operation in ("POST /charges", "post //charges", "POST /charges/"):
        query: Any = f"operation={operation.replace(' ', '%20')}"
        if isinstance(world, asgi_world.World):
            query = query.encode()
        told = asks("k1", method="GET", path="/status", query=query)
        assert told.json()["operation"] == "POST /charges"
