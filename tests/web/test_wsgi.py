"""The WSGI middleware: the same rules, in the server's own thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import Any

import flask
import pytest

import oncekey
from oncekey import Policy
from oncekey._core.record import State
from oncekey._core.verbs import Scan
from oncekey._system import probes
from oncekey._system.clock import FakeClock
from oncekey.errors import Misuse
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.clocks import set_clock
from tests.stores.unreliable import Unheard
from tests.web.asgi_world import Flaky, down
from tests.web.client import Reply, ask_wsgi
from tests.web.wsgi_world import World, tenant_of, world

__all__ = ["world"]


def test_p3_a_retry_gets_the_same_answer(world: World) -> None:
    world.handler = world.answer_with(b"\x00\xff", headers=[("Link", "<a>"), ("Link", "<b>")])
    first = ask_wsgi(world.app, "k1")
    again = ask_wsgi(world.app, "k1")
    assert (first.status, first.body) == (again.status, again.body) == (201, b"\x00\xff")
    assert again.all("link") == [b"<a>", b"<b>"]
    assert (first.replayed, again.replayed, world.runs) == (False, True, 1)


def test_p3_what_was_replayed_a_moment_ago_is_replayed_again(world: World) -> None:
    world.handler = world.counting
    first, *again = [ask_wsgi(world.app, "k1") for _ in range(4)]
    assert {(reply.status, reply.body, reply.replayed) for reply in again} == {
        (first.status, first.body, True)
    }
    assert ask_wsgi(world.app, "k1", {"other": 1}).status == 422


def test_p1_a_handler_is_renewed_while_it_runs() -> None:
    renewed = threading.Event()

    def slow(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("201 Created" if renewed.wait(20) else "500 Not renewed", [])
        return []

    app = IdempotencyMiddleware(
        slow, store=MemoryStore(), tenant=tenant_of, policy=Policy(lease_s=1)
    )
    probes.arm("before_renew", renewed.set)
    try:
        assert ask_wsgi(app, "k1").status == 201
    finally:
        probes.disarm()
        app.close()


def test_p4_nothing_is_handed_over_before_the_answer_is_recorded(world: World) -> None:
    seen: list[list[State]] = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        seen.append(world.states())

    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/orders",
        "HTTP_IDEMPOTENCY_KEY": "k1",
    }
    assert b"".join(world.app(environ, start_response)) == b'{"ok": true}'
    assert seen == [[State.COMPLETED]]


def test_p5_another_request_tenant_or_path_is_another(world: World) -> None:
    world.handler = world.counting
    ask_wsgi(world.app, "k1", {"a": 1})
    assert ask_wsgi(world.app, "k1", {"a": 2}).kind == "mismatch"
    assert ask_wsgi(world.app, "k1", {"a": 1}, HTTP_X_ACCOUNT="bob").json() == {"run": 2}
    assert ask_wsgi(world.app, "k1", {"a": 1}, path="/refunds").json() == {"run": 3}


def test_e31_a_duplicate_in_flight_is_refused(world: World) -> None:
    inner: list[Reply] = []

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        inner.append(ask_wsgi(world.app, "k1"))
        return world.counting(environ, start_response)

    world.handler = handler
    assert ask_wsgi(world.app, "k1").status == 201
    assert (inner[0].status, inner[0].kind) == (409, "in-flight")
    assert world.runs == 1


def test_p1_one_of_many_threads_runs(world: World) -> None:
    gate = threading.Barrier(16)
    replies: list[Reply] = []

    def client() -> None:
        gate.wait()
        replies.append(ask_wsgi(world.app, "k1"))

    threads = [threading.Thread(target=client) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.runs == 1
    assert {reply.status for reply in replies} <= {201, 409}
    assert ask_wsgi(world.app, "k1").replayed


def test_p2_e33_a_stale_owner_answers_from_the_record_it_finds() -> None:
    world = World(policy=Policy(lease_s=10))

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        run = world.runs
        if run == 1:
            world.clock.advance(11)
            assert ask_wsgi(world.app, "k1").json() == {"run": 2}
        answered: Iterable[bytes] = world.answer_with({"run": run})(environ, start_response)
        return answered

    world.handler = handler
    stale = ask_wsgi(world.app, "k1")
    assert (stale.json(), stale.replayed) == ({"run": 2}, True)
    world.app.close()


def test_p7_who_is_interrupted_before_its_claim_is_answered_spends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(probes.armed, "after_insert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask_wsgi(world.app, "k1")
    for thread in threading.enumerate():
        if thread.name == "oncekey-forget":
            thread.join(20)
    assert world.states() == [State.RELEASED]
    assert ask_wsgi(world.app, "k1", {"another": "request"}).status == 201


def test_e42_what_runs_unprotected_says_so() -> None:
    store = Flaky(FakeClock())
    world = World(store=store, policy=Policy(store_down="run"))
    store.before = [down(False)] * 4
    unprotected = ask_wsgi(world.app, "k1")
    assert (unprotected.status, unprotected.header("idempotency-stored")) == (201, "false")
    assert (world.runs, world.stored()) == (1, 0)
    world.app.close()


def test_p7_a_claim_whose_reply_was_lost_is_released_in_the_background() -> None:
    store = Unheard()
    world = World(store=store)
    refused = ask_wsgi(world.app, "k1")
    assert (refused.status, refused.kind, world.runs) == (503, "store-unavailable", 0)
    assert store.given_back.wait(20)
    store.heard = True
    assert ask_wsgi(world.app, "k1", {"another": "request"}).status == 201
    world.app.close()


def losing_its_store() -> tuple[World, Flaky]:
    """A world of `block` whose store is away from when its handler runs."""
    store = Flaky(FakeClock())
    world = World(store=store, policy=Policy(lease_s=0.2, recovery="block"))
    set_clock(world.app.edge.guard, oncekey._system.clock.SystemClock())

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        store.before = [down(True)] * 100
        return world.counting(environ, start_response)

    world.handler = handler
    return world, store


def test_p4_e43_store_down_at_complete_under_block_answers_and_says_so() -> None:
    world, _ = losing_its_store()
    answered = ask_wsgi(world.app, "k1")
    assert (answered.status, answered.header("idempotency-stored")) == (201, "false")
    assert world.runs == 1
    world.app.close()


def test_e43_a_server_that_fails_at_an_answer_that_was_not_recorded_gives_nothing_back() -> None:
    """Its client may have been told that it is done: a retry must not do it again."""
    world, store = losing_its_store()

    def gone(*line: Any) -> Any:
        store.before = []
        raise OSError("the client hung up")

    with pytest.raises(OSError, match="hung up"):
        ask_wsgi(lambda environ, start_response: world.app(environ, gone), "k1")
    [record] = Gatherer(store).ask(Scan(1))
    assert (record.state, world.runs) == (State.RUNNING, 1)
    world.app.close()


def test_routes_are_written_without_the_path_at_which_the_application_is_mounted() -> None:
    world = World(routes={"POST /orders": Policy(required=True)})
    assert ask_wsgi(world.app, None, SCRIPT_NAME="/shop").kind == "missing-key"
    assert ask_wsgi(world.app, "k1", SCRIPT_NAME="/shop").status == 201
    assert ask_wsgi(world.app, "k1", SCRIPT_NAME="/other").status == 201  # its keys are its own
    assert world.runs == 2


@pytest.mark.parametrize("routes", [{}, {"GET /report": Policy()}], ids=["", "GET is guarded"])
def test_e66_status_query(routes: dict[str, Policy]) -> None:
    world = World(status_path="/idempotency", routes=routes)
    ask_wsgi(world.app, "k1")
    query = {"method": "GET", "path": "/idempotency", "query": "operation=POST%20/orders"}
    assert ask_wsgi(world.app, "k1", b"", **query).json()["state"] == "completed"
    assert ask_wsgi(world.app, "k2", b"", **query).kind == "key-not-found"
    query["method"] = "OPTIONS"
    assert ask_wsgi(world.app, "k1", b"", **query).status == 201  # the application's own
    assert world.runs == 2
    world.app.close()


def test_others_can_look_at_what_became_of_a_key_without_claiming_it() -> None:
    world = World()
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/orders",
        "QUERY_STRING": "",
        "HTTP_IDEMPOTENCY_KEY": "k1",
    }
    assert world.app.state_of(environ) is None
    assert world.stored() == 0
    ask_wsgi(world.app, "k1")
    assert world.app.state_of(environ) == "completed"
    world.app.close()


def test_flask_adopts_it_in_one_line() -> None:
    app = flask.Flask(__name__)
    runs: list[str] = []

    @app.post("/orders")
    def create() -> Any:
        runs.append(str(oncekey.current().key))
        return {"item": flask.request.json["item"]}, 201

    @app.post("/missing")
    def missing() -> Any:
        runs.append("missing")
        return {"error": "no such customer"}, 404

    guarded = IdempotencyMiddleware(app.wsgi_app, store=MemoryStore(), tenant=tenant_of)
    app.wsgi_app = guarded  # type: ignore[method-assign]
    client = app.test_client()
    key = {"Idempotency-Key": "k1"}
    first = client.post("/orders", json={"item": "tea"}, headers=key)
    again = client.post("/orders", json={"item": "tea"}, headers=key)
    assert (first.status_code, again.data) == (201, first.data)
    assert again.headers["Idempotent-Replayed"] == "true"
    for _ in range(2):
        client.post("/missing", json={}, headers=key)
        assert client.post("/nowhere", json={}, headers=key).status_code == 404
    assert runs == ["k1", "missing"]
    guarded.close()


def test_a_middleware_within_itself_is_refused_and_not_waited_for(world: World) -> None:
    with pytest.raises(Misuse, match="there are two IdempotencyMiddleware"):
        IdempotencyMiddleware(world.app, store=world.store, tenant=tenant_of)
    behind = functools.partial(world.app)  # where nobody can see it
    twice = IdempotencyMiddleware(behind, store=world.store, tenant=tenant_of)
    with pytest.raises(Misuse, match="guarded twice"):
        ask_wsgi(twice, "k1")
    assert world.states() == [State.RELEASED]
    twice.close()


def test_a_handler_may_send_requests_to_its_own_application() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/twice":
            assert ask_wsgi(guarded, "inner").body == b"inner"
        start_response("201 Created", [])
        return [str(oncekey.current().key).encode()]

    guarded = IdempotencyMiddleware(app, store=MemoryStore(), tenant=tenant_of)
    assert ask_wsgi(guarded, "outer", path="/twice").body == b"outer"
    assert oncekey.current_or_none() is None
    guarded.close()
