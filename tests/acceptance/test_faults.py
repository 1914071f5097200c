"""The middleware on a real server, its store behind a wire that loses replies, breaks and hangs.

However the wire behaves: the effect happens as often as the recovery allows and no more, clients
get one answer for ever (P3), and nothing is stuck (P6). Leases run out because the store's dates
are moved, not because somebody waits.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from oncekey import Policy, single_tenant
from oncekey._core.record import State
from oncekey._system import probes
from oncekey.events import Event, StoreAsked
from oncekey.stores.dynamodb import leases
from oncekey.web.asgi import IdempotencyMiddleware
from tests import observing
from tests.acceptance.client import Client
from tests.acceptance.serve import serving
from tests.acceptance.shop import WAIT_S_MAX, Shop
from tests.places import Place, met_at
from tests.servers import Server, start_mariadb, start_postgres, start_redis
from tests.stores import elapse
from tests.stores.wire import Wire
from tests.web.client import Reply

pytestmark = pytest.mark.slow

TIMEOUT_S = 0.5
"""How long the store is waited for."""
LEASE_S = 30.0
SHORT_LEASE_S = 2.0
"""Where a handler's answer must not be recorded before its lease is nearly over."""


class Watcher:
    """Hears every question to the store, and does something once when one is not answered."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.at_first_loss: Callable[[], None] = lambda: None

    def __call__(self, event: Event, /) -> None:
        if isinstance(event, StoreAsked) and event.error is not None:
            self.lost.append(event.verb)
            if len(self.lost) == 1:
                self.at_first_loss()


@dataclass
class Line:
    """A shop, its store, and the wire in between."""

    shop: Shop
    client: Client
    place: Place
    wire: Wire
    watcher: Watcher
    key: str

    def ask(self, **request: Any) -> Reply:
        return self.client.ask(self.key, **request)

    def asking(self) -> tuple[threading.Thread, list[Reply]]:
        """A request under way, and where its answer will be."""
        replies: list[Reply] = []
        thread = threading.Thread(target=lambda: replies.append(self.ask()))
        thread.start()
        return thread, replies

    def arm(self, at: str, action: Callable[[], None]) -> None:
        """Do something when the next request passes this probe, once."""

        def once() -> None:
            probes.disarm()
            action()

        probes.arm(at, once)

    def assert_settled(self, answer: Reply, *, runs: int) -> None:
        """P3, P6: every retry gets this answer, byte for byte, and nothing runs again."""
        for _ in range(3):
            again = self.ask()
            assert (again.status, again.body) == (answer.status, answer.body)
            assert again.replayed
        assert self.shop.runs == runs
        record = self.place.look(self.key, "POST /orders")
        assert record is not None
        assert record.state is State.COMPLETED


@contextmanager
def line_to(place: Place, **policy: Any) -> Iterator[Line]:
    """A server whose store is at the other end of a wire; every connection has been used once."""
    shop, watcher = Shop(), Watcher()
    there = re.search(r"127\.0\.0\.1:(\d+)", place.url)
    assert there is not None
    settings = Policy(**{"lease_s": LEASE_S, **policy})
    with Wire(int(there[1])) as wire:
        url = place.url.replace(there[0], f"127.0.0.1:{wire.port}", 1)
        url += f"&timeout_s={TIMEOUT_S}&connect_timeout_s={TIMEOUT_S}"
        app = IdempotencyMiddleware(
            shop.app, store=url, tenant=single_tenant, policy=settings, hooks=[watcher]
        )
        with serving(app) as client:
            try:
                warm_up(client, shop)
                yield Line(shop, client, place, wire, watcher, str(uuid.uuid4()))
            finally:
                probes.disarm()
                shop.go_on.set()
                wire.pass_all()


def warm_up(client: Client, shop: Shop) -> None:
    """Complete and release once: the next reply is then that to a verb, not to the making of a
    connection or of a statement.
    """
    assert client.ask(str(uuid.uuid4())).status == 201
    shop.handler = failing
    assert client.ask(str(uuid.uuid4())).status == 503
    shop.handler, shop.runs = shop.receipt, 0


async def failing(request: Request) -> Response:
    return JSONResponse({"error": "the card reader is unplugged"}, status_code=503)


_USUAL, _LONG = ("postgres", "redis", "pgbouncer"), ("mariadb", "dynamodb", "tiered")


@pytest.fixture(params=[*_USUAL, *(pytest.param(n, marks=pytest.mark.long) for n in _LONG)])
def distant(
    request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A store that is reached by TCP."""
    behind = "postgres" if request.param == "pgbouncer" else request.param
    with met_at(behind, request, tmp_path) as place:
        if place.observing is not None:
            monkeypatch.setattr(leases, "LeaseObserver", observing.Watched)
        if request.param == "pgbouncer":
            url = request.getfixturevalue("pgbouncer_url")
            place = replace(
                place, name="pgbouncer", url=f"{url}?allow=unsafe-durability&pgbouncer=true"
            )
        yield place


