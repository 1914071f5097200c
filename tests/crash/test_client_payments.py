"""A client of the payments API is killed at every probe, and restarted: one charge per order."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncekey.client import SqlJournal
from oncekey.testing.crash import VARIABLE
from payments.access.accounts import LOCAL_KEY
from payments.app import create_app
from payments.settings import Settings
from payments.storage.database import Database
from tests.acceptance.serve import serving
from tests.crash.child import ROOT
from tests.payments.api_client import UNLIMITED, InProcessNetwork

pytestmark = pytest.mark.slow

ORDERS = ("order-1", "order-2", "order-3")
AT = (
    "before_intent",
    "after_intent",
    "before_request",
    "after_answer",
    "before_settle",
    "after_settle",
)


class Bank:
    """The payments API on a real server, and what the card network was told."""

    def __init__(self, url: str, network: InProcessNetwork) -> None:
        self.url = url
        self._network = network

    def charged(self) -> int:
        return len(self._network.rows("authorisation"))


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    settings = Settings(data=tmp_path / "bank", local_key=True, rates=UNLIMITED)
    settings.data.mkdir()
    database, network = Database(settings), InProcessNetwork()
    database.create_tables()
    with serving(create_app(settings, network)) as served:
        yield Bank(f"http://127.0.0.1:{served.port}", network)
    database.close()


def keep_shop(bank: Bank, folder: Path, *, at: str = "") -> int:
    """Run the client until it ends, or is killed."""
    command = [sys.executable, "-m", "tests.crash.shopkeeper", bank.url, LOCAL_KEY]
    return subprocess.run(
        [*command, str(folder / "shop.db"), *ORDERS],
        cwd=ROOT,
        env={**os.environ, VARIABLE: at},
        timeout=50,
    ).returncode


@pytest.mark.parametrize("at", AT)
def test_a_killed_client_charges_every_order_once(bank: Bank, tmp_path: Path, at: str) -> None:
    assert keep_shop(bank, tmp_path, at=f"{at}=kill@2") == -9

    assert keep_shop(bank, tmp_path) == 0

    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        charges = dict(shop.execute("SELECT id, charge FROM orders").fetchall())
        assert SqlJournal().unsettled(within=shop) == []
    assert sorted(charges) == sorted(ORDERS)
    assert len(set(charges.values())) == len(ORDERS)
    assert None not in charges.values()
    assert bank.charged() == len(ORDERS)


def test_one_that_is_killed_again_and_again_gets_there_in_the_end(
    bank: Bank, tmp_path: Path
) -> None:
    for at in ("after_answer", "after_answer", "before_settle", "after_intent"):
        assert keep_shop(bank, tmp_path, at=f"{at}=kill") == -9

    assert keep_shop(bank, tmp_path) == 0
    assert bank.charged() == len(ORDERS)
