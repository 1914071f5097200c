"""Which answers of a WSGI application are kept, and what becomes of the others."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncekey
from oncekey import Policy
from oncekey._core.policy import Verdict
from oncekey._core.record import Answer, State
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.web.client import ask_wsgi
from tests.web.wsgi_world import World, world

__all__ = ["world"]


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
    assert ask_wsgi(world.app, "k1").kind == "outcome-unknown"
    assert world.app.edge.heartbeat._schedule.next_at() is None, "P6: nobody renews it"
    assert world.runs == 1
    world.app.close()


@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_within_the_body_releases_and_closes(
    world: World, raised: type[BaseException]
) -> None:
    closed: list[bool] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield b"half"
            raise raised

        def close(self) -> None:
            closed.append(True)

    def handler(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return Body()

    world.handler = handler
    with pytest.raises(raised):
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
    """A part that is empty is no beginning: no server would have sent the head with it."""

    def handler(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        yield b""
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            start_response("422 Failed", [("Content-Type", "text/plain")], sys.exc_info())
        yield b"sorry"

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


@pytest.mark.parametrize("then", ["answers", "streams", "raises"])
def test_p3_what_was_recorded_with_the_rows_is_answered_whatever_follows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, then: str
) -> None:
    rows = sqlite3.connect(tmp_path / "shop.db")
    rows.execute("CREATE TABLE orders (id TEXT)")

    def order(environ: Any, start_response: Any) -> Iterable[bytes]:
        with rows:
            rows.execute("INSERT INTO orders VALUES ('o')")
            oncekey.current().complete_in_sync(rows, 201, b"made")
        if then == "raises":
            raise ConnectionError("after the commit")
        start_response("200 OK", [])
        return [b"x" * 100, b"something else"] if then == "streams" else [b"something else"]

    app = IdempotencyMiddleware(
        order,
        store=SqliteStore(tmp_path / "shop.db"),
        tenant=oncekey.single_tenant,
        policy=Policy(answer_bytes_max=50),
    )
    first, again = ask_wsgi(app, "k1"), ask_wsgi(app, "k1")
    assert (first.status, first.body, first.replayed) == (201, b"made", False)
    assert (again.status, again.body, again.replayed) == (201, b"made", True)
    assert ("failed after its outcome was decided" in caplog.text) == (then == "raises")
    assert rows.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    app.close()
    rows.close()


def test_an_answer_that_another_is_sent_for_is_closed() -> None:
    """As every answer is: a framework ends its session there, say."""
    world, closed = World(policy=Policy(lease_s=10)), list[int]()

    class Body(list[bytes]):
        def __init__(self, run: int) -> None:
            super().__init__([b"run %d" % run])
            self.run = run

        def close(self) -> None:
            closed.append(self.run)

    def handler(environ: Any, start_response: Any) -> Any:
        run = world.runs
        if run == 1:
            world.clock.advance(11)
            assert ask_wsgi(world.app, "k1").body == b"run 2"
        start_response("200 OK", [])
        return Body(run)

    world.handler = handler
    assert ask_wsgi(world.app, "k1").body == b"run 2"
    assert closed == [2, 1]
    world.app.close()
