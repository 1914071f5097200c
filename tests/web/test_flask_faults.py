"""Flask's views when something fails: the store, an attempt that died, the set-up itself."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pytest
from flask import Flask

import oncekey
from oncekey import Attempt, Learned, Misuse, Policy
from oncekey._core.record import Answer, State
from oncekey._core.verbs import Scan
from oncekey._system import probes
from oncekey._system.clock import FakeClock
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web import _decorators as marks
from oncekey.web.flask import idempotent
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.stores.unreliable import Unheard
from tests.web.client import ask_wsgi
from tests.web.flask_world import World, ordering

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

    def between(environ: Any, start_response: Any) -> Any:  # nobody can look into it
        return world.app(environ, start_response)

    app = IdempotencyMiddleware(
        between, store=MemoryStore(FakeClock()), tenant=oncekey.single_tenant
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
    def interrupt() -> None:
        raise KeyboardInterrupt

    store = Unheard()
    store.heard = True
    world = ordering(store=store)
    with monkeypatch.context() as patched:
        patched.setitem(probes.armed, "after_insert", interrupt)
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
