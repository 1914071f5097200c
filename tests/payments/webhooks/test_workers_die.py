"""Couriers are killed between sending and recording: every event arrives, and is booked once by a
receiver that goes by its id.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from examples import webhook_receiver
from oncekey.webhooks import Schedule, new_secret
from payments.storage.tables import deliveries
from tests.acceptance.serve import serving
from tests.payments.delivery_setup import DeliverySetup, post

__all__ = ["post"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]
LEASE_S = 200.0
EVENTS = 16
DEATHS = (("after_send", 3), ("before_send", 4)), (("after_send", 2), ("after_send", 5))
"""Two couriers at once, twice: each dies at its own moment."""


@dataclass
class Receiver:
    """The example, and a count of what reaches it."""

    url: str
    secret: str
    arrived: list[str] = field(default_factory=list)

    def bookings(self) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/bookings", timeout=20) as answer:  # noqa: S310
            return sorted(row["event"] for row in json.load(answer)["bookings"])


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver("", new_secret())
    app = webhook_receiver.create_app([made.secret], tmp_path / "bookings.db")

    async def count_and_call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            made.arrived.append(dict(scope["headers"])[b"webhook-id"].decode())
        await app(scope, receive, send)

    with serving(count_and_call) as client:
        made.url = f"http://127.0.0.1:{client.port}"
        yield made


def endpoint(post: DeliverySetup, receiver: Receiver) -> None:
    secrets = [{"secret": receiver.secret, "until": None}]
    post.endpoint(f"{receiver.url}/webhooks", secrets=secrets)


def work(post: DeliverySetup, *deaths: tuple[str, int]) -> list[int]:
    """Couriers at once, each until its death or until nothing is due."""
    settings = post.settings
    given = (str(settings.data), settings.database, str(LEASE_S))
    module = "tests.payments.delivery_worker_process"
    processes = [
        subprocess.Popen([sys.executable, "-m", module, *given, point, str(count)], cwd=ROOT)
        for point, count in deaths
    ]
    try:
        return [process.wait(60) for process in processes]
    finally:
        for process in processes:  # none goes on beside the tests that follow
            process.kill()
            process.wait()


def lapse(post: DeliverySetup) -> None:
    """The leases of the dead are over: their rows are due now. Signatures stay fresh meanwhile."""
    with post.database.begin() as connection:
        connection.execute(
            deliveries.update().where(deliveries.c.status == "pending").values(due=post.now())
        )


def test_killed_between_sending_and_recording(post: DeliverySetup, receiver: Receiver) -> None:
    endpoint(post, receiver)
    event = post.event()
    assert work(post, ("after_send", 1)) == [-9]
    assert receiver.bookings() == receiver.arrived == [event]
    assert post.deliveries()[0].status == "pending"
    assert post.worker().drain() == 0  # the lease of the dead worker still holds

    lapse(post)
    assert post.worker().drain() == 1
    assert receiver.arrived == [event, event]
    assert receiver.bookings() == [event]
    [delivery] = post.deliveries()
    assert (delivery.status, delivery.attempts) == ("delivered", 2)
    assert len(post.attempts()) == 1  # of the other nobody was left to tell


def test_nothing_is_lost_and_each_event_is_booked_once(
    post: DeliverySetup, receiver: Receiver
) -> None:
    endpoint(post, receiver)
    sent = sorted(post.event() for _ in range(EVENTS))
    for deaths in DEATHS:
        assert -9 in work(post, *deaths)
        lapse(post)
    while any(row.status == "pending" for row in post.deliveries()):
        post.worker(schedule=Schedule()).drain()
        lapse(post)  # also what the receiver put off while it handled another
    assert {row.status for row in post.deliveries()} == {"delivered"}
    assert sorted(set(receiver.arrived)) == receiver.bookings() == sent
    assert len(receiver.arrived) > EVENTS  # some came twice
