from datetime import UTC, datetime
from pathlib import Path

import pytest

from oncekey.cli.main import main as oncekey
from oncekey.client.keys import uuid7
from payments import clock
from payments.app import MOVES_MONEY, ROWS_ONLY
from payments.storage import ids
from tests.payments.api_client import Api, start_api

SAID = {"amount": 900, "currency": "eur", "source": "tok_visa"}


@pytest.mark.slow
def test_rows_and_money_are_replayed_on_every_database(fresh: Api) -> None:
    for path, said in (("customers", {"name": "Ada"}), ("charges", SAID)):
        first, again = (
            fresh.post(path, said, f"key-{path}"),
            fresh.post(path, said, f"key-{path}"),
        )
        assert first.status_code == 200, first.text
        assert again.content == first.content
        assert again.headers["idempotent-replayed"] == "true"
        assert fresh.count(path) == 1
    assert fresh.get("balance").json()["available"][0]["amount"] == 900


def test_every_route_that_changes_something_says_how_it_is_safe(api: Api) -> None:
    document = api.client.get("/openapi.json").json()
    posts = {
        f"POST {path}" for path, operations in document["paths"].items() if "post" in operations
    }
    ours = {
        route for route in posts if "/webhook_endpoints" not in route and "/events" not in route
    }
    assert ours == {*ROWS_ONLY, *MOVES_MONEY}


def test_a_client_without_a_key_is_given_one(api: Api) -> None:
    first, second = api.post("charges", SAID), api.post("charges", SAID)
    keys = [answer.headers["idempotency-key"] for answer in (first, second)]
    assert all(ids.is_generated_key(key) for key in keys)
    assert keys[0] != keys[1]
    assert first.json()["id"] != second.json()["id"]


def test_e45_after_a_loss_only_who_may_be_repeating_something_is_refused(tmp_path: Path) -> None:
    """Whoever sends no key repeats none that was lost."""
    with start_api(tmp_path) as api:
        lost = datetime.fromtimestamp(clock.wall() - 3600, UTC).isoformat()
        assert oncekey(["amnesia", api.settings.database, "--until", lost]) == 0
        for path, said in (("charges", SAID), ("customers", {"name": "Ada"})):
            assert (
                api.post(path, said, f"order-{path}").json()["error"]["code"] == "outcome_unknown"
            )
            assert api.post(path, said, uuid7(clock.wall() - 7200, bytes(10))).status_code == 409
            assert api.post(path, said, uuid7(clock.wall(), bytes(10))).status_code == 200
            assert api.post(path, said).status_code == 200
            assert api.count(path) == 2


@pytest.mark.parametrize("path", ["/", "/nowhere", "/v10"])
def test_what_is_not_the_api_needs_no_account(api: Api, path: str) -> None:
    answer = api.client.post(path, headers={"idempotency-key": "k1"})
    assert answer.status_code in (404, 405)


@pytest.mark.parametrize("path", ["customers", "charges"])
def test_p7_a_path_with_a_line_end_is_no_endpoint(api: Api, path: str) -> None:
    """The router alone would take it for the same one; its rules and its limits are others'."""
    rows = api.count(path)
    refused = api.post(f"{path}%0A", SAID if path == "charges" else {"name": "Ada"}, "line-end")
    assert (refused.status_code, api.count(path)) == (404, rows)
    assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.slow
def test_without_idempotency_the_same_handlers_run_and_a_retry_charges_again(
    tmp_path: Path,
) -> None:
    """What the benchmark compares with, and nobody wants."""
    with start_api(tmp_path, idempotent=False) as api:
        first, again = api.post("charges", SAID, "key"), api.post("charges", SAID, "key")
        assert (first.status_code, again.status_code) == (200, 200)
        assert len(api.network.rows("capture")) == 2
        assert api.create("customers", {"name": "Ada"})["name"] == "Ada"
        refund = api.create("refunds", {"charge": first.json()["id"]})
        assert refund["status"] == "succeeded"
