"""What waits for the card network keeps nobody from doing what does not need it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncekey.webhooks import Sender
from payments.webhooks.senders import LOOKUPS_MAX
from tests.payments.api_client import WAIT_S_MAX, Api, start_api
from tests.payments.test_races import Together

pytestmark = pytest.mark.slow

CHARGE = {"amount": 900, "currency": "eur", "source": "tok_visa"}
PLACES = 3


@contextmanager
def start_crowded(data: Path, charges: int) -> Iterator[tuple[Api, Together]]:
    """So many charges of which three wait for the network, and the others for a place."""
    with start_api(data, threads_max=4) as api:
        together = Together()
        with api.network.hold_up():
            for number in range(charges):
                together.start(api.post, "charges", CHARGE, f"key-{number}")
            api.network.wait_until_called(PLACES)
            yield api, together
        together.statuses()


def test_who_looks_is_answered_while_charges_wait_for_the_network(tmp_path: Path) -> None:
    with start_crowded(tmp_path, 8) as (api, together):
        [newest, *_] = api.get("charges").json()["data"]
        assert newest["status"] == "pending"
    assert together.statuses() == [200] * 8
    assert len(api.network.rows("capture")) == 8


def test_so_is_who_only_writes_rows(tmp_path: Path) -> None:
    """It would wait in a transaction, and all who write on SQLite for it."""
    with start_crowded(tmp_path, PLACES + 1) as (api, together):
        for name in ("Ada", "Grace"):
            assert api.create("customers", {"name": name})["name"] == name
    assert together.statuses() == [200] * (PLACES + 1)


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_crowded(tmp_path, PLACES) as (api, together):
        monkeypatch.setattr("payments.access.concurrency_limit.WAIT_S_MAX", 0.01)
        full = api.post("charges", CHARGE, "late")
        assert (full.status_code, full.json()["error"]["type"]) == (503, "api_error")
        assert full.headers["request-id"].startswith("req_")
    assert together.statuses() == [200] * PLACES
    monkeypatch.undo()
    with start_api(tmp_path) as api:
        assert api.post("charges", CHARGE, "late").status_code == 200


def test_slow_names_of_webhooks_keep_nobody_from_paying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Semaphore(0), threading.Event()

    def slow(_: Sender, url: str) -> str | None:
        asked.release()
        assert answers.wait(WAIT_S_MAX)
        return None

    monkeypatch.setattr(Sender, "objection", slow)
    with start_api(tmp_path, threads_max=8) as api:  # six of them for changes
        together = Together()
        said = {"url": "https://hooks.example.com/", "enabled_events[]": "charge.failed"}
        for _ in range(6):
            together.start(api.post, "webhook_endpoints", said)
        for _ in range(LOOKUPS_MAX):
            assert asked.acquire(timeout=WAIT_S_MAX)
        together.until_answered(6 - LOOKUPS_MAX)
        assert api.charge(900)["paid"]
        answers.set()
        assert together.statuses() == [200] * LOOKUPS_MAX + [503] * (6 - LOOKUPS_MAX)
