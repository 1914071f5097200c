"""`@idempotent` on one of Flask's views: its own rules, after the decorators above it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flask import abort, g
from flask.views import MethodView
from flask.views import View as FlaskView

from oncekey import Misuse, Policy
from oncekey.atomic import Sqlite
from oncekey.web.flask import idempotent, not_idempotent
from tests.web.flask_world import World, ordering


def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if g.account in (None, "banned"):
            abort(401)
        return view(*args, **kwargs)

    return checked


def test_e18_decorators_above_the_mark_run_before_the_claim_and_on_every_retry() -> None:
    world = World()

    @world.app.post("/orders")
    @login_required
    @idempotent
    def order() -> dict[str, int]:
        return {"run": world.run()}

    assert world.ask("k1", who="banned").status == 401
    assert world.records() == []
    assert [world.ask("k1").replayed for _ in range(2)] == [False, True]
    assert world.ask("k1", who="banned").status == 401


def retrying(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def tried(*args: Any, **kwargs: Any) -> Any:
        try:
            return view(*args, **kwargs)
        except TimeoutError:
            return view(*args, **kwargs)

    return tried


@pytest.mark.parametrize("recovery", ["block", "rerun"])
def test_p6_a_decorator_above_the_mark_that_tries_again_is_told_what_the_record_says(
    recovery: Any,
) -> None:
    world = World()

    @world.app.post("/orders")
    @retrying
    @idempotent(Policy(recovery=recovery))
    def order() -> dict[str, int]:
        if world.run() == 1:
            raise TimeoutError("the bank did not answer")
        return {"run": world.runs}

    first, again = world.ask("k1"), world.ask("k1")
    if recovery == "block":
        assert (first.kind, again.kind, world.runs) == ("outcome-unknown", "outcome-unknown", 1)
    else:
        assert (first.json(), again.json(), again.replayed) == ({"run": 2}, {"run": 2}, True)


def test_a_view_that_calls_another_marked_one_is_one_run() -> None:
    world = World()

    @idempotent
    def inner() -> dict[str, int]:
        return {"run": world.run()}

    @world.app.post("/orders")
    @idempotent
    def order() -> dict[str, int]:
        return {"runs": inner()["run"] + inner()["run"]}

    assert [world.ask("k1").json() for _ in range(2)] == [{"runs": 3}] * 2
    assert len(world.records()) == 1


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_e18_a_decorator_that_hides_the_mark_is_told(method: str) -> None:
    world = World()
    world.app.testing = True

    def hiding(view: Callable[..., Any]) -> Callable[..., Any]:
        return lambda: view()

    @idempotent(Policy(required=True))
    def order() -> dict[str, int]:
        return {"run": world.run()}

    world.app.add_url_rule("/orders", "order", hiding(order), methods=["POST", "DELETE"])
    for key in ("k1", None):
        with pytest.raises(Misuse, match="order is @idempotent, which could not be seen"):
            world.ask(key, method=method)
    assert world.runs == 0


def test_a_marked_view_may_call_another_one() -> None:
    world = World()
    count = idempotent(Policy(required=True))(world.run)

    @world.app.post("/orders")
    @idempotent
    def order() -> dict[str, int]:
        return {"run": count()}

    assert [world.ask("k1").replayed for _ in range(2)] == [False, True]
    assert world.ask(None).status == 200


def test_marks_give_a_view_its_own_rules() -> None:
    world = ordering(policy=Policy(retention_s=60))

    @world.app.route("/orders/<int:number>", methods=["GET", "PUT"])
    @idempotent(Policy(required=True, methods=["PUT"]))
    def change(number: int) -> dict[str, int]:
        return {"run": world.run()}

    @world.app.post("/search")
    @not_idempotent
    def search() -> dict[str, int]:
        return {"run": world.run()}

    put: dict[str, Any] = {"method": "PUT", "path": "/orders/1"}
    assert world.ask(None, **put).kind == "missing-key"
    assert [world.ask("k1", **put).replayed for _ in range(2)] == [False, True]
    assert world.ask(None, method="GET", path="/orders/1").json() == {"run": 2}
    assert [world.ask("k1", path="/search").json()["run"] for _ in range(2)] == [3, 4]


def test_a_class_of_views_is_guarded_like_any_other() -> None:
    world = World()

    class Orders(MethodView):
        decorators = [idempotent(Policy(required=True))]  # noqa: RUF012  (as Flask has it)

        def post(self) -> dict[str, int]:
            return {"run": world.run()}

    world.app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    assert world.ask(None).kind == "missing-key"
    assert [world.ask("k1").replayed for _ in range(2)] == [False, True]


def test_a_class_of_views_is_marked_by_its_methods() -> None:
    world = World()

    class Orders(MethodView):
        @idempotent(Policy(required=True))
        def post(self) -> dict[str, int]:
            return {"run": world.run()}

        @idempotent
        def put(self) -> dict[str, int]:
            return {"run": world.run()}

        @not_idempotent
        def patch(self) -> dict[str, int]:
            return {"run": world.run()}

    class Refunds(FlaskView):
        methods: ClassVar = ["PUT"]

        @idempotent
        def dispatch_request(self) -> dict[str, int]:
            return {"run": world.run()}

    world.app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    world.app.add_url_rule("/refunds", view_func=Refunds.as_view("refunds"))
    assert world.ask(None).kind == "missing-key"
    assert [world.ask("k1").replayed for _ in range(2)] == [False, True]
    assert [world.ask("k1", method="PUT").replayed for _ in range(2)] == [False, True]
    assert [world.ask("k1", method="PATCH").json()["run"] for _ in range(2)] == [3, 4]
    put: dict[str, Any] = {"method": "PUT", "path": "/refunds"}
    assert [world.ask("k1", **put).replayed for _ in range(2)] == [False, True]


def test_a_mark_above_its_route_is_refused_instead_of_guarding_nothing() -> None:
    world = World()
    world.app.testing = True

    @idempotent(Policy(required=True))
    @world.app.delete("/orders")
    def cancel() -> dict[str, int]:
        return {"run": world.run()}

    with pytest.raises(Misuse, match="cancel was marked after it was routed"):
        world.ask("k1", method="DELETE")
    assert world.runs == 0


def test_a_view_may_be_routed_with_its_mark_and_without() -> None:
    world = World()

    def order() -> dict[str, int]:
        return {"run": world.run()}

    world.app.add_url_rule("/orders", view_func=order, methods=["PUT"])
    marked = idempotent(order)
    world.app.add_url_rule("/orders", "marked", view_func=marked, methods=["DELETE"])
    assert [world.ask("k1", method="PUT").status for _ in range(2)] == [200, 200]
    assert [world.ask("k1", method="DELETE").status for _ in range(2)] == [200, 200]
    assert world.runs == 3


@pytest.mark.parametrize("by", ["nothing", "a mark", "a method's mark", "a route"])
def test_an_adapter_that_no_policy_asks_for_is_told_at_the_first_request(
    tmp_path: Path, by: str
) -> None:
    """Its rows would be committed without the answer."""
    routes = {"POST /orders": Policy(atomic=True)} if by == "a route" else {}
    world = ordering(store=f"sqlite:///{tmp_path}/keys.db", atomic=Sqlite(), routes=routes)
    world.app.testing = True
    marked = idempotent(Policy(atomic=True))
    if by == "a mark":
        world.app.post("/marked")(marked(lambda: "done"))
    elif by == "a method's mark":

        class Orders(MethodView):
            put = marked(lambda self: "done")

        world.app.add_url_rule("/marked", view_func=Orders.as_view("orders"))
    elif by == "nothing":
        world.app.post("/marked")(idempotent(lambda: "done"))
        with pytest.raises(Misuse, match=r"is given, but no policy says Policy\(atomic=True\)"):
            world.ask(None)
        return
    assert world.ask(None).status == 201


def test_a_method_that_is_safe_is_not_guarded_here_which_is_told() -> None:
    with pytest.raises(Misuse, match=r"methods=\('GET',\).*IdempotencyMiddleware"):
        World(policy=Policy(methods=("GET", "POST")))
    with pytest.raises(Misuse, match="GET /orders"):
        World(routes={"GET /orders": Policy()})
    world = ordering()
    world.app.testing = True
    world.app.get("/marked")(idempotent(Policy(methods=("GET",)))(lambda: "done"))
    with pytest.raises(Misuse, match=r"methods=.*GET"):
        world.ask(None)


def test_classes_are_marked_by_their_methods() -> None:
    with pytest.raises(Misuse, match=r"Orders is a class: .* decorators = \[idempotent\]"):

        @idempotent
        class Orders(MethodView):
            pass


@pytest.mark.parametrize("turned", [False, True])
def test_marks_that_contradict_each_other_are_told(turned: bool) -> None:
    marks: list[Callable[..., Any]] = [idempotent, not_idempotent]
    first, second = reversed(marks) if turned else marks

    def order() -> None: ...

    with pytest.raises(Misuse, match="order is both @idempotent and @not_idempotent"):
        first(second(order))


def test_a_mark_that_needs_an_adapter_is_told_at_the_first_request() -> None:
    world = ordering()
    world.app.testing = True
    world.app.post("/marked")(idempotent(Policy(atomic=True))(lambda: "done"))
    with pytest.raises(Misuse, match=r"Policy\(atomic=True\) of @idempotent"):
        world.ask(None)
