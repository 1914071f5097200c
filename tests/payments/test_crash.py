"""The server is killed at every point of a charge. Whoever comes next ends up with one charge.

A second server on the same database, which nobody kills, gets the retry, or none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import sqlalchemy as sa

from payments.money import ledger
from payments.money.reconcile import reconcile
from payments.network import Network
from payments.settings import Settings
from payments.storage.database import Database
from payments.storage.tables import charges, events, ledger_entries
from tests.payments.api_process import ApiProcess
from tests.payments.api_server import POINTS
from tests.payments.card_network import CardNetwork

pytestmark = pytest.mark.slow

LEASE_S = 1.0
PROBES = ("before_insert", "after_insert", "after_handler", "after_send")
WAIT_S_MAX = 40.0
RETRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class System:
    data: Path
    network: CardNetwork
    survivor: ApiProcess
    database: Database

    def kill_at(self, point: str, amount: int) -> bool:
        """Whether the client heard nothing of the charge for which a server died."""
        with ApiProcess(self.data, point, network_url=self.network.url, lease_s=LEASE_S) as api:
            try:
                post(api, amount)
            except httpx2.TransportError:
                return True
            return False

    def check_one_charge(self, id_: str, amount: int) -> None:
        """One authorisation and one capture at the network, one row, an event for its begin and
        one for its end, two entries.
        """
        for kind in ("authorisation", "capture"):
            assert [row for row in self.network.rows(kind) if row[1] == amount] == [(id_, amount)]
        with self.database.read() as connection:
            mine = sa.select(charges).where(charges.c.amount == amount)
            [row] = connection.execute(mine).all()
            assert (row.id, row.status) == (id_, "succeeded")
            told = connection.execute(sa.select(events.c.type, events.c.data)).all()
            kinds = sorted(event.type for event in told if event.data["id"] == id_)
            assert kinds == ["charge.pending", "charge.succeeded"]
            entries = sa.select(ledger_entries).where(ledger_entries.c.source == id_)
            assert len(connection.execute(entries).all()) == 2
            assert ledger.total(connection) == 0
        with Network(self.network.url) as client:
            report = reconcile(self.database, client.transactions)
        assert (report.differences, report.pending) == ([], [])


def post(api: ApiProcess, amount: int) -> httpx2.Response:
    said = {"amount": amount, "currency": "eur", "source": "tok_visa"}
    return api.client.post("charges", data=said, headers={"idempotency-key": f"key-{amount}"})


def retry(api: ApiProcess, amount: int) -> httpx2.Response:
    """As clients do: a machine that stalls for a whole lease makes the first one say "again"."""
    for _ in range(RETRIES_MAX):
        answer = post(api, amount)
        if answer.status_code not in (409, 503):
            break
    return answer


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    data = tmp_path_factory.mktemp("crash")
    with (
        CardNetwork(data) as network,
        ApiProcess(data, network_url=network.url, lease_s=LEASE_S) as survivor,
    ):
        database = Database(Settings(data=data))
        yield System(data, network, survivor, database)
        database.close()


@pytest.mark.parametrize("point", [*PROBES, *POINTS])
def test_a_retry_ends_with_one_charge(system: System, point: str) -> None:
    amount = 1000 + [*PROBES, *POINTS].index(point)
    heard_nothing = system.kill_at(point, amount)
    assert heard_nothing or point == "after_send"
    retried = retry(system.survivor, amount)
    assert retried.status_code == 200, retried.text
    assert retried.json()["status"] == "succeeded"
    assert post(system.survivor, amount).content == retried.content
    system.check_one_charge(retried.json()["id"], amount)


def test_the_recoverer_ends_with_one_charge_when_no_client_returns(system: System) -> None:
    amount = 2000
    assert system.kill_at("after_authorise", amount)
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        found = system.survivor.client.get("charges").json()["data"][0]
        assert found["amount"] == amount
        if found["status"] != "pending":
            break
        time.sleep(0.05)
    system.check_one_charge(found["id"], amount)
    late = post(system.survivor, amount)
    assert late.headers["idempotent-replayed"] == "true"
    assert late.json()["id"] == found["id"]
