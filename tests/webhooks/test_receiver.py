"""Webhooks arrive: verified, handled once per event, answered so that the sender knows."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import FastAPI, Request, Response

import oncekey
from oncekey import Policy, Runtime
from oncekey._system.clock import FakeClock
from oncekey.errors import Misuse
from oncekey.messaging import Busy, Duplicate, Handled, Inbox, Unknown
from oncekey.stores.memory import MemoryStore
from oncekey.webhooks import (
    LOOPBACK,
    Answered,
    Destinations,
    Event,
    Receipt,
    Receiver,
    Scheme,
    Sender,
    new_secret,
    signed_headers,
)
from tests.acceptance.serve import serving

SECRET = new_secret()
BODY = b'{"id": "evt_1", "type": "charge.succeeded"}'
Receive = Callable[..., Awaitable[Receipt]]


class World:
    def __init__(self) -> None:
        self.clock = FakeClock(1_700_000_000.0)
        self.runtime = Runtime(MemoryStore(self.clock), clock=self.clock)
        self.events: list[Event] = []

    def receiver(self, **given: Any) -> Receiver:
        usual: dict[str, Any] = {"name": "billing", "secrets": [SECRET], "clock": self.clock}
        return Receiver(self.runtime, **(usual | given))

    def headers(self, body: bytes = BODY, id: str = "evt_1") -> dict[str, str]:
        return signed_headers(id, body, [SECRET], self.clock.wall())

    def handle(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.runtime.close()


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def receive(colour: str, receiver: Receiver) -> Receive:
    if colour == "async":
        return receiver.receive

    async def blocking(*args: Any) -> Receipt:
        return await asyncio.to_thread(receiver.receive_sync, *args)

    return blocking


# ------------------------------------------------------------------------------------ once each


@pytest.mark.parametrize("scheme", Scheme)
async def test_an_event_is_handled_once(world: World, colour: str, scheme: Scheme) -> None:
    take = receive(colour, world.receiver(scheme=scheme))
    first = await take(world.headers(), BODY, world.handle)
    again = await take(world.headers(), BODY, world.handle)
    assert (first.status, again.status) == (200, 200)
    assert isinstance(first.outcome, Handled)
    assert isinstance(again.outcome, Duplicate)
    assert world.events == [Event("evt_1", BODY, 1_700_000_000)]
    assert world.events[0].json()["type"] == "charge.succeeded"


async def test_it_is_remembered_for_a_month(world: World) -> None:
    receiver = world.receiver()
    await receiver.receive(world.headers(), BODY, world.handle)
    world.clock.advance(29 * 86_400)
    await receiver.receive(world.headers(), BODY, world.handle)
    assert len(world.events) == 1
    world.clock.advance(31 * 86_400)
    await receiver.receive(world.headers(), BODY, world.handle)
    assert len(world.events) == 2


async def test_an_event_may_be_rendered_anew_under_its_id(world: World) -> None:
    """Senders that write an event again, with a counter in it, still send the same event."""
    receiver, other = world.receiver(), BODY.replace(b"}", b', "pending": 1}')
    await receiver.receive(world.headers(), BODY, world.handle)
    again = await receiver.receive(world.headers(other), other, world.handle)
    assert isinstance(again.outcome, Duplicate)


async def test_receivers_do_not_share_events(world: World) -> None:
    for name in ("billing", "mail"):
        await world.receiver(name=name).receive(world.headers(), BODY, world.handle)
    assert len(world.events) == 2


# -------------------------------------------------------------------------------- what to answer


async def test_what_is_not_genuine_is_refused_before_anything_is_kept(
    world: World, colour: str
) -> None:
    take = receive(colour, world.receiver())
    told = await take(world.headers(), BODY + b" ", world.handle)
    assert (told.status, told.outcome) == (400, None)
    assert b"no signature matches" in told.body
    world.clock.advance(301)
    old = signed_headers("evt_1", BODY, [SECRET], world.clock.wall() - 301)
    assert (await take(old, BODY, world.handle)).status == 400
    assert (await take({}, BODY, world.handle)).status == 400
    assert world.events == []
    assert (await take(world.headers(), BODY, world.handle)).status == 200


async def test_p11_a_larger_body_is_refused_unread(world: World) -> None:
    for limit, status in ((len(BODY) - 1, 413), (len(BODY), 200)):
        receiver = world.receiver(body_bytes_max=limit)
        assert (await receiver.receive(world.headers(), BODY, world.handle)).status == status


async def test_p11_an_id_of_stripes_is_bounded(world: World) -> None:
    receiver = world.receiver(scheme=Scheme.STRIPE)
    for length, accepted in ((255, True), (256, False)):
        body = json.dumps({"id": "e" * length}).encode()
        opened = receiver.open(world.headers(body), body)
        assert isinstance(opened, Event if accepted else Receipt)


@pytest.mark.parametrize(("wait_s", "said"), [(0.2, "1"), (1.0, "1"), (7.4, "7")])
def test_nobody_is_told_to_come_back_at_once(wait_s: float, said: str) -> None:
    assert Receipt(503, "not now", retry_after_s=wait_s).headers["Retry-After"] == said


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"id": 7}', b'{"id": ""}', b"\xff", b"[" * 9999]
)
async def test_an_event_of_stripes_without_an_id(world: World, body: bytes) -> None:
    told = world.receiver(scheme=Scheme.STRIPE).open(world.headers(body), body)
    assert isinstance(told, Receipt)
    assert told.status == 400


async def test_what_the_handler_raises_is_raised_and_the_event_comes_again(
    world: World, colour: str
) -> None:
    take = receive(colour, world.receiver())

    def fail(event: Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await take(world.headers(), BODY, fail)
    assert (await take(world.headers(), BODY, world.handle)).status == 200
    assert len(world.events) == 1


async def test_while_the_first_delivery_is_handled_the_second_is_put_off(world: World) -> None:
    receiver, inside, end = world.receiver(), asyncio.Event(), asyncio.Event()

    async def slow(event: Event) -> None:
        inside.set()
        await end.wait()

    first = asyncio.create_task(receiver.receive(world.headers(), BODY, slow))
    await inside.wait()
    told = await receiver.receive(world.headers(), BODY, world.handle)
    end.set()
    assert isinstance(told.outcome, Busy)
    assert told.status == 503
    assert int(told.headers["Retry-After"]) >= 1
    assert (await first).status == 200
    assert world.events == []


async def test_a_handler_that_is_not_done_has_it_sent_again(world: World) -> None:
    def not_yet(event: Event) -> None:
        oncekey.current().transient()

    receiver = world.receiver()
    told = await receiver.receive(world.headers(), BODY, not_yet)
    assert (told.status, told.headers["Retry-After"]) == (503, "5")
    assert (await receiver.receive(world.headers(), BODY, world.handle)).status == 200


async def test_what_has_no_known_end_is_not_acknowledged(world: World) -> None:
    receiver = world.receiver(policy=Policy(recovery="block", lease_s=3, run_s_max=3))
    begun = asyncio.Event()

    async def hangs(event: Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    first = asyncio.create_task(receiver.receive(world.headers(), BODY, hangs))
    await begun.wait()
    world.clock.advance(10)
    told = await receiver.receive(world.headers(), BODY, world.handle)
    assert isinstance(told.outcome, Unknown)
    assert told.status == 500
    first.cancel()


def test_misuse(world: World) -> None:
    with pytest.raises(Misuse, match="list"):
        world.receiver(secrets=SECRET)
    with pytest.raises(Misuse, match="list"):
        world.receiver(secrets=[])
    with pytest.raises(Misuse, match="each of them a text"):
        world.receiver(secrets=[None])
    with pytest.raises(Misuse, match=r"Scheme\.STRIPE"):
        world.receiver(scheme="stripe")
    with pytest.raises(Misuse, match=r"takes an oncekey\.Policy"):
        world.receiver(policy={"recovery": "block"})
    with pytest.raises(Misuse, match="new_secret"):
        world.receiver(secrets=[SECRET, "of another kind"])
    unread: Any = None
    with pytest.raises(Misuse, match="the raw bytes"):
        world.receiver().receive_sync({}, unread, print)
    world.receiver(secrets=["of another kind"], scheme=Scheme.STRIPE)


# ----------------------------------------------------------------------------- in a transaction


async def test_rows_and_receipt_commit_together(tmp_path: Path, colour: str) -> None:
    file, clock = tmp_path / "shop.db", FakeClock(1_700_000_000.0)
    headers = signed_headers("evt_1", BODY, [SECRET], clock.wall())
    with (
        Runtime(f"sqlite:///{file}") as runtime,
        closing(sqlite3.connect(file, check_same_thread=False)) as database,
    ):
        receiver = Receiver(runtime, name="billing", secrets=[SECRET], clock=clock)
        database.execute("CREATE TABLE paid (id TEXT)")

        def pay(event: Event) -> None:
            database.execute("INSERT INTO paid VALUES (?)", (event.id,))

        async def take() -> Receipt:
            if colour == "sync":
                return receiver.receive_in_sync(database, headers, BODY, pay)
            return await receiver.receive_in(database, headers, BODY, pay)

        await take()
        database.rollback()
        for _ in range(2):
            with database:
                assert (await take()).status == 200
        assert database.execute("SELECT id FROM paid").fetchall() == [("evt_1",)]
        refused = receiver.receive_in_sync(database, {}, BODY, pay)
        assert refused.status == (await receiver.receive_in(database, {}, BODY, pay)).status == 400


# ---------------------------------------------------------------------------- from end to end


def test_the_sender_delivers_to_a_fastapi_service(world: World) -> None:
    app, receiver = FastAPI(), world.receiver(secrets=[new_secret(), SECRET])

    @app.post("/hooks")
    async def hooks(request: Request) -> Response:
        receipt = await receiver.receive(request.headers, await request.body(), world.handle)
        return Response(receipt.body, receipt.status, receipt.headers)

    sender = Sender(Destinations(https_required=False, allowed=LOOPBACK))
    with serving(app) as client:
        url = f"http://127.0.0.1:{client.port}/hooks"
        statuses = [sender.send(url, world.headers(), body) for body in (BODY, BODY, b"{}")]
    assert [sent.status for sent in statuses if isinstance(sent, Answered)] == [200, 200, 400]
    assert len(world.events) == 1


def test_flask_s_headers_are_taken_as_they_are(world: World) -> None:
    """They are no Mapping, which type checkers notice."""
    app, receiver = flask.Flask("shop"), world.receiver()

    @app.post("/hooks")
    def hooks() -> tuple[bytes, int, dict[str, str]]:
        request = flask.request
        receipt = receiver.receive_sync(request.headers, request.get_data(), world.handle)
        return receipt.body, receipt.status, receipt.headers

    client = app.test_client()
    for _ in range(2):
        assert client.post("/hooks", data=BODY, headers=world.headers()).status_code == 200
    assert len(world.events) == 1


def test_what_is_of_another_kind_has_a_name_of_its_own(world: World) -> None:
    """A message under an event's id would be acknowledged, and never handled."""
    world.receiver(name="billing")
    world.receiver(name="billing")  # another process has it too
    Inbox(world.runtime, name="mails")
    with pytest.raises(Misuse, match="billing: a receiver and an inbox of this name"):
        Inbox(world.runtime, name="billing")
    with pytest.raises(Misuse, match="mails: an inbox and a function of this name"):
        oncekey.once(world.runtime, key="{x}", name="mails")(lambda x: x)
