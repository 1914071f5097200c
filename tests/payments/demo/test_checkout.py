"""What the checkout page asks beside the API, with a real card network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from payments.access.accounts import LOCAL, LOCAL_KEY
from payments.app import create_app
from payments.network import FAULTS
from payments.settings import Settings
from payments.storage.database import Database
from payments.storage.tables import charges
from tests.payments.card_network import CardNetwork
from tests.servers.process import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CardNetwork]:
    with CardNetwork(tmp_path_factory.mktemp("network")) as network:
        yield network


@pytest.fixture(scope="module")
def client(network: CardNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(data=tmp_path_factory.mktemp("data"), network_url=network.url)
    database = Database(settings)
    database.create_tables()
    database.close()
    with TestClient(
        create_app(settings), base_url="http://127.0.0.1", client=("127.0.0.1", 50000)
    ) as client:
        yield client


def post_charge(client: TestClient, order: str, key: str, source: str = "tok_visa") -> Any:
    said = {"amount": 2400, "currency": "eur", "source": source, "metadata[order]": order}
    headers = {"Authorization": f"Bearer {LOCAL_KEY}", "Idempotency-Key": key}
    return client.post("/v1/charges", data=said, headers=headers)


def tally(client: TestClient, order: str, key: str) -> Any:
    return client.get("/demo/tally", params={"order": order, "key": key}).json()


def test_an_order_is_counted_by_the_network(client: TestClient) -> None:
    assert tally(client, "o1", "k1")["charges"] == 0
    for _ in range(3):
        assert post_charge(client, "o1", "k1").status_code == 200
    post_charge(client, "o2", "k2")

    assert tally(client, "o1", "k1") == {
        "ledger": {"entries": 2, "sum": 0},
        "events": 2,  # it was begun, and it succeeded
        "deliveries": {},
        "listener": None,
        "charges": 1,
        "moved": 2400,
        "declines": 0,
        "requests": 3,
    }


def test_a_second_charge_of_an_order_would_be_seen(client: TestClient) -> None:
    post_charge(client, "o3", "k3")
    post_charge(client, "o3", "k3-again")

    assert (tally(client, "o3", "k3")["charges"], tally(client, "o3", "k3")["moved"]) == (2, 4800)


def test_a_decline_moves_nothing(client: TestClient) -> None:
    assert post_charge(client, "o4", "k4", "tok_chargeDeclined").status_code == 402

    told = tally(client, "o4", "k4")
    assert (told["charges"], told["moved"], told["declines"]) == (0, 0, 1)


def test_faults_are_switched_on_and_off(client: TestClient) -> None:
    armed = client.put("/demo/faults/slow", json={"times": 1}).json()["data"]
    assert {each["fault"]: each["times"] for each in armed} == {
        name: int(name == "slow") for name in FAULTS
    }
    assert client.get("/demo/faults").json()["data"] == armed
    client.put("/demo/faults/slow", json={"times": 0})
    assert not any(each["times"] for each in client.get("/demo/faults").json()["data"])


@pytest.mark.parametrize("after", ["9" * 5000, "9" * 30, "-1", "", "x"])
def test_what_is_no_notices_number_is_told_from_now_on(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    monkeypatch.setattr("payments.demo.trace.STREAM_S", 0.01)
    for asked in ({"params": {"after": after}}, {"headers": {"last-event-id": after}}):
        told = client.get("/demo/watch", **asked)  # type: ignore[arg-type]
        assert (told.status_code, told.text[:6]) == (200, "retry:")


@pytest.mark.parametrize("body", ["", "[]", '{"times": -1}', '{"times": 11}', '{"times": true}'])
def test_bad_switches_are_refused(client: TestClient, body: str) -> None:
    assert client.put("/demo/faults/slow", content=body).status_code == 400
    assert client.put("/demo/faults/flood", json={"times": 1}).status_code == 400


def test_nobody_elsewhere_switches_anything(client: TestClient) -> None:
    headers = {"Host": "shop.example"}
    refused = client.put("/demo/faults/slow", json={"times": 1}, headers=headers)

    assert refused.status_code == 403
    assert not any(each["times"] for each in client.get("/demo/faults").json()["data"])


def test_the_network_may_be_down(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What we know ourselves is told all the same; what only the network knows is left open."""
    settings = Settings(
        data=tmp_path_factory.mktemp("alone"), network_url=f"http://127.0.0.1:{free_port()}"
    )
    database = Database(settings)
    database.create_tables()
    insert = charges.insert().values(
        tenant=LOCAL.tenant,
        id="ch_1",
        created=1,
        amount=2400,
        currency="eur",
        status="pending",
        capture=True,
        network_key="n1",
        metadata={"order": "o9"},
    )
    with database.begin() as connection:
        connection.execute(insert)
    database.close()
    with TestClient(
        create_app(settings), base_url="http://127.0.0.1", client=("127.0.0.1", 50000)
    ) as client:
        told = tally(client, "o9", "k9")
        assert (told["charges"], told["ledger"]["entries"]) == (None, 0)
        assert client.get("/demo/faults").status_code == 503
        assert client.put("/demo/faults/slow", json={"times": 1}).status_code == 503
