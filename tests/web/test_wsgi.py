"""The WSGI middleware: the same rules, in the server's own thread."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from typing import Any

import flask
import pytest

import oncekey
from oncekey import Policy, guard
from oncekey.clock import FakeClock
from oncekey.core.policy import Verdict
from oncekey.core.record import Answer, State
from oncekey.core.verbs import Count, Scan
from oncekey.errors import Misuse
from oncekey.stores.gather import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.stores.unreliable import Unheard
from tests.web.asgi_world import Flaky, down
from tests.web.client import Reply, ask_wsgi


class World:
    """An application whose handler a test can replace, its store and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.runs = 0
        self.handler = self.answer_with({"ok": True})
        settings = {"store": self.store, "tenant": tenant_of, **settings}
        self.app = IdempotencyMiddleware(self._app, **settings)
        self.app.edge.clock = self.app.edge.guard._clock = self.clock

    def _app(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        self.runs += 1
        environ["werkzeug.request"] = Matched()
        answered: Iterable[bytes] = self.handler(environ, start_response)
        return answered

    def answer_with(self, body: Any, status: str = "201 Created", headers: Any = ()) -> Any:
        def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
            start_response(status, [("Content-Type", "application/json"), *headers])
            return [body if isinstance(body, bytes) else json.dumps(body).encode()]

        return handler

    def counting(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        answered: Iterable[bytes] = self.answer_with({"run": self.runs})(environ, start_response)
        return answered

    def states(self) -> list[State]:
        return [record.state for record in Gatherer(self.store).ask(Scan(100))]

    def stored(self) -> int:
        return int(sum(Gatherer(self.store).ask(Count()).values()))


class Matched:
    url_rule = "/orders"


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.app.close()


def tenant_of(request: oncekey.Request) -> str | None:
    return request.headers.get("x-account", "acme")


def test_p3_a_retry_gets_the_same_answer(world: World) -> None:
    world.handler = world.answer_with(b"\x00\xff", headers=[("Link", "<a>"), ("Link", "<b>")])
    first = ask_wsgi(world.app, "k1")
    again = ask_wsgi(world.app, "k1")
    assert (first.status, first.body) == (again.status, again.body) == (201, b"\x00\xff")
    assert again.all("link") == [b"<a>", b"<b>"]
    assert (first.replayed, again.replayed, world.runs) == (False, True, 1)


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


def test_e38_an_exception_releases_after_failure(world: World) -> None:
    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise ZeroDivisionError

    world.handler = handler
    with pytest.raises(ZeroDivisionError):
        ask_wsgi(world.app, "k1")
    world.handler = world.counting
    assert ask_wsgi(world.app, "k1").json() == {"run": 2}
    assert oncekey.current_or_none() is None


@pytest.mark.parametrize("says_so", [False, True])
def test_p5_who_raises_keeps_its_key_unless_it_says_that_nothing_happened(
    world: World, says_so: bool
) -> None:
    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        if says_so:
            oncekey.current().no_effect()
        raise ZeroDivisionError

    world.handler = handler
    with pytest.raises(ZeroDivisionError):
        ask_wsgi(world.app, "k1", {"a": 1})
    world.handler = world.counting
    other = ask_wsgi(world.app, "k1", {"a": 2})
    assert (other.status, world.runs) == ((201, 2) if says_so else (422, 1))


def test_under_block_a_handler_that_was_cut_off_is_not_run_again() -> None:
    """It did not say that it failed: its effect may have happened."""
    world = World(policy=Policy(recovery="block", lease_s=10))

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise SystemExit(1)  # as servers do to workers that take too long

    world.handler = handler
    with pytest.raises(SystemExit):
        ask_wsgi(world.app, "k1")
    assert ask_wsgi(world.app, "k1").kind == "in-flight"
    world.clock.advance(11)
    assert ask_wsgi(world.app, "k1").kind == "outcome-unknown"
    assert world.runs == 1
    world.app.close()


def test_an_exception_within_the_body_releases_and_closes(world: World) -> None:
    closed: list[bool] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        def close(self) -> None:
            closed.append(True)

    def handler(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return Body()

    world.handler = handler
    with pytest.raises(ZeroDivisionError):
        ask_wsgi(world.app, "k1")
    assert closed == [True]
    assert world.states() == [State.RELEASED]


def test_an_answer_that_the_server_refuses_is_closed_and_kept(world: World) -> None:
    """What a framework does when its answer is closed (ending its session, say) must be done."""
    closed: list[bool] = []

    class Body(list[bytes]):
        def close(self) -> None:
            closed.append(True)

    def handler(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("X-Broken", "line")])
        return Body([b"whole"])

    def refusing(status: str, headers: Any, exc_info: Any = None) -> Any:
        raise ValueError("a header that this server does not send")

    world.handler = handler
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/orders", "HTTP_IDEMPOTENCY_KEY": "k1"}
    with pytest.raises(ValueError, match="does not send"):
        world.app(environ, refusing)
    assert closed == [True]
    assert world.states() == [State.COMPLETED]


def test_an_answer_that_cannot_be_judged_is_closed_and_released() -> None:
    def keep(status: int) -> Verdict:
        if status > 599:
            raise ZeroDivisionError
        return Verdict.KEEP

    world, closed = World(policy=Policy(keep=keep)), list[bool]()

    class Body(list[bytes]):
        def close(self) -> None:
            closed.append(True)

    def handler(environ: Any, start_response: Any) -> Any:
        start_response("600 Strange", [])
        return Body([b"whole"])

    world.handler = handler
    with pytest.raises(ZeroDivisionError):
        ask_wsgi(world.app, "k1")
    assert closed == [True]
    assert world.states() == [State.RELEASED]
    world.app.close()


def test_bytes_written_the_old_way_are_captured(world: World) -> None:
    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [])
        write(b"one ")
        return [b"two"]

    world.handler = handler
    assert ask_wsgi(world.app, "k1").body == b"one two"
    assert ask_wsgi(world.app, "k1").body == b"one two"


def failing(first: bytes) -> Any:
    """Fails within its body, and says so with an error page of its own."""

    def handler(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("201 Created", [("Content-Length", "100")])
        yield first
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            start_response("500 Failed", [("Content-Length", "5")], sys.exc_info())
        yield b"sorry"

    return handler


def test_an_error_page_takes_the_place_of_what_had_begun(world: World) -> None:
    world.handler = failing(b"part")
    reply = ask_wsgi(world.app, "k1")
    assert (reply.status, reply.header("content-length"), reply.body) == (500, "5", b"sorry")
    assert world.states() == [State.RELEASED]


def test_an_error_page_is_kept_although_an_endless_answer_had_begun(world: World) -> None:
    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            start_response("422 Failed", [("Content-Type", "text/plain")], sys.exc_info())
        return [b"sorry"]

    world.handler = handler
    first, again = ask_wsgi(world.app, "k1"), ask_wsgi(world.app, "k1")
    assert again.replayed
    assert (first.status, first.body) == (again.status, again.body) == (422, b"sorry")


def test_an_error_page_that_comes_too_late_is_refused() -> None:
    world = World(policy=Policy(answer_bytes_max=3))
    world.handler = failing(b"part")
    with pytest.raises(ZeroDivisionError):
        ask_wsgi(world.app, "k1")
    assert world.states() == [State.COMPLETED]
    world.app.close()


def test_p7_who_is_interrupted_before_its_claim_is_answered_spends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str) -> None:
        if name == "after_insert":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(guard, "probe", interrupt)
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


def test_p4_e43_store_down_at_complete_under_block_answers_and_says_so() -> None:
    store = Flaky(FakeClock())
    world = World(store=store, policy=Policy(lease_s=0.2, recovery="block"))
    world.app.edge.guard._clock = oncekey.clock.SystemClock()

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        store.before = [down(True)] * 100
        return world.counting(environ, start_response)

    world.handler = handler
    answered = ask_wsgi(world.app, "k1")
    assert (answered.status, answered.header("idempotency-stored")) == (201, "false")
    assert world.runs == 1
    world.app.close()


def test_what_was_first_sent_longer_ago_than_is_remembered_is_refused() -> None:
    world = World(profile="azure")
    variables: dict[str, Any] = {
        "HTTP_REPEATABILITY_REQUEST_ID": "8e03978e-40d5-43e8-bc93-6894a57f9324",
        "HTTP_REPEATABILITY_FIRST_SENT": formatdate(world.clock.wall() - 86_400, usegmt=True),
    }
    assert ask_wsgi(world.app, **variables).status == 412
    assert (world.runs, world.stored()) == (0, 0)
    world.app.close()


@pytest.mark.parametrize("account", [None, ""])
def test_p7_whose_account_is_not_known_is_refused_and_nothing_is_stored(
    account: str | None,
) -> None:
    world = World(tenant=lambda request: account)
    refused = ask_wsgi(world.app, "k1")
    assert (refused.status, refused.kind) == (401, "no-tenant")
    assert (world.runs, world.stored()) == (0, 0)
    world.app.close()


@pytest.mark.parametrize("status", ["500 Oops", "401 No", "409 Conflict"])
def test_p7_refusals_and_failures_are_not_kept(world: World, status: str) -> None:
    world.handler = world.answer_with({}, status)
    assert ask_wsgi(world.app, "k1").status == int(status[:3])
    world.handler = world.counting
    assert ask_wsgi(world.app, "k1").json() == {"run": 2}


def test_e59_an_answer_over_the_limit_is_sent_whole_but_only_the_fact_is_kept() -> None:
    world = World(policy=Policy(answer_bytes_max=1000))

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("201 Created", [("Location", "/exports/7")])
        return (bytes([n]) * 100 for n in range(50))

    world.handler = handler
    first = ask_wsgi(world.app, "k1")
    again = ask_wsgi(world.app, "k1")
    assert first.body == b"".join(bytes([n]) * 100 for n in range(50))
    assert (again.kind, again.header("location")) == ("answer-not-kept", "/exports/7")
    assert world.runs == 1
    world.app.close()


def test_e58_an_answer_is_not_coded_for_one_client(world: World) -> None:
    seen: list[Any] = []

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        seen.append(environ.get("HTTP_ACCEPT_ENCODING"))
        return world.counting(environ, start_response)

    world.handler = handler
    ask_wsgi(world.app, "k1", HTTP_ACCEPT_ENCODING="gzip")
    ask_wsgi(world.app, None, HTTP_ACCEPT_ENCODING="gzip")
    assert seen == [None, "gzip"]


@pytest.mark.parametrize("key", ["", '""', "a b", "a,b", "null", "k" * 256, "schl\xfcssel"])
def test_e2_bad_keys_are_refused_and_nothing_is_stored(world: World, key: str) -> None:
    """In WSGI, two header lines arrive joined by a comma."""
    refused = ask_wsgi(world.app, key)
    assert (refused.status, refused.kind) == (400, "invalid-key")
    assert (world.runs, world.stored()) == (0, 0)


def test_a_body_shorter_than_declared_is_refused(world: World) -> None:
    refused = ask_wsgi(world.app, "k1", b"{}", CONTENT_LENGTH="100")
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert "2 of the 100 bytes" in refused.json()["detail"]
    assert (world.runs, world.stored()) == (0, 0)


@pytest.mark.parametrize("length", ["-2", "+2", "two", "2, 2", "\xb2", "9" * 5_000])
def test_a_length_that_is_no_number_is_refused(world: World, length: str) -> None:
    refused = ask_wsgi(world.app, "k1", CONTENT_LENGTH=length)
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert (world.runs, world.stored()) == (0, 0)


def test_p11_what_is_written_and_too_large_to_keep_goes_out_as_it_comes() -> None:
    """An application that writes a gigabyte would have to fit into memory."""
    world, sent = World(policy=Policy(answer_bytes_max=10)), list[bytes]()
    seen: list[tuple[int, State]] = []

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        for _ in range(5):
            write(b"x" * 4)
            seen.append((len(b"".join(sent)), world.states()[0]))
        return [b"end"]

    world.handler = handler
    assert ask_wsgi(world.app, "k1", written=sent).body == b"x" * 20 + b"end"
    assert seen[:2] == [(0, State.RUNNING), (0, State.RUNNING)]
    assert seen[2:] == [(12, State.COMPLETED), (16, State.COMPLETED), (20, State.COMPLETED)]
    assert ask_wsgi(world.app, "k1").kind == "answer-not-kept"
    world.app.close()


def test_p2_what_is_written_by_who_lost_its_record_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(policy=Policy(answer_bytes_max=10))
    monkeypatch.setattr(world.app, "_conclude", lambda *_: Answer(409, (), b"what is recorded"))

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [])
        write(b"x" * 20)
        write(b"y" * 20)
        return [b"end"]

    world.handler = handler
    reply = ask_wsgi(world.app, "k1")
    assert (reply.status, reply.body) == (409, b"what is recorded")
    world.app.close()


