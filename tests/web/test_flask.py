"""Flask's views, each guarded when it is about to be called."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import pytest
from flask import (
    Blueprint,
    Flask,
    Response,
    abort,
    after_this_request,
    g,
    make_response,
    request,
    session,
    stream_with_context,
)
from flask.views import MethodView
from flask.views import View as FlaskView

import oncekey
from oncekey import Attempt, Learned, Misuse, Policy, guard, probes
from oncekey.clock import FakeClock
from oncekey.core.record import Answer, Record, State
from oncekey.core.verbs import Scan
from oncekey.errors import StoreUnavailable
from oncekey.stores.gather import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web import marks
from oncekey.web.flask import Oncekey, idempotent, not_idempotent
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.stores.unreliable import Unheard
from tests.web.client import Reply, ask_wsgi


def account_of(request: Any) -> str | None:
    account: str | None = g.account
    return account


def sign_in() -> None:
    g.account = request.headers.get("Authorization")
    if g.account == "eve":
        abort(403)


class World:
    """An application, its store, and how often its views ran."""

    def __init__(self, **settings: Any) -> None:
        self.store = MemoryStore(FakeClock())
        self.app = Flask("orders")
        self.app.secret_key = "sessions"
        self.extension = Oncekey(**{"store": self.store, "tenant": account_of, **settings})
        self.extension.init_app(self.app)
        self.app.before_request(sign_in)
        self.runs = 0

    def run(self) -> int:
        self.runs += 1
        return self.runs

    def ask(self, key: str | None, body: Any = b"{}", *, who: str = "ann", **more: Any) -> Reply:
        return ask_wsgi(self.app, key, body, HTTP_AUTHORIZATION=who, **more)

    def records(self) -> list[Record]:
        return list(Gatherer(self.store).ask(Scan(100)))


def ordering(**settings: Any) -> World:
    """A world with one view: `POST /orders`."""
    world = World(**settings)

    @world.app.post("/orders")
    def order() -> tuple[dict[str, int], int, dict[str, str]]:
        return {"run": world.run()}, 201, {"Location": "/orders/1"}

    return world


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


# -------------------------------------------------------------------------------- faults, misuse


@pytest.mark.parametrize("store_down", ["refuse", "run"])
def test_e42_a_store_that_is_down(store_down: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = ordering(policy=Policy(store_down=store_down))

    def down(verb: Any) -> Any:
        raise StoreUnavailable("down", sent=False)

    monkeypatch.setattr(world.extension.views.runtime.gatherer, "ask", down)
    reply = world.ask("k1")
    if store_down == "refuse":
        assert (reply.kind, world.runs) == ("store-unavailable", 0)
    else:
        assert (reply.status, reply.header("idempotency-stored")) == (201, "false")


def test_two_guards_around_one_view_are_told_apart_at_once() -> None:
    world = ordering()
    world.app.testing = True
    app = IdempotencyMiddleware(
        world.app, store=MemoryStore(FakeClock()), tenant=oncekey.single_tenant
    )
    with pytest.raises(Misuse, match="guarded twice"):
        ask_wsgi(app, "k1", HTTP_AUTHORIZATION="ann")


def test_what_is_set_up_wrongly_is_told() -> None:
    world = ordering()
    with pytest.raises(Misuse, match="has an Oncekey already"):
        world.extension.init_app(world.app)
    with pytest.raises(Misuse, match="takes a function"):
        World(tenant="ann")
    with pytest.raises(Misuse, match="takes a Policy"):
        idempotent({"required": True})(lambda: None)  # type: ignore[call-overload]

    async def find_out(attempt: oncekey.Attempt) -> oncekey.Learned:
        return oncekey.Learned.UNKNOWN

    asking = Policy(recovery="ask", ask=find_out)
    with pytest.raises(Misuse, match="of any route is async"):
        World(policy=asking)
    with pytest.raises(Misuse, match="of @idempotent is async"):
        idempotent(asking)

    world.app.testing = True
    world.app.post("/refunds")(marks.idempotent(lambda: "ok"))
    with pytest.raises(Misuse, match=r"another framework: from oncekey\.web\.flask import"):
        world.ask("k1", path="/refunds")

    alone = Flask("alone")
    alone.testing = True
    alone.post("/orders")(idempotent(lambda: "ok"))
    with pytest.raises(Misuse, match="no Oncekey"):
        ask_wsgi(alone, "k1")


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


# ------------------------------------------------------------------------------------- asking


def test_p7_a_claim_whose_reply_was_lost_is_released_in_the_background() -> None:
    store = Unheard()
    world = ordering(store=store)
    assert (world.ask("k1").kind, world.runs) == ("store-unavailable", 0)
    assert store.given_back.wait(20)
    store.heard = True
    assert world.ask("k1", {"another": "request"}).status == 201


def test_p7_who_is_interrupted_before_its_claim_is_answered_spends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(name: str) -> None:
        if name == "after_insert":
            raise KeyboardInterrupt

    store = Unheard()
    store.heard = True
    world = ordering(store=store)
    with monkeypatch.context() as patched:
        patched.setattr(guard, "probe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            world.ask("k1")
    assert store.given_back.wait(20)
    assert world.ask("k1", {"another": "request"}).status == 201


@pytest.mark.parametrize(
    ("learned", "told", "runs"),
    [
        (Answer(201, ((b"location", b"/orders/7"),), b"it was done"), (201, b"it was done"), 1),
        (Learned.NOT_DONE, (200, b"run 2"), 2),
        (Learned.UNKNOWN, (409, None), 1),
    ],
    ids=["an answer", "not done", "unknown"],
)
def test_ask_finds_out_what_became_of_an_attempt_that_died(
    learned: Any, told: tuple[int, bytes | None], runs: int
) -> None:
    clock = FakeClock()
    policy = Policy(recovery="ask", ask=lambda attempt: learned, lease_s=30)
    world = World(store=MemoryStore(clock), policy=policy)

    @world.app.post("/orders")
    def order() -> str:
        if world.run() == 1:
            raise KeyboardInterrupt
        return f"run {world.runs}"

    with pytest.raises(KeyboardInterrupt):
        world.ask("k1")
    clock.advance(30)
    settled, again = world.ask("k1"), world.ask("k1")
    status, body = told
    assert (settled.status, settled.replayed, world.runs) == (status, False, runs)
    assert (again.status, again.replayed) == (status, body is not None)
    if body is not None:
        assert settled.body == again.body == body
        assert settled.all("location") == again.all("location")
    assert oncekey.current_or_none() is None


@pytest.mark.parametrize("fails", [TypeError, KeyboardInterrupt])
def test_p6_what_is_interrupted_while_it_asks_lapses(fails: type[BaseException]) -> None:
    def find_out(attempt: Attempt) -> Answer:
        if fails is KeyboardInterrupt:
            raise KeyboardInterrupt
        return Answer(201, cast(Any, [("a header", "that is not bytes")]))

    clock = FakeClock()
    store = MemoryStore(clock)
    world = World(store=store, policy=Policy(recovery="ask", ask=find_out, lease_s=30))

    @world.app.post("/orders")
    def order() -> str:
        world.run()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.ask("k1")
    clock.advance(30)
    with contextlib.suppress(KeyboardInterrupt):  # of anything else Flask makes a 500
        assert world.ask("k1").status == 500
    assert world.extension.views.edge.heartbeat._schedule.next_at() is None
    [record] = Gatherer(store).ask(Scan(100))
    assert (record.state, record.attempt, world.runs) == (State.RUNNING, 2, 1)
