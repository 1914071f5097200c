"""Whatever the wire does: one intent has at most one effect at a server that remembers keys, its
key never changes, and the time and the retries that it may take are never exceeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._system.clock import FakeClock
from oncekey.client import Attempted, Retries, RetryBudget, outcome_of
from oncekey.client._sender import RequestSender
from oncekey.client._transport import RetryingTransport
from oncekey.events import Event
from tests.client.hostile_server import AWAY, HOME, Fault, Hostile

READ_S = 5.0

retry_afters = st.sampled_from(
    [
        None,
        "0",
        "1",
        "7.5",
        "30",
        "86400",
        "-5",
        "soon",
        "",
        "9" * 40,
        "Thu, 01 Jan 1970 00:00:01 GMT",
        "Mon, 12 Jan 1970 13:46:50 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Fri, 31 Feb 2026 00:00:00 GMT",
    ]
)
faults = st.lists(
    st.builds(
        Fault,
        kind=st.sampled_from(["drop", "status", "in-flight", "truncate", "drip", "redirect"]),
        processed=st.booleans(),
        seconds=st.sampled_from([0.0, 0.01, 1.0, 4.9, 60.0]),
        status=st.sampled_from([500, 502, 503, 504, 408, 425, 429]),
        retry_after=retry_afters,
    ),
    max_size=14,
)
chances = st.lists(st.floats(0, 1, exclude_max=True), min_size=20, max_size=20)


class World:
    """One client, one hostile server, and no time but their own."""

    def __init__(self, library: Any, script: list[Fault], chances: list[float], **rules: Any):
        self.library = library
        self.clock = FakeClock()
        self.server = Hostile(library, self.clock, script)
        self.events: list[Attempted] = []
        self.pauses: list[float] = []
        sender = RequestSender(
            clock=self.clock, chance=itertools.cycle(chances).__next__, hooks=[self._note], **rules
        )
        self.transport = RetryingTransport(self.server, sender, self._sleep, self._async_sleep)

    def _note(self, event: Event) -> None:
        assert isinstance(event, Attempted)
        self.events.append(event)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)

    async def _async_sleep(self, seconds: float) -> None:
        self._sleep(seconds)

    def post(self, **options: Any) -> Any:
        settings = {"follow_redirects": True, "timeout": READ_S, "max_redirects": 30}
        with self.library.Client(transport=self.transport, **settings) as client:
            return client.post(f"{HOME}/orders", json={"sku": "mug"}, **options)

    def apost(self) -> Any:
        async def main() -> Any:
            settings = {"follow_redirects": True, "timeout": READ_S, "max_redirects": 30}
            async with self.library.AsyncClient(transport=self.transport, **settings) as client:
                return await client.post(f"{HOME}/orders", json={"sku": "mug"})

        return asyncio.run(main())


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
@given(script=faults, chances=chances)
def test_one_effect_one_key_and_no_budget_exceeded(
    library: Any, script: list[Fault], chances: list[float]
) -> None:
    retries = Retries(attempts_max=6, budget_s=60.0)
    world = World(library, script, chances, retries=retries)
    started = world.clock.monotonic()

    answer, notes = None, ["with the same key"]
    try:
        answer = world.post()
    except library.TransportError as error:
        notes = error.__notes__
    assert "with the same key" in notes[0]

    hops = sum(fault.kind == "redirect" for fault in script)
    effects = world.server.effects
    assert len(effects) <= 1, "one intent, two effects"
    assert len(world.server.keys) == 1
    assert set(world.server.bodies) == {b'{"sku":"mug"}'}
    assert len(world.server.attempts) <= retries.attempts_max + hops
    # A blocking attempt may be late by what one reading of it may take.
    assert world.clock.monotonic() - started <= retries.budget_s + READ_S
    assert all(event.attempt <= retries.attempts_max for event in world.events)
    if answer is not None and answer.status_code == 201:
        assert sum(effects.values()) == 1
        assert answer.json() == {"done": True}
    if answer is not None:
        assert (told := outcome_of(answer)) is not None
        assert {told.key} == world.server.keys


@given(script=faults, chances=chances)
def test_both_ways_to_drive_it_do_the_same(script: list[Fault], chances: list[float]) -> None:
    ways = [World(httpx2, list(script), chances), World(httpx2, list(script), chances)]
    ended = []
    for send in (ways[0].post, ways[1].apost):
        try:
            ended.append(send().status_code)
        except httpx2.TransportError as error:
            ended.append(type(error).__name__)

    blocking, awaiting = ways
    assert ended[0] == ended[1]
    assert blocking.pauses == awaiting.pauses
    assert [attempt[0] for attempt in blocking.server.attempts] == [
        attempt[0] for attempt in awaiting.server.attempts
    ]


@given(script=faults, chances=chances)
def test_no_attempt_begins_earlier_than_the_server_asked_for(
    script: list[Fault], chances: list[float]
) -> None:
    world = World(httpx2, [Fault("status", retry_after="10"), *script], chances)

    with contextlib.suppress(httpx2.TransportError):
        world.post()

    first, *later = [at for at, _, _ in world.server.attempts]
    assert later
    assert later[0] >= first + 10.0


@pytest.mark.parametrize("way", ["post", "apost"])
def test_an_answer_that_drips_is_cut_off_when_the_time_is_over(way: str) -> None:
    """Every byte comes in time, the whole never would."""
    dripping = [Fault("drip", seconds=4.0)] * 3
    world = World(httpx2, dripping, [0.5], retries=Retries(budget_s=20.0))
    started = world.clock.monotonic()

    with pytest.raises(httpx2.ReadTimeout) as late:
        getattr(world, way)()

    assert "the time for all attempts is over" in late.value.__notes__[0]
    assert world.clock.monotonic() - started <= 20.0 + READ_S
    assert len(world.server.attempts) == 1


@pytest.mark.parametrize("way", ["post", "apost"])
def test_redirects_share_one_budget(way: str) -> None:
    """Each of them takes 4 s, and none of them ever ends."""
    circle = [Fault("redirect", seconds=4.0)] * 30
    world = World(httpx2, circle, [0.5], retries=Retries(budget_s=20.0))
    started = world.clock.monotonic()

    with pytest.raises(httpx2.ReadTimeout) as late:
        getattr(world, way)()

    assert "the time for all attempts is over" in late.value.__notes__[0]
    assert world.clock.monotonic() - started <= 20.0 + READ_S
    assert len(world.server.attempts) == 5
    assert len(world.server.keys) == 1


def test_redirects_share_the_retries_of_one_request() -> None:
    script = [Fault("drop"), Fault("redirect"), Fault("drop"), Fault("redirect"), Fault("drop")]
    world = World(httpx2, script, [0.0], retries=Retries(attempts_max=3))

    with pytest.raises(httpx2.RemoteProtocolError) as lost:
        world.post()

    assert "3 attempts were made" in lost.value.__notes__[0]
    assert len(world.server.attempts) == 3 + 2
    assert len(world.server.keys) == 1


def test_one_that_its_caller_sends_again_after_a_redirect_has_time_of_its_own() -> None:
    world = World(httpx2, [Fault("redirect")] * 2, [0.5], retries=Retries(budget_s=20.0))
    transport: Any = world.transport
    with httpx2.Client(transport=transport, follow_redirects=True) as client:
        request = client.build_request("POST", f"{HOME}/orders")
        assert client.send(request).status_code == 201
        world.clock.advance(3600.0)

        assert client.send(request).status_code == 201

    assert len(world.server.keys) == 1


def test_a_redirect_to_another_origin_does_not_show_the_key() -> None:
    for options in ({}, {"headers": {"Idempotency-Key": "order-17"}}):
        world = World(httpx2, [Fault("redirect-away")], [0.5])

        assert world.post(**options).status_code == 200

        assert [(origin, key is None) for _, origin, key in world.server.attempts] == [
            (HOME, False),
            (AWAY, True),
        ]


def test_a_crowd_does_not_storm_a_sick_server() -> None:
    requests = 200
    sick = [Fault("status")] * 10_000
    world = World(httpx2, sick, [0.5], budget=RetryBudget(tokens_per_s=0.0))

    for _ in range(requests):
        assert world.post().status_code == 503

    assert len(world.server.attempts) <= requests + 20 + 0.2 * requests
    assert world.events[-1].gave_up is not None
    assert "retry budget" in world.events[-1].gave_up


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_cancelled_is_cancelled(library: Any) -> None:
    """In the middle of a pause of its own: no further attempt, no error of another kind."""
    world = World(library, [Fault("drop", processed=True)], [0.999])

    async def main() -> None:
        paused = asyncio.Event()

        async def pausing(seconds: float) -> None:
            paused.set()
            await asyncio.Event().wait()

        world.transport._async_sleep = pausing
        async with library.AsyncClient(transport=world.transport) as client:
            task = asyncio.create_task(client.post(f"{HOME}/orders"))
            await paused.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert len(world.server.attempts) == 1
