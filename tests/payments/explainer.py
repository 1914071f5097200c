"""The recordings that the explainer page plays: `./dev docs` makes them anew.

Each scenario is a script for the stage, and asserts on its way what its captions say. What is
recorded is what the engine did (see `tests/payments/explainer_stage.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import payments
from oncekey._system import probes
from tests.payments.explainer_stage import LEASE_S, Sent, Stage

PATH = Path(payments.__file__).parent / "demo" / "pages" / "recordings.json"
KEY = "pay-7f3a"
TOUR_S = 60

Scenario = Callable[[Stage], Awaitable[None]]


async def lost_answer(stage: Stage) -> None:
    """The answer is lost"""
    a = stage.server("A")
    a.stop_at("before charging")
    a.stop_at("after charging")
    first = Sent(a, KEY)
    stage.show(
        "A client sends a charge, with a key.",
        "The key is made once per intent, and kept by the client until it knows the outcome.",
        **first.arrow,
    )
    await a.wait_until_stopped("before charging")
    stage.show(
        "The key is claimed before anything runs.",
        "One atomic write. The claim holds a lease, and a fence that every later write must show.",
    )
    a.go_on("before charging")
    await a.wait_until_stopped("after charging")
    stage.show("The card is charged.", "Once, as the card network itself counts.")
    stage.clock.advance(0.2)
    a.go_on("after charging")
    answer = await first.answer()
    stage.show(
        "The answer is recorded. Then the line breaks.",
        "Recorded first, sent second: so a lost answer is never lost for good.",
        **answer,
        lost=True,
    )
    stage.clock.advance(1.5)
    again = Sent(a, KEY)
    stage.show(
        "The client asks again, with the same key.",
        "It cannot know whether the first request arrived. It need not know.",
        **again.arrow,
    )
    answer = await again.answer()
    assert answer["answer"]["headers"]["idempotent-replayed"] == "true"
    stage.show(
        "It gets the recorded answer. Nothing runs.",
        "The same status, the same bytes, marked Idempotent-Replayed. One charge.",
        **answer,
    )


async def double_click(stage: Stage) -> None:
    """Pay is pressed twice"""
    a = stage.server("A")
    a.stop_at("before charging")
    first = Sent(a, KEY)
    stage.show("Pay is pressed.", "The page makes a key for this purchase.", **first.arrow)
    await a.wait_until_stopped("before charging")
    stage.show("The first press claims the key.", "Its handler is at work; nothing is charged yet.")
    stage.clock.advance(0.15)
    second = Sent(a, KEY)
    stage.show(
        "Pay is pressed again: one purchase, one key.",
        "The page finds the key that it kept, and sends the same one.",
        **second.arrow,
    )
    refused = await second.answer()
    assert refused["answer"]["status"] == 409
    stage.show(
        "It is told: in flight, come back soon.",
        "Two cannot own one record. Some APIs let the second request wait instead.",
        **refused,
    )
    a.go_on("before charging")
    stage.show(
        "The first one charges and is answered.", "And its answer is kept.", **await first.answer()
    )
    stage.clock.advance(1.0)
    replay = await Sent(a, KEY).answer()
    assert stage.network.asked == 1
    stage.show(
        "The second one asks again: the same charge.",
        "Two clicks, three requests, one charge.",
        **replay,
    )


async def crash(stage: Stage) -> None:
    """A server dies in the middle"""
    a, b = stage.server("A"), stage.server("B")
    a.stop_at("after charging")
    first = Sent(a, KEY)
    stage.show("A charge reaches server A.", "Server B shares its store of records.", **first.arrow)
    await a.wait_until_stopped("after charging")
    stage.show(
        "A charges the card …",
        "With a key of its own for the network, derived from the request's key.",
    )
    a.state = "dead"
    stage.show(
        "… and dies before it can record the answer.",
        "The worst moment: the money has moved, and nobody has written down that it did.",
        **{"from": "A", "to": "client"},
        lost=True,
    )
    stage.clock.advance(LEASE_S + 1)
    stage.show(
        "Nobody renews its lease. It runs out.",
        "A record is never stuck: after at most one lease somebody else may go on.",
    )
    b.stop_at("before charging")
    retry = Sent(b, KEY)
    await b.wait_until_stopped("before charging")
    assert stage.network.asked == 1
    stage.show(
        "The client's retry meets B, which takes over.",
        "The fence rises to 2: whatever A might still write would be refused.",
        **retry.arrow,
    )
    b.stop_at("after charging")
    b.go_on("before charging")
    await b.wait_until_stopped("after charging")
    assert stage.network.asked == 2
    stage.show(
        "B asks the network with the very same key.",
        "The network knows it, and says what became of it. It does not charge again.",
    )
    b.go_on("after charging")
    answer = await retry.answer()
    assert list(stage.network.charges.values()) == [2000]
    stage.show("Recorded, answered. One charge.", "As if nothing had happened.", **answer)


async def mismatch(stage: Stage) -> None:
    """The same key, another request"""
    a = stage.server("A")
    answer = await Sent(a, KEY).answer()
    stage.show(
        "A charge of 20.00 is made and recorded.",
        "With it a fingerprint of the request: method, path, query and body.",
        **answer,
    )
    stage.clock.advance(60)
    other = Sent(a, KEY, amount=9900)
    stage.show(
        "Somebody sends the key again, for 99.00.",
        "A bug in a client, most likely: one key for two purchases.",
        **other.arrow,
    )
    refused = await other.answer()
    assert refused["answer"]["status"] == 422
    stage.show(
        "Refused: the key belongs to another request.",
        "Neither charged 99.00, nor answered with the outcome of another purchase.",
        **refused,
    )
    replay = await Sent(a, KEY).answer()
    assert replay["answer"]["body"] == answer["answer"]["body"]
    stage.show(
        "The first request is answered as ever.", "The refusal has spoilt nothing.", **replay
    )


async def zombie(stage: Stage) -> None:
    """A slow server comes back from the dead"""
    a, b = stage.server("A"), stage.server("B")
    a.stop_at("before charging")
    a.stop_at("after charging")
    first = Sent(a, KEY)
    await a.wait_until_stopped("before charging")
    a.state = "frozen"
    stage.show(
        "A claims the key with fence 1, and freezes.",
        "A long pause of its machine: it is not dead, but it looks so to everybody.",
        **first.arrow,
    )
    stage.clock.advance(LEASE_S + 1)
    stage.show("Its lease runs out while it sleeps.", "It will not know when it wakes up.")
    b.stop_at("before charging")
    retry = Sent(b, KEY)
    await b.wait_until_stopped("before charging")
    stage.show(
        "A retry meets B, which takes over: fence 2.",
        "Only by the store's clock, and only if nobody renewed it meanwhile.",
        **retry.arrow,
    )
    b.go_on("before charging")
    fields_ = await retry.answer()
    stage.show("B charges, records and answers.", "The client is done.", **fields_)
    stage.clock.advance(5)
    a.go_on("before charging")
    await a.wait_until_stopped("after charging")
    stage.show(
        "A wakes up and goes on as if nothing were.",
        "It asks the network with the same key: no second charge.",
    )
    a.go_on("after charging")
    late = await first.answer()
    assert late["answer"]["body"] == fields_["answer"]["body"]
    lost = [event for event in stage.events if event["event"] == "LeaseWasLost"]
    assert lost, stage.events
    stage.show(
        "Its write shows fence 1. The store refuses it.",
        "Whoever was taken over can write nothing any more, however late it comes.",
    )
    stage.show(
        "So A says what the record says: the same.",
        "Never its own answer, once somebody else's is recorded.",
        **late,
    )


async def deploy(stage: Stage) -> None:
    """A release changes the answer's shape"""
    a = stage.server("A")
    old = await Sent(a, KEY).answer()
    stage.show("Release 1 answers, and records version 1.", "An amount is a plain number.", **old)
    stage.clock.advance(3600)
    b = stage.server("B", version=2)
    a.state = "gone"
    stage.show(
        "Release 2 is deployed. Its answers differ.",
        "An amount is now an object. Old records are kept as they are.",
    )
    retry = Sent(b, KEY)
    stage.show(
        "A late retry of the first request meets it.",
        "Its client may be a new one as well, which cannot read the old shape.",
        **retry.arrow,
    )
    new = await retry.answer()
    assert json.loads(new["answer"]["body"])["amount"] == {"minor": 2000, "currency": "eur"}
    assert stage.network.asked == 1
    stage.show(
        "Nothing runs. The answer is translated.",
        "By a pure function that the release registered: the same charge, in the new shape.",
        **new,
    )


SCENARIOS: tuple[Scenario, ...] = (lost_answer, double_click, crash, mismatch, zombie, deploy)


async def record(scenario: Scenario) -> dict[str, Any]:
    """Run one scenario to its end; whoever it left hanging is gone with the event loop."""
    stage = Stage()
    await scenario(stage)
    for server in stage.servers.values():
        server.asgi.edge.runtime.stop()
    name = scenario.__name__.replace("_", "-")
    return {"name": name, "title": scenario.__doc__, "frames": stage.frames}


def recordings() -> str:
    """All of them, as the page reads them. The same on every machine."""
    probes.disarm()
    made = [asyncio.run(record(scenario)) for scenario in SCENARIOS]
    return json.dumps({"tour_s": TOUR_S, "scenarios": made}, indent=1) + "\n"


def renew() -> bool:
    """Write them anew; whether that changed anything."""
    made = recordings()
    if PATH.exists() and PATH.read_text() == made:
        return False
    PATH.write_text(made)
    return True
