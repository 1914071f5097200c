"""The example of a receiver: one booking per event."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples import webhook_receiver
from oncekey._system.clock import SystemClock
from oncekey.webhooks import (
    LOOPBACK,
    Answered,
    Destinations,
    Scheme,
    Sender,
    new_secret,
    signed_headers,
)
from tests.acceptance.serve import serving

SECRET = new_secret()
SENDER = Sender(Destinations(https_required=False, allowed=LOOPBACK))


@pytest.fixture(params=Scheme)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    app = webhook_receiver.create_app([new_secret(), SECRET], tmp_path / "b.db", request.param)
    with serving(app) as client:
        yield f"http://127.0.0.1:{client.port}"


def send(url: str, id: str, type: str | None = "charge.succeeded", secret: str = SECRET) -> int:
    body = json.dumps({"id": id} | ({"type": type} if type else {})).encode()
    headers = signed_headers(id, body, [secret], SystemClock.wall())
    sent = SENDER.send(f"{url}/webhooks", headers, body)
    assert isinstance(sent, Answered), sent
    return sent.status


def booked(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/bookings", timeout=20) as answer:  # noqa: S310
        return sorted(row["event"] for row in json.load(answer)["bookings"])


def test_each_event_is_booked_once(url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda n: send(url, f"evt_{n % 3}"), range(24)))
    assert set(statuses) <= {200, 503}  # 503: another delivery of it was being handled
    assert [send(url, f"evt_{n}") for n in range(3)] == [200, 200, 200]
    assert booked(url) == ["evt_0", "evt_1", "evt_2"]
    assert send(url, "evt_3", secret=new_secret()) == 400
    assert len(booked(url)) == 3


def test_an_event_that_could_not_be_booked_is_booked_by_a_later_delivery(url: str) -> None:
    assert send(url, "evt_1", type=None) == 500
    assert booked(url) == []
    assert send(url, "evt_1") == 200
    assert booked(url) == ["evt_1"]
