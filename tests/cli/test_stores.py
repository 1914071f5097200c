"""The same commands on every kind of store."""

import uuid
from pathlib import Path

import pytest

from oncekey.stores.urls import open_store
from tests.cli.conftest import OPERATION, Oncekey, Seed
from tests.servers.ministack import table_url

_UNSYNCED = ("postgres", "mariadb")


@pytest.fixture(
    params=[
        *("sqlite", "postgres", "redis"),
        pytest.param("mariadb", marks=pytest.mark.slow),
        pytest.param("dynamodb", marks=pytest.mark.slow),
    ]
)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Servers are shared with other tests: each test here has a tenant of its own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'keys.db'}"
    if request.param == "dynamodb":
        endpoint: str = request.getfixturevalue("dynamodb_endpoint")
        return table_url(endpoint, f"cli-{uuid.uuid4().hex}")
    url: str = request.getfixturevalue(f"{request.param}_url")
    # The test server does not sync its disk: its data is gone after the tests anyway.
    return f"{url}?allow=unsafe-durability" if request.param in _UNSYNCED else url


def test_a_round_through_all_commands(oncekey: Oncekey, store_url: str) -> None:
    assert oncekey("migrate", store_url).code == 0
    tenant = f"tenant-{uuid.uuid4()}"
    seed = Seed(open_store(store_url))
    completed = seed.completed("order-17", tenant=tenant)
    seed.step(seed.running("order-18", tenant=tenant), "authorise", b"yes")
    seed.close()

    listed = oncekey("list", store_url, "--tenant", tenant, "--json").json["records"]
    shown = oncekey("show", store_url, "--id", completed.hex()[:16], "--json", "--body").json
    by_key = oncekey(
        *("show", store_url, "--tenant", tenant, "--operation", OPERATION, "--key", "order-18"),
        "--json",
    ).json
    counted = oncekey("count", store_url, "--json").json
    swept = oncekey("sweep", store_url, "--json")
    purged = oncekey("purge", store_url, "--tenant", tenant, "--json").json
    after = oncekey("show", store_url, "--id", completed.hex(), "--json", "--body").json

    assert [record["id"] for record in listed] == sorted(record["id"] for record in listed)
    assert {record["state"] for record in listed} == {"completed", "running"}
    assert shown["answer"]["body"] == '{"secret": "1234"}'
    assert by_key["state"] == "running"
    assert 0 < by_key["lease_left_s"] <= 30
    assert by_key["steps"] == [{"name": "authorise", "done": True}]
    assert counted["completed"] >= 1
    assert counted["running"] >= 1
    assert swept.code == 0
    assert purged == {"blanked": 1, "complete": False}
    assert (after["key_hash"], after["answer"]["body"]) == (None, None)
