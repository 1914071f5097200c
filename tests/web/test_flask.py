"""Flask's views, each guarded when it is about to be called."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flask import (
    Blueprint,
    Flask,
    Response,
    abort,
    after_this_request,
    make_response,
    request,
    session,
    stream_with_context,
)

import oncekey
from oncekey import Misuse, Policy
from oncekey._system import probes
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.web.client import Reply, ask_wsgi
from tests.web.flask_world import World, ordering

# -------------------------------------------------------------------------------- the main road


def test_p3_a_retry_gets_the_same_answer() -> None:
    world = ordering()
    first, again = world.ask("k1"), world.ask("k1")
    assert (first.status, first.json(), first.replayed) == (201, {"run": 1}, False)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    for name in ("content-type", "location", "content-length", "idempotency-key"):
        assert first.all(name) == again.all(name) != []


def test_p5_another_request_or_account_never_gets_the_answer() -> None:
    world = ordering()
    world.ask("k1")
    assert world.ask("k1", {"other": 1}).kind == "mismatch"
    other = world.ask("k1", who="bob")
    assert (other.status, other.replayed) == (201, False)


def test_what_is_no_application_of_flask_is_refused() -> None:
    blueprint: Any = Blueprint("orders", "orders")
    with pytest.raises(Misuse, match="takes the Flask application, not a Blueprint"):
        Oncekey(blueprint, store="memory://", tenant=oncekey.single_tenant)


def test_a_middleware_that_would_call_itself_is_told() -> None:
    app = Flask("orders")
    settings: Any = {"store": "memory://", "tenant": oncekey.single_tenant}
    app.wsgi_app = IdempotencyMiddleware(app, **settings)  # type: ignore[method-assign]
    with pytest.raises(Misuse, match=r"IdempotencyMiddleware\(app\.wsgi_app, …\)"):
        ask_wsgi(app, None, method="GET")


def test_a_request_without_a_key_is_an_ordinary_one() -> None:
    world = ordering()
    assert [world.ask(None).json()["run"] for _ in range(2)] == [1, 2]
    assert world.records() == []


def test_the_rule_is_the_operation_and_the_concrete_path_is_compared() -> None:
    world = World()
    shop = Blueprint("shop", "shop", url_prefix="/shops/<shop>")

    @shop.post("/orders/<int:number>/pay")
    def pay(shop: str, number: int) -> dict[str, int]:
        return {"run": world.run()}

    world.app.register_blueprint(shop)
    assert world.ask("k1", path="/shops/a/orders/7/pay").status == 200
    assert world.ask("k1", path="/shops/a/orders/8/pay").kind == "mismatch"
    assert world.ask("k1", path="/shops/a/orders/7/pay", SCRIPT_NAME="/eu").status == 200
    names = {record.operation for record in world.records()}
    assert names == {
        "POST /shops/{shop}/orders/{number}/pay",
        "POST /eu/shops/{shop}/orders/{number}/pay",
    }


def test_e31_a_duplicate_in_flight_is_refused() -> None:
    world = World()
    seen: list[Reply] = []

    @world.app.post("/orders")
    def order() -> dict[str, int]:
        if not seen:
            thread = threading.Thread(target=lambda: seen.append(world.ask("k1")))
            thread.start()
            thread.join()
        return {"run": world.run()}

    assert world.ask("k1").json() == {"run": 1}
    assert [(reply.status, reply.kind) for reply in seen] == [(409, "in-flight")]


def test_a_view_knows_its_attempt_and_its_steps_are_kept() -> None:
    world = World()

    @world.app.post("/orders")
    def order() -> dict[str, Any]:
        attempt = oncekey.current()
        charged = attempt.step_sync("charge", world.run)
        if attempt.attempt == 1:
            abort(503)
        attempt.resource_id = "order_1"
        return {"charged": charged, "attempt": attempt.attempt}

    assert world.ask("k1").status == 503
    assert world.ask("k1").json() == {"charged": 1, "attempt": 2}
    assert [record.resource_id for record in world.records()] == ["order_1"]
    assert oncekey.current_or_none() is None, "nothing is left behind in this thread"


def test_e32_a_view_that_takes_longer_than_its_lease_keeps_it() -> None:
    world = World(policy=Policy(lease_s=0.3))
    renewed = threading.Event()

    def order() -> dict[str, int]:
        assert renewed.wait(10), "the lease was not renewed"
        return {"run": world.run()}

    world.app.post("/orders")(order)
    probes.arm("after_renew", renewed.set)
    try:
        assert [world.ask("k1").replayed for _ in range(2)] == [False, True]
    finally:
        probes.disarm()


# ------------------------------------------------------------- what is refused before the view


def test_p7_what_comes_before_the_view_is_not_claimed() -> None:
    world = ordering()
    assert world.ask("k1", who="eve").status == 403
    assert world.ask("k1", path="/nothing").status == 404
    assert world.ask("k1", method="PATCH").status == 405
    assert world.records() == []
    assert world.ask("k1", {"item": "tea"}).status == 201


def test_a_view_may_send_requests_to_its_own_application() -> None:
    world = ordering()

    @world.app.post("/twice")
    def twice() -> dict[str, Any]:
        inner = world.ask("inner").json()["run"]
        return {"inner": inner, "key": oncekey.current().key}

    first, again = world.ask("k1", path="/twice"), world.ask("k1", path="/twice")
    assert first.json() == again.json() == {"inner": 1, "key": "k1"}
    assert oncekey.current_or_none() is None


def test_e3_an_empty_key_is_a_mistake_not_a_missing_one() -> None:
    world = ordering()
    assert world.ask("").kind == "invalid-key"
    assert (world.runs, world.records()) == (0, [])


def test_a_required_key_an_unknown_tenant_and_a_large_body_are_refused() -> None:
    world = ordering(policy=Policy(required=True, request_bytes_max=10))
    assert world.ask(None).kind == "missing-key"
    assert ask_wsgi(world.app, "k1").kind == "no-tenant"
    assert world.ask("k1", b"x" * 11).kind == "request-too-large"
    assert (world.runs, world.records()) == (0, [])


# ------------------------------------------------------------------------------ kinds of answers


def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business() -> None:
    world = ordering(profile="square", policy=Policy(request_bytes_max=10))
    assert world.ask(None, b"x" * 100, content_type="image/png").status == 201


@pytest.mark.parametrize(
    ("status", "replayed"), [(400, True), (404, True), (403, False), (503, False)]
)
def test_e40_abort_in_the_view_is_its_answer(status: int, replayed: bool) -> None:
    world = World()

    @world.app.post("/orders")
    def order() -> str:
        abort(status, f"run {world.run()}")

    first, again = world.ask("k1"), world.ask("k1")
    assert (first.status, again.status, again.replayed) == (status, status, replayed)
    assert (first.body == again.body) is replayed


def test_an_exception_that_has_a_handler_is_kept_by_its_status() -> None:
    world = World()

    class SoldOut(Exception):
        pass

    @world.app.errorhandler(SoldOut)
    def answer(error: SoldOut) -> tuple[dict[str, int], int]:
        return {"sold out": world.runs}, 410

    @world.app.post("/orders")
    def order() -> str:
        world.run()
        raise SoldOut

    first, again = world.ask("k1"), world.ask("k1")
    assert (first.status, again.body, again.replayed, world.runs) == (410, first.body, True, 1)


def test_e38_an_exception_gives_the_key_back() -> None:
    world = World()

    @world.app.post("/orders")
    def order() -> dict[str, int]:
        if world.run() == 1:
            raise ValueError("broken")
        return {"run": world.runs}

    assert world.ask("k1").status == 500
    assert world.ask("k1").json() == {"run": 2}


def test_e60_a_stream_is_kept_whole_and_one_that_is_too_large_flows() -> None:
    world = World(policy=Policy(answer_bytes_max=100))
    closed: list[int] = []

    @world.app.post("/parts/<int:count>")
    def parts(count: int) -> Response:
        def generate() -> Iterator[bytes]:
            world.run()
            try:
                for n in range(count):
                    yield b"%s part %d\n" % (request.method.encode(), n)
            finally:
                closed.append(count)

        return Response(stream_with_context(generate()), mimetype="text/plain")

    first, again = world.ask("k1", path="/parts/3"), world.ask("k1", path="/parts/3")
    assert (first.body, again.body) == (b"POST part 0\nPOST part 1\nPOST part 2\n",) * 2
    large = world.ask("k2", path="/parts/50")
    assert large.body.endswith(b"part 49\n")
    assert world.ask("k2", path="/parts/50").kind == "answer-not-kept"
    assert (world.runs, closed) == (2, [3, 50])


def test_what_a_view_streams_without_a_key_has_an_attempt_too() -> None:
    world, closed = World(), list[bool]()

    @world.app.route("/parts", methods=["GET", "POST"])
    def parts() -> Response:
        def generate() -> Iterator[str]:
            try:
                for _ in range(2):
                    yield f"{oncekey.current().operation} {oncekey.current().protected};"
            finally:
                closed.append(oncekey.current().protected)

        return Response(stream_with_context(generate()))

    assert world.ask(None, path="/parts").body == b"POST /parts False;" * 2
    assert world.ask(None, path="/parts", method="GET").body == b"GET /parts False;" * 2
    assert closed == [False, False]


def test_a_stream_that_fails_before_it_is_kept_is_closed_and_gives_the_key_back() -> None:
    world, closed = World(), list[bool]()

    @world.app.post("/parts")
    def parts() -> Response:
        def generate() -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        response = Response(generate())
        response.call_on_close(lambda: closed.append(True))
        return response

    assert [world.ask("k1", path="/parts").status for _ in range(2)] == [500, 500]
    assert closed == [True, True]


def test_e53_cookies_are_sent_to_the_first_client_alone() -> None:
    world = World()

    @world.app.post("/orders")
    def order() -> Response:
        session["seen"] = world.run()
        response = make_response({"run": world.runs})
        response.set_cookie("basket", "1")

        @after_this_request
        def mark(response: Response) -> Response:
            response.headers["X-After"] = "yes"
            return response

        return response

    first, again = world.ask("k1"), world.ask("k1")
    assert len(first.all("set-cookie")) == 2
    assert (again.all("set-cookie"), again.body) == ([], first.body)
    assert first.header("x-after") == "yes"


def test_what_reads_the_body_before_the_view_finds_it_and_changes_nothing() -> None:
    world = World()
    seen: list[str | None] = []

    @world.app.before_request
    def look() -> None:
        seen.append(request.form.get("item"))

    @world.app.post("/orders")
    def order() -> dict[str, Any]:
        return {"run": world.run(), "item": request.form["item"]}

    form = {"content_type": "application/x-www-form-urlencoded"}
    first = world.ask("k1", b"item=tea", **form)
    assert (first.json(), world.ask("k1", b"item=tea", **form).replayed) == (
        {"run": 1, "item": "tea"},
        True,
    )
    assert world.ask("k1", b"item=coffee", **form).kind == "mismatch"
    assert seen == ["tea", "tea", "coffee"]
