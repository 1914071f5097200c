"""The inbox runs a handler once per message and tells the consumer what to do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import oncekey
from oncekey import Misuse, Policy, Runtime, StoreUnavailable
from oncekey._core.key import record_id, short_hash
from oncekey._core.record import Record
from oncekey._core.verbs import Find
from oncekey._system.clock import FakeClock
from oncekey.messaging import Busy, Duplicate, Handled, Inbox, Rejected, Released, Then, Unknown
from oncekey.messaging.faststream import OnceMiddleware
from oncekey.stores.memory import MemoryStore
from tests.stores.unreliable import Unreachable

Handle = Callable[..., Awaitable[Any]]


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.runtime = Runtime(MemoryStore(self.clock), clock=self.clock)
        self.runs: list[Any] = []

    def inbox(self, **policy: Any) -> Inbox:
        return Inbox(self.runtime, name="orders", policy=Policy(**policy))

    def ship(self, *args: Any) -> str:
        self.runs.append(args)
        return "shipped"

    async def ship_async(self, *args: Any) -> str:
        await asyncio.sleep(0)
        return self.ship(*args)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.runtime.close()


@pytest.fixture(params=["awaited", "blocking"])
def handle(request: pytest.FixtureRequest, world: World) -> Handle:
    async def blocking(inbox: Inbox, *args: Any, **kwargs: Any) -> Any:
        return inbox.handle_sync(*args, **kwargs)

    return Inbox.handle if request.param == "awaited" else blocking


# ------------------------------------------------------------------------------------ outcomes


async def test_a_message_is_handled_once(world: World, handle: Handle) -> None:
    inbox = world.inbox()
    first = await handle(inbox, "m1", world.ship, 17, payload=b"17")
    again = await handle(inbox, "m1", world.ship, 17, payload=b"17")
    other = await handle(inbox, "m2", world.ship, 17, payload=b"17")

    assert (first, again, other) == (Handled("shipped"), Duplicate("shipped"), Handled("shipped"))
    assert {first.then, again.then} == {Then.ACKNOWLEDGE}
    assert world.runs == [(17,), (17,)]


async def test_handlers_may_be_async(world: World) -> None:
    inbox = world.inbox()
    assert await inbox.handle("m1", world.ship_async) == Handled("shipped")
    assert await inbox.handle("m1", world.ship_async) == Duplicate("shipped")
    with pytest.raises(Misuse, match="coroutine, which did not run"):
        inbox.handle_sync("m2", world.ship_async)
    assert inbox.handle_sync("m2", world.ship) == Handled("shipped")


async def test_what_is_being_handled_is_delivered_later(world: World, handle: Handle) -> None:
    inbox = world.inbox()
    meanwhile: list[Any] = []

    def ship() -> None:
        meanwhile.append(inbox.handle_sync("m1", world.ship))

    assert await handle(inbox, "m1", ship) == Handled(None)
    assert meanwhile == [Busy(1.0)]
    assert meanwhile[0].then is Then.REDELIVER
    assert world.runs == []


async def test_what_failed_is_delivered_again(world: World, handle: Handle) -> None:
    inbox = world.inbox()

    def fails() -> None:
        raise ConnectionError("no answer")

    with pytest.raises(ConnectionError):
        await handle(inbox, "m1", fails)
    assert await handle(inbox, "m1", world.ship) == Handled("shipped")


async def test_what_is_not_done_yet_is_delivered_again(world: World, handle: Handle) -> None:
    inbox = world.inbox()

    def not_yet() -> str:
        oncekey.current().transient()
        return "out of stock"

    outcome = await handle(inbox, "m1", not_yet)
    assert outcome == Released("out of stock")
    assert outcome.then is Then.REDELIVER
    assert await handle(inbox, "m1", world.ship) == Handled("shipped")


async def test_an_unknown_outcome_is_never_acknowledged(world: World, handle: Handle) -> None:
    inbox = world.inbox(recovery="block")

    def dies() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inbox.handle_sync("m1", dies)
    world.clock.advance(31)
    outcome = await handle(inbox, "m1", world.ship)
    assert isinstance(outcome, Unknown)
    assert outcome.then is Then.DEAD_LETTER
    assert world.runs == []


async def test_p5_another_message_under_the_same_id_is_rejected(
    world: World, handle: Handle
) -> None:
    inbox = world.inbox()
    await handle(inbox, "m1", world.ship, payload=b"one")
    outcome = await handle(inbox, "m1", world.ship, payload=b"two")
    assert isinstance(outcome, Rejected)
    assert outcome.then is Then.DEAD_LETTER
    assert outcome.of == f"{inbox._operation.name} key={short_hash('m1')}"
    assert len(world.runs) == 1


async def test_what_was_done_so_long_ago_that_only_a_tombstone_is_left_is_acknowledged(
    world: World, handle: Handle
) -> None:
    inbox = world.inbox(retention_s=60, tombstone_s=3600)
    await handle(inbox, "m1", world.ship)
    world.clock.advance(60)
    assert await handle(inbox, "m1", world.ship) == Duplicate(None)
    assert len(world.runs) == 1


async def test_what_was_done_is_acknowledged_even_if_its_result_was_not_kept(
    world: World, handle: Handle
) -> None:
    inbox = world.inbox()
    with pytest.raises(Misuse, match="JSON"):
        await handle(inbox, "m1", object)
    assert await handle(inbox, "m1", world.ship) == Duplicate(None)
    assert world.runs == []


def test_p7_without_a_store_nothing_runs_and_nothing_is_acknowledged(world: World) -> None:
    with Runtime(Unreachable()) as runtime:
        with pytest.raises(StoreUnavailable):
            Inbox(runtime, name="orders").handle_sync("m1", world.ship)
        unprotected = Inbox(runtime, name="orders", policy=Policy(store_down="run"))
        assert unprotected.handle_sync("m1", world.ship) == Handled("shipped", stored=False)
    assert len(world.runs) == 1


def test_steps_survive_a_failure(world: World) -> None:
    def ship() -> Any:
        attempt = oncekey.current()
        label = attempt.step_sync("label", world.ship)
        if attempt.attempt == 1:
            raise ConnectionError
        return label

    inbox = world.inbox(recovery="resume")
    with pytest.raises(ConnectionError):
        inbox.handle_sync("m1", ship)
    assert inbox.handle_sync("m1", ship) == Handled("shipped")
    assert len(world.runs) == 1


def test_the_recoverer_leaves_messages_to_their_broker(world: World) -> None:
    """`resume` would have it give up a record whose message comes back only after an hour."""
    world.inbox(recovery="resume").handle_sync("m1", world.ship)
    record: Record = world.runtime.gatherer.ask(Find(record_id("single", "orders", "m1")))
    assert record.recovery == "rerun"


# ------------------------------------------------------------------------------------------ ids


def test_any_text_is_an_id(world: World) -> None:
    inbox = world.inbox()
    for name in ("a" * 5000, "<1.2@host> ", "größe", "\0\ud800", "a" * 255, "sha256:" + "0" * 64):
        assert inbox.handle_sync(name, world.ship) == Handled("shipped")
        assert inbox.handle_sync(name, world.ship) == Duplicate("shipped")


@pytest.mark.parametrize("name", ["", " ", "none", "null", None, 17, b"m1"])
def test_an_id_is_never_taken_from_nothing(world: World, name: Any) -> None:
    with pytest.raises(Misuse, match="id"):
        world.inbox().handle_sync(name, world.ship)
    assert world.runs == []


def test_p5_inboxes_and_tenants_do_not_meet(world: World) -> None:
    one, two = Inbox(world.runtime, name="one"), Inbox(world.runtime, name="two")
    for inbox in (one, two):
        for tenant in ("acme", "umbrella"):
            assert inbox.handle_sync("m1", world.ship, tenant=tenant) == Handled("shipped")
            assert inbox.handle_sync("m1", world.ship, tenant=tenant) == Duplicate("shipped")


@pytest.mark.parametrize("tenant", ["", None, 1])
def test_an_account_that_is_none_is_misuse(world: World, tenant: Any) -> None:
    with pytest.raises(Misuse, match="tenant"):
        world.inbox().handle_sync("m1", world.ship, tenant=tenant)


@pytest.mark.parametrize("payload", ["order-17", {"order": 17}, None])
def test_a_payload_that_was_decoded_is_misuse(world: World, payload: Any) -> None:
    with pytest.raises(Misuse, match=r"payload= must be the message's raw bytes, not a \w+"):
        world.inbox().handle_sync("m1", world.ship, payload=payload)
    assert world.runs == []


async def test_a_handler_that_would_never_run_is_refused(world: World, handle: Handle) -> None:
    """Calling a generator does nothing: the message would count as handled."""

    def ship() -> Iterator[None]:
        world.ship()
        yield

    with pytest.raises(Misuse, match="ship is a generator"):
        await handle(world.inbox(), "m1", ship)
    with pytest.raises(Misuse, match="a function, not str: give it uncalled"):
        await handle(world.inbox(), "m1", world.ship())
    assert await handle(world.inbox(), "m1", world.ship) == Handled("shipped")


def test_an_inbox_has_a_name(world: World) -> None:
    with pytest.raises(Misuse, match="name"):
        Inbox(world.runtime, name="")


def test_p12_a_url_in_place_of_a_runtime_is_refused_without_its_password() -> None:
    url: Any = "postgresql://shop:hunter2@db.internal/shop"
    with pytest.raises(Misuse, match="OnceMiddleware was given a str as its runtime"):
        OnceMiddleware(url)
    with pytest.raises(oncekey.Misuse, match="given a str as its runtime") as refused:
        Inbox(url, name="orders")
    assert "hunter2" not in str(refused.value)


# ---------------------------------------------------------------------------- handlers that fail


async def test_p6_under_block_a_message_whose_handler_raised_is_never_run_again(
    world: World, handle: Handle
) -> None:
    def charge() -> None:
        world.runs.append("charged")
        raise TimeoutError("the bank did not answer")

    inbox = world.inbox(recovery="block")
    with pytest.raises(TimeoutError):
        await handle(inbox, "m1", charge)
    for _ in range(2):
        again = await handle(inbox, "m1", charge)
        assert isinstance(again, Unknown)
        assert again.then is Then.DEAD_LETTER
        assert again.of == f"{inbox._operation.name} key={short_hash('m1')}"
    assert world.runs == ["charged"]


async def test_a_handler_that_says_that_nobody_knows_has_its_message_looked_at(
    world: World, handle: Handle
) -> None:
    def charge() -> str:
        oncekey.current().unknown()
        return "perhaps"

    inbox = world.inbox()
    said = [await handle(inbox, "m1", charge) for _ in range(2)]
    assert [type(each) for each in said] == [Unknown, Unknown]
    assert {each.of for each in said} == {f"{inbox._operation.name} key={short_hash('m1')}"}