@pytest.fixture
def line(distant: Place) -> Iterator[Line]:
    with line_to(distant) as line:
        yield line


# ---------------------------------------------------------------------------- one message lost

FAULTS = {
    "reply-swallowed": Wire.cut_at_next_reply,
    "reset-before-it-was-sent": Wire.cut_at_next_question,
}


@pytest.mark.parametrize("at", ["before_insert", "before_complete"])
@pytest.mark.parametrize("fault", FAULTS)
def test_p9_p3_a_connection_that_breaks_around_a_write_changes_nothing(
    line: Line, fault: str, at: str
) -> None:
    line.arm(at, partial(FAULTS[fault], line.wire))
    answer = line.ask()
    assert line.wire.cuts == 1
    assert line.watcher.lost == ["insert" if at == "before_insert" else "swap"]
    assert (answer.status, answer.json()["run"], answer.replayed) == (201, 1, False)
    line.assert_settled(answer, runs=1)


@pytest.mark.parametrize("fault", FAULTS)
def test_p9_a_release_whose_reply_is_lost_is_a_release(line: Line, fault: str) -> None:
    line.shop.handler = failing
    line.arm("before_release", partial(FAULTS[fault], line.wire))
    assert line.ask().status == 503
    assert (line.wire.cuts, line.watcher.lost) == (1, ["swap"])
    line.shop.handler = line.shop.receipt
    answer = line.ask()
    assert answer.json()["run"] == 2
    line.assert_settled(answer, runs=2)


@pytest.mark.parametrize("fault", FAULTS)
def test_p9_p1_a_take_over_whose_reply_is_lost_is_a_take_over(line: Line, fault: str) -> None:
    """And the attempt that was taken over answers what its heir answered."""
    take_over(line)  # once undisturbed: the second time all its statements are known
    line.key = str(uuid.uuid4())
    line.shop.runs = 0
    line.arm("before_take_over", partial(FAULTS[fault], line.wire))
    answer = take_over(line)
    assert (line.wire.cuts, line.watcher.lost) == (1, ["swap"])
    line.assert_settled(answer, runs=2)


def lapse(line: Line, lease_s: float) -> None:
    """Let the lease run out. Where leases are observed, somebody must have watched it."""
    if line.place.observing is not None:
        assert line.ask().kind == "in-flight"
    line.place.elapse(lease_s)


def take_over(line: Line) -> Reply:
    """What the heir of an attempt that outlived its lease answers; and so does that attempt."""
    line.shop.started.clear()
    line.shop.go_on.clear()
    line.shop.handler = line.shop.held
    first, replies = line.asking()
    assert line.shop.started.wait(WAIT_S_MAX)
    lapse(line, LEASE_S)
    line.shop.handler = line.shop.receipt
    answer = line.ask()
    assert answer.json()["run"] == 2
    line.shop.go_on.set()
    first.join(WAIT_S_MAX)
    assert (replies[0].status, replies[0].body) == (201, answer.body)
    return answer