def test_e25_a_body_over_the_limit_is_refused_before_it_is_read(world: World) -> None:
    refused = ask_wsgi(world.app, "k1", b"", CONTENT_LENGTH="5000000")
    assert (refused.status, refused.kind) == (413, "request-too-large")
    assert (world.runs, world.stored()) == (0, 0)


def test_a_chunked_body_is_read_where_the_server_ends_it(world: World) -> None:
    got: list[bytes] = []

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        got.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        return world.counting(environ, start_response)

    world.handler = handler
    chunked: dict[str, Any] = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    assert ask_wsgi(world.app, "k1", b'{"a": 1}', **chunked).status == 201
    assert got == [b'{"a": 1}']
    too_large = ask_wsgi(world.app, "k2", b"x" * 2_000_000, content_type="text/plain", **chunked)
    assert too_large.kind == "request-too-large"


def test_p5_a_chunked_body_whose_end_nobody_tells_is_not_taken_for_an_empty_one(
    world: World,
) -> None:
    chunked = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}
    assert ask_wsgi(world.app, "k1", b'{"a": 1}', **chunked).kind == "malformed-request"
    assert (world.runs, world.stored()) == (0, 0)


def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business() -> None:
    world = World(profile="square", policy=Policy(request_bytes_max=10))
    upload = ask_wsgi(world.app, None, b"x" * 100, content_type="image/png")
    assert (upload.status, world.runs) == (201, 1)
    world.app.close()


