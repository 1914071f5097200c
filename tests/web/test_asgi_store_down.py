"""An ASGI application whose store fails: before its handler runs, and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import oncekey
from oncekey import Policy
from oncekey._core.record import State
from oncekey._core.verbs import Insert, Scan
from oncekey._engine import background
from oncekey._system import clock
from oncekey.errors import StoreUnfit
from oncekey.stores.batching import Gatherer
from tests.clocks import set_clock
from tests.web.asgi_world import World, down, flaky_world
from tests.web.client import ask

pytestmark = pytest.mark.anyio


async def test_p9_lost_replies_to_insert_and_complete_are_harmless() -> None:
    world, store = flaky_world()
    world.handler = world.counting()
    await ask(world.app, "k0")  # the store's notice has been read: what follows is about k1 alone

    async def handler(receive: Any, send: Any) -> None:
        store.after = [down(True), down(True)]
        await world.counting()(receive, send)

    store.after = [down(True), down(True)]
    world.handler = handler
    first = await ask(world.app, "k1")
    assert (first.status, first.json()) == (201, {"run": 2})
    assert not first.replayed  # it is its own answer, cookies and all
    assert (await ask(world.app, "k1")).body == first.body
    assert world.runs == 2


async def test_e42_store_down_at_the_claim_refuses_and_runs_nothing() -> None:
    world, store = flaky_world()
    store.before = [down(False)] * 4
    refused = await ask(world.app, "k1")
    assert (refused.status, refused.kind) == (503, "store-unavailable")
    assert refused.json()["retryable"] is True
    assert (world.runs, world.stored()) == (0, 0)


async def test_e42_run_unprotected_only_when_the_insert_was_not_sent() -> None:
    world, store = flaky_world(policy=Policy(store_down="run"))
    store.before = [down(False)] * 4
    unprotected = await ask(world.app, "k1")
    assert (unprotected.status, unprotected.header("idempotency-stored")) == (201, "false")
    store.before = [down(False), down(True), down(False), down(False)]
    assert (await ask(world.app, "k2")).status == 503
    assert world.runs == 1


async def test_p7_a_claim_whose_reply_was_lost_is_released_in_the_background() -> None:
    world, store = flaky_world()
    original = store.perform

    def perform(verbs: Any) -> Any:
        """The insert happens, but neither it nor its repetitions are heard of."""
        outcomes = yield from original(verbs)
        if any(isinstance(verb, Insert) for verb in verbs):
            raise down(True)
        return outcomes

    store.perform = perform  # type: ignore[method-assign]
    refused = await ask(world.app, "k1")
    await world.app.drain()
    store.perform = original  # type: ignore[method-assign]
    assert refused.status == 503
    assert world.states() == [State.RELEASED]
    assert (await ask(world.app, "k1", {"another": "request"})).status == 201


async def test_p11_what_releases_lost_claims_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FORGETS_ASYNC_MAX", 2)
    world, forgotten = World(), list[Any]()

    def forget(claim: Any) -> Iterator[Any]:
        forgotten.append(claim)
        yield from ()

    monkeypatch.setattr(world.app.edge.guard.ownership, "forget", forget)
    for claim in range(5):
        world.app.edge.runtime.background.forget(claim)  # type: ignore[arg-type]
    await world.app.drain()
    assert forgotten == [0, 1]


async def test_e43_store_down_at_complete_under_rerun_answers_503() -> None:
    world, store = flaky_world(policy=Policy(lease_s=0.2))
    set_clock(world.app.edge.guard, clock.SystemClock())

    async def handler(receive: Any, send: Any) -> None:
        store.before = [down(True)] * 100
        await world.counting()(receive, send)

    world.handler = handler
    refused = await ask(world.app, "k1")
    store.before = []
    assert (refused.status, refused.kind) == (503, "store-unavailable")
    world.clock.advance(1)
    world.handler = world.counting()
    assert (await ask(world.app, "k1")).json() == {"run": 2}


async def test_p4_e43_store_down_at_complete_under_block_answers_and_says_so() -> None:
    world, store = flaky_world(policy=Policy(lease_s=0.2, recovery="block"))

    async def handler(receive: Any, send: Any) -> None:
        store.before = [down(True)] * 100
        await world.counting()(receive, send)

    world.handler = handler
    answered = await ask(world.app, "k1")
    store.before = []
    assert (answered.status, answered.header("idempotency-stored")) == (201, "false")
    world.clock.advance(1)
    assert (await ask(world.app, "k1")).kind == "outcome-unknown"
    assert world.runs == 1


async def test_e43_a_handler_that_fails_after_an_unrecorded_answer_gives_nothing_back() -> None:
    """Its client was told that it is done: a retry must not do it again."""
    world, store = flaky_world(policy=Policy(lease_s=0.2, recovery="block"))

    async def handler(receive: Any, send: Any) -> None:
        store.before = [down(True)] * 100
        await world.counting()(receive, send)
        store.before = []
        raise RuntimeError("a task behind the answer")

    world.handler = handler
    with pytest.raises(RuntimeError, match="a task behind the answer"):
        await ask(world.app, "k1")
    assert world.states() == [State.RUNNING]
    world.clock.advance(1)
    assert (await ask(world.app, "k1")).kind == "outcome-unknown"


async def test_e43_a_store_that_is_unfit_for_a_moment_at_complete_is_asked_again() -> None:
    world, store = flaky_world()

    async def handler(receive: Any, send: Any) -> None:
        store.before = [StoreUnfit("it is a replica now")]
        await world.counting()(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).json() == {"run": 1}
    assert (await ask(world.app, "k1")).replayed


async def test_e43_a_store_that_stays_unfit_at_complete_answers_503() -> None:
    world, store = flaky_world(policy=Policy(lease_s=0.2))

    async def handler(receive: Any, send: Any) -> None:
        store.before = [StoreUnfit("it is a replica now")] * 100
        await world.counting()(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).kind == "store-unavailable"


async def test_a_refusal_is_sent_although_the_store_is_unfit_to_release_it() -> None:
    world, store = flaky_world(policy=Policy(lease_s=0.2))

    async def handler(receive: Any, send: Any) -> None:
        store.before = [StoreUnfit("it is a replica now")] * 100
        await world.answer_with({}, status=403)(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).status == 403


@pytest.mark.parametrize(("created", "kept"), [(42, "42"), ("a\0b", "a\\x00b"), (None, None)])
async def test_a_resource_id_is_text_that_every_store_takes(created: Any, kept: str | None) -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        oncekey.current().resource_id = created
        await world.counting()(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).status == 201
    [record] = Gatherer(world.store).ask(Scan(1))
    assert record.resource_id == kept