# ------------------------------------------------------------------------------ a store that hangs


@pytest.mark.parametrize("at", ["before_insert", "before_complete"])
def test_p9_a_store_that_hangs_for_longer_than_its_timeout_is_asked_again(
    line: Line, at: str
) -> None:
    line.watcher.at_first_loss = line.wire.pass_all
    line.arm(at, line.wire.hold_replies)
    answer = line.ask()
    assert line.watcher.lost == ["insert" if at == "before_insert" else "swap"]
    assert answer.json()["run"] == 1
    line.assert_settled(answer, runs=1)


def test_p7_e42_a_store_that_hangs_at_the_claim_spends_nothing(line: Line) -> None:
    """Nothing ran. The claim that may have been made is given back as soon as the store answers, so
    that the retry need not wait for a lease.
    """
    line.arm("before_insert", line.wire.hold_replies)
    refused = line.ask()
    assert (refused.status, refused.kind) == (503, "store-unavailable")
    assert line.shop.runs == 0
    line.wire.pass_all()
    answer = retried(line)
    assert answer.json()["run"] == 1
    line.assert_settled(answer, runs=1)


def retried(line: Line) -> Reply:
    """The answer to a client that comes back for as long as it is told that the key is in flight:
    much sooner than its lease is over.
    """
    for _ in range(100):
        reply = line.ask()
        if reply.status != 409:
            return reply
        threading.Event().wait(0.05)
    raise AssertionError(f"still in flight: {reply}")


def test_p4_no_byte_is_sent_while_the_completing_write_is_unanswered(line: Line) -> None:
    seen: list[bool] = []
    with line.client.open() as connection:

        def look() -> None:
            seen.append(connection.has_something())
            line.wire.pass_all()

        line.watcher.at_first_loss = look
        line.arm("before_complete", line.wire.hold_replies)
        connection.send(
            b"POST /orders HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\nIdempotency-Key: " + line.key.encode() + b"\r\n\r\n{}"
        )
        answer = connection.read()
    assert seen == [False]
    line.assert_settled(answer, runs=1)


def test_p4_p9_e43_an_answer_that_may_be_recorded_is_not_said_before_that_is_known(
    distant: Place,
) -> None:
    """The write was carried out, but nobody heard of it until the lease was nearly over: the client
    is told to ask again, and then gets it.
    """
    with line_to(distant, lease_s=SHORT_LEASE_S) as line:
        line.arm("before_complete", line.wire.hold_replies)
        refused = line.ask()
        assert (refused.status, refused.kind) == (503, "store-unavailable")
        line.wire.pass_all()
        answer = line.ask()
        assert (answer.status, answer.json()["run"]) == (201, 1)
        line.assert_settled(answer, runs=1)


def test_p4_p6_e43_an_answer_that_was_never_recorded_is_never_said(distant: Place) -> None:
    """Under `rerun` the retry runs again, one lease later at most, and its answer is the answer."""
    with line_to(distant, lease_s=SHORT_LEASE_S) as line:
        line.arm("before_complete", line.wire.hold_questions)
        refused = line.ask()
        assert (refused.status, refused.kind) == (503, "store-unavailable")
        line.wire.pass_all()
        lapse(line, SHORT_LEASE_S)
        answer = line.ask()
        assert (answer.status, answer.json()["run"]) == (201, 2)
        line.assert_settled(answer, runs=2)


def test_p4_e43_under_block_it_is_said_and_marked_and_never_runs_again(distant: Place) -> None:
    with line_to(distant, lease_s=SHORT_LEASE_S, recovery="block") as line:
        line.arm("before_complete", line.wire.hold_questions)
        answer = line.ask()
        assert (answer.status, answer.json()["run"]) == (201, 1)
        assert answer.header("idempotency-stored") == "false"
        line.wire.pass_all()
        lapse(line, SHORT_LEASE_S)
        told = [line.ask().kind for _ in range(3)]
        assert told == ["outcome-unknown"] * 3
        assert line.shop.runs == 1


