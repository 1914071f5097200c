"""The server's clock, from dates with a resolution of one second."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from oncekey._system.clock import FakeClock
from oncekey.errors import StoreUnfit
from oncekey.stores.dynamodb.server_date import ServerClock

SERVER = 1_800_000_000.0
"""What time it is at the server when the host's monotonic clock begins."""


class Exchange:
    """A host and a server whose clocks run evenly, from different starting points."""

    def __init__(self) -> None:
        self.clock = FakeClock(start=500.0)
        self.server_clock = ServerClock(self.clock)
        self.server = SERVER

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.server += seconds

    def ask(self, there_s: float = 0.0, back_s: float = 0.0) -> None:
        asked_at = self.server_clock.monotonic()
        self.pass_time(there_s)
        header = formatdate(int(self.server), usegmt=True)
        self.pass_time(back_s)
        self.server_clock.learn(header, asked_at)

    @property
    def behind_s(self) -> float:
        return self.server - self.server_clock.now() / 1_000_000


def test_without_an_answer_there_is_no_date() -> None:
    with pytest.raises(StoreUnfit, match="Date header"):
        ServerClock(FakeClock()).now()


def test_what_is_no_date_is_not_heard() -> None:
    server_clock = ServerClock(FakeClock())
    server_clock.learn("yesterday", 0.0)
    server_clock.learn(None, 0.0)
    assert not server_clock.is_known


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.999])
def test_it_is_never_ahead_and_at_most_a_second_behind(fraction: float) -> None:
    exchange = Exchange()
    exchange.pass_time(fraction)
    exchange.ask()
    assert -0.001 <= exchange.behind_s <= 1.0
    exchange.pass_time(86_400.0)
    assert -0.001 <= exchange.behind_s <= 1.0


def test_a_slow_answer_makes_it_late_not_early() -> None:
    exchange = Exchange()
    exchange.ask(there_s=2.0, back_s=3.0)
    assert 3.0 - 0.001 <= exchange.behind_s <= 4.0


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.999])
def test_p3_the_latest_that_it_may_be_is_never_behind(fraction: float) -> None:
    """New expiries count from there; other processes may know the server's clock more exactly."""
    exchange = Exchange()
    exchange.pass_time(fraction)
    exchange.ask(there_s=0.25, back_s=0.5)
    expires = exchange.server_clock.latest() / 1_000_000 + 60.0
    assert exchange.server + 60.0 <= expires <= exchange.server + 62.0
    other = Exchange()
    other.pass_time(0.999 + 59.0)
    other.ask()
    for _ in range(100):  # known to 10 ms by now
        other.pass_time(0.01)
        other.ask()
    ended = expires - other.server_clock.now() / 1_000_000
    assert ended >= exchange.server + 60.0 - other.server


def test_every_answer_narrows_it() -> None:
    exchange = Exchange()
    exchange.pass_time(0.9)
    exchange.ask(back_s=2.0)
    before = exchange.behind_s
    for _ in range(20):
        exchange.pass_time(0.93)
        exchange.ask()
    assert -0.001 <= exchange.behind_s < 0.1 < before


def test_p8_a_host_whose_wall_clock_is_set_notices_nothing() -> None:
    exchange = Exchange()
    exchange.ask()
    before = exchange.behind_s
    exchange.clock.step_wall(86_400.0)
    assert exchange.behind_s == before


def test_a_server_whose_clock_is_set_is_followed() -> None:
    exchange = Exchange()
    exchange.ask()
    for step_s in (3600.0, -7200.0):
        exchange.server += step_s
        exchange.ask()
        assert -0.001 <= exchange.behind_s <= 1.0


def test_fences_rise_whatever_the_clock_does() -> None:
    exchange = Exchange()
    exchange.ask()
    fences = [exchange.server_clock.fence() for _ in range(3)]
    exchange.server -= 3600.0
    exchange.ask()
    fences += [
        exchange.server_clock.fence(),
        exchange.server_clock.fence(above=fences[-1] + 10**15),
    ]
    assert fences == sorted(set(fences))
