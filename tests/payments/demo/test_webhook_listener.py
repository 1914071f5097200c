"""Somebody who listens to the checkout page's charges: told at least once, signed, and each event
is processed once. The courier and the application are the real ones; between them is no socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from oncekey.webhooks import LOOPBACK, Answered, Schedule, Sent, signed_headers
from payments import clock
from payments.access.accounts import LOCAL, LOCAL_KEY
from payments.app import create_app
from payments.demo.trace import TraceLog
from payments.demo.webhook_listener import ENDPOINT, LOST_ANSWER, PATH, register
from payments.server import migrate
from payments.settings import Settings
from payments.storage.database import Database
from payments.storage.tables import webhook_endpoints
from payments.webhooks.senders import Senders
from payments.webhooks.worker import DeliveryWorker, WorkerSettings
from tests.payments.card_network import CardNetwork

pytestmark = pytest.mark.slow

URL = "http://127.0.0.1:8000"
CHARGE = {"amount": 500, "currency": "eur", "source": "tok_visa", "metadata[order]": "o1"}


class ToTheApi(Senders):
    """Hands what is sent to the application."""

    def __init__(self, client: TestClient) -> None:
        self._client = client

    def of(self, tenant: str) -> Any:
        return self

    def send(self, url: str, headers: dict[str, str], body: bytes) -> Sent:
        reply = self._client.post(url, content=body, headers=headers)
        return Answered(reply.status_code, reply.content, None, 0.0)


class Told(TraceLog):
    """Remembers what it was told of webhooks."""

    def __init__(self) -> None:
        super().__init__()
        self.says: list[tuple[str, str]] = []

    def add(self, part: str, kind: str, says: str, *, key: str | None = None) -> None:
        super().add(part, kind, says, key=key)
        if key is not None:
            self.says.append((key, says))


class Stage:
    """The application, whose events are delivered when a test says so."""

    def __init__(self, settings: Settings, client: TestClient, watch: Told) -> None:
        self.settings = settings
        self.client = client
        self.watch = watch
        self.now = clock.wall()
        self.database = Database(settings)
        pace = WorkerSettings(schedule=Schedule(retries_s=(1.0, 1.0), spread=0.0))
        self._courier = DeliveryWorker(
            self.database, ToTheApi(client), pace=pace, now=lambda: self.now, chance=lambda: 0.0
        )
        register(settings, URL)

    def post(self, path: str, said: Any = None, key: str = "") -> None:
        headers = {"idempotency-key": key} if key else {}
        answer = self.client.post(f"/v1/{path}", data=said, headers=headers)
        assert answer.status_code == 200, answer.text

    def deliver(self) -> int:
        """All that is due a minute later."""
        self.now += 60
        return self._courier.drain()

    def event(self) -> str:
        [event] = self.client.get("/v1/events?type=charge.succeeded").json()["data"]
        return str(event["id"])

    def told(self, key: str) -> Any:
        query = {"order": "o1", "key": key}
        return self.client.get("/demo/tally", params=query).json()["listener"]

    def endpoint(self) -> Any:
        query = sa.select(webhook_endpoints).where(webhook_endpoints.c.id == ENDPOINT)
        with self.database.read() as connection:
            return connection.execute(query).one_or_none()

    def armed_times(self) -> int | None:
        listed = self.client.get("/demo/faults").json()["data"]
        return {each["fault"]: each["times"] for each in listed}.get(LOST_ANSWER)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CardNetwork]:
    with CardNetwork(tmp_path_factory.mktemp("network")) as network:
        yield network


@pytest.fixture
def stage(tmp_path: Path, network: CardNetwork, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    watch = Told()
    monkeypatch.setattr("payments.app.TraceLog", lambda: watch)
    settings = Settings(
        data=tmp_path, network_url=network.url, deliver=False, webhook_networks=LOOPBACK
    )
    migrate(settings)
    with TestClient(
        create_app(settings),
        base_url="http://127.0.0.1",
        client=("127.0.0.1", 50000),
        headers={"authorization": f"Bearer {LOCAL_KEY}"},
    ) as client:
        stage = Stage(settings, client, watch)
        yield stage
        stage.database.close()


def test_an_event_is_processed_once(stage: Stage) -> None:
    stage.post("charges", CHARGE, "k1")
    waits = {"status": "pending", "attempts": 0, "failed": False, "processed": 0}
    assert stage.told("k1") == waits

    assert stage.deliver() == 1
    assert stage.told("k1") == waits | {"status": "delivered", "attempts": 1, "processed": 1}
    assert stage.watch.says == [("k1", "delivered, signed: attempt 1"), ("k1", "processed")]


def test_an_event_whose_answer_is_lost_is_delivered_again_and_processed_once(stage: Stage) -> None:
    stage.client.put(f"/demo/faults/{LOST_ANSWER}", json={"times": 1})
    assert stage.armed_times() == 1
    stage.post("charges", CHARGE, "k1")
    stage.deliver()
    assert stage.armed_times() == 0
    first = {"status": "pending", "attempts": 1, "failed": True, "processed": 1}
    assert stage.told("k1") == first

    stage.deliver()
    assert stage.told("k1") == {**first, "status": "delivered", "attempts": 2, "failed": False}
    assert [says for _, says in stage.watch.says] == [
        "delivered, signed: attempt 1",
        "processed",
        "its answer is lost: it will be delivered again",
        "delivered, signed: attempt 2",
        "a duplicate: processed before, not again",
    ]


def test_what_is_sent_again_by_hand_is_a_duplicate(stage: Stage) -> None:
    stage.post("charges", CHARGE, "k1")
    stage.deliver()
    stage.post(f"events/{stage.event()}/retry")
    stage.deliver()

    assert stage.told("k1")["attempts"] == 2
    assert stage.told("k1")["processed"] == 1
    assert stage.watch.says[-1] == ("k1", "a duplicate: processed before, not again")


def test_only_what_is_signed_with_its_secret_is_believed(stage: Stage) -> None:
    stage.post("charges", CHARGE, "k1")
    forged = signed_headers(
        stage.event(), b"{}", ["whsec_Zm9yZ2VkIGZvcmdlZCBmb3JnZWQh"], clock.wall()
    )
    assert stage.client.post(PATH, content=b"{}", headers=forged).status_code == 400
    assert stage.told("k1")["processed"] == 0

    stage.post(f"webhook_endpoints/{ENDPOINT}/roll_secret", {"overlap_s": 0})
    stage.deliver()
    assert stage.told("k1")["processed"] == 1


def test_it_hears_only_its_own_machine(stage: Stage) -> None:
    assert stage.client.post(PATH, headers={"host": "shop.example"}).status_code == 403


# ---------------------------------------------------------------------------- at every start


def test_a_start_changes_nothing_but_where_it_is(stage: Stage) -> None:
    before = stage.endpoint()
    register(stage.settings, "http://127.0.0.1:9000")
    after = stage.endpoint()

    assert (before.url, after.url) == (f"{URL}{PATH}", f"http://127.0.0.1:9000{PATH}")
    assert (after.secrets, after.created) == (before.secrets, before.created)


def test_what_somebody_disabled_stays_so_and_what_is_deleted_comes_back(stage: Stage) -> None:
    stage.post(f"webhook_endpoints/{ENDPOINT}", {"disabled": "true"})
    register(stage.settings, URL)
    assert stage.endpoint().status == "disabled"
    assert stage.armed_times() is None  # nobody listens, so there is no answer to lose

    stage.client.delete(f"/v1/webhook_endpoints/{ENDPOINT}")
    assert stage.client.post(PATH).status_code == 404
    register(stage.settings, URL)
    assert (stage.endpoint().status, stage.endpoint().tenant) == ("enabled", LOCAL.tenant)


def test_nobody_listens_where_webhooks_may_not_go(stage: Stage) -> None:
    register(stage.settings, "http://10.0.0.1:8000")
    assert stage.endpoint() is None
    stage.post("charges", CHARGE, "k1")
    assert stage.told("k1") is None