def test_p1_a_heartbeat_whose_connection_breaks_makes_another(distant: Place) -> None:
    renewed = threading.Semaphore(0)
    with line_to(distant, lease_s=SHORT_LEASE_S) as line:
        line.shop.handler = line.shop.held
        thread, replies = line.asking()
        assert line.shop.started.wait(WAIT_S_MAX)
        line.arm("before_renew", line.wire.cut_at_next_question)
        assert until(lambda: line.wire.cuts == 1)
        probes.arm("after_renew", renewed.release)
        for _ in range(4):  # a lease and a third
            assert renewed.acquire(timeout=WAIT_S_MAX)
        refused = line.ask()
        line.shop.go_on.set()
        thread.join(WAIT_S_MAX)
        assert refused.kind == "in-flight"
        assert replies[0].json()["run"] == 1
        line.assert_settled(replies[0], runs=1)


def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true, within a bounded time."""
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


# ------------------------------------------------------------------------------- a store that dies


def _postgres(server: Server) -> Place:
    url = f"{server.url}?allow=unsafe-durability"
    return Place("postgres", url, partial(elapse.postgres, server.url))


def _redis(server: Server) -> Place:
    return Place(
        "redis", f"{server.url}?prefix=mortal", partial(elapse.redis, server.url, "mortal")
    )


def _mariadb(server: Server) -> Place:
    url = f"{server.url}?allow=unsafe-durability"
    return Place("mariadb", url, partial(elapse.mysql, server.url))


MORTALS: dict[str, tuple[Callable[[], Server], Callable[[Server], Place]]] = {
    "postgres": (start_postgres, _postgres),
    "redis": (start_redis, _redis),
    "mariadb": (start_mariadb, _mariadb),
}


@pytest.fixture(
    scope="module", params=["postgres", "redis", pytest.param("mariadb", marks=pytest.mark.long)]
)
def mortal(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Place]]:
    """A server of one's own, to be killed as by a loss of power, with what it had acknowledged."""
    start, at = MORTALS[request.param]
    with start() as server:
        place = at(server)
        place.migrate()
        yield server, place


@pytest.mark.parametrize(
    "at", ["before_insert", "after_insert", "after_handler", "before_complete"]
)
def test_p3_p6_p9_the_store_is_killed_and_comes_back(mortal: tuple[Server, Place], at: str) -> None:
    """Whoever has a question goes on asking it; what was acknowledged is still there."""
    server, place = mortal
    reached, killed, missed = threading.Event(), threading.Event(), threading.Event()

    def wait_for_the_killing() -> None:
        reached.set()
        assert killed.wait(WAIT_S_MAX)

    with line_to(place) as line:
        line.watcher.at_first_loss = missed.set
        line.arm(at, wait_for_the_killing)
        thread, replies = line.asking()
        assert reached.wait(WAIT_S_MAX)
        server.kill()
        killed.set()
        assert missed.wait(WAIT_S_MAX)
        server.restart()
        thread.join(WAIT_S_MAX)
        answer = replies[0] if replies[0].status != 503 else retried(line)
        assert (answer.status, answer.json()["run"]) == (201, 1)
        line.assert_settled(answer, runs=1)


def test_p3_the_store_is_killed_and_comes_back_while_the_handler_runs(
    mortal: tuple[Server, Place],
) -> None:
    server, place = mortal
    with line_to(place) as line:
        line.shop.handler = line.shop.held
        thread, replies = line.asking()
        assert line.shop.started.wait(WAIT_S_MAX)
        server.kill()
        server.restart()
        line.shop.go_on.set()
        thread.join(WAIT_S_MAX)
        assert (replies[0].status, replies[0].json()["run"]) == (201, 1)
        line.assert_settled(replies[0], runs=1)