def test_the_key_is_required_where_the_policy_says_so() -> None:
    world = World(routes={"POST /payments": Policy(required=True)})
    assert ask_wsgi(world.app, None).status == 201
    assert ask_wsgi(world.app, None, path="/payments").kind == "missing-key"
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
        runs.append(oncekey.current().key)
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


def test_p5_paths_that_are_no_text_are_refused_rather_than_taken_for_each_other(
    world: World,
) -> None:
    for path in ("/files/\xff", "/files/\xfe", "/files/\0"):
        assert ask_wsgi(world.app, "k1", path=path).kind == "malformed-request"
    assert (world.runs, world.stored()) == (0, 0)
    assert ask_wsgi(world.app, "k1", path="/files/\xc3\xa9").status == 201


def test_a_middleware_within_itself_is_refused_and_not_waited_for(world: World) -> None:
    twice = IdempotencyMiddleware(world.app, store=world.store, tenant=tenant_of)
    with pytest.raises(Misuse, match="guarded twice"):
        ask_wsgi(twice, "k1")
    assert world.states() == [State.RELEASED]
    twice.close()


def test_a_handler_may_send_requests_to_its_own_application() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/twice":
            assert ask_wsgi(guarded, "inner").body == b"inner"
        start_response("201 Created", [])
        return [oncekey.current().key.encode()]

    guarded = IdempotencyMiddleware(app, store=MemoryStore(), tenant=tenant_of)
    assert ask_wsgi(guarded, "outer", path="/twice").body == b"outer"
    assert oncekey.current_or_none() is None
    guarded.close()
