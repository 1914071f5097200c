"""A client is killed at every probe, and restarted: every intent ends settled, with one effect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey import single_tenant
from oncekey.client import Journal
from oncekey.testing.crash import VARIABLE
from oncekey.web.asgi import IdempotencyMiddleware
from tests.acceptance.serve import serving
from tests.acceptance.shop import Shop
from tests.crash.child import ROOT

pytestmark = pytest.mark.slow

ORDERS = ("order-1", "order-2", "order-3")
AT = ("before_intent", "after_intent", "before_request", "after_answer")
LAST = ("before_settle", "after_settle")  # settling is written with the next intent, or at the end


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(shop: Shop, tmp_path: Path) -> Iterator[str]:
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    app = IdempotencyMiddleware(shop.app, store=store, tenant=single_tenant)
    with serving(app) as served:
        yield f"http://127.0.0.1:{served.port}"


def pay(url: str, folder: Path, *, at: str = "") -> int:
    """Run the client until it ends, or is killed."""
    files = [str(folder / "intents.db"), str(folder / "paid")]
    return subprocess.run(
        [sys.executable, "-m", "tests.crash.payer", url, *files, *ORDERS],
        cwd=ROOT,
        env={**os.environ, VARIABLE: at},
        timeout=50,
    ).returncode


@pytest.mark.parametrize(
    "at", [f"{probe}=kill@{n}" for probe in AT for n in (1, 2, 3)] + [f"{p}=kill" for p in LAST]
)
def test_a_killed_client_settles_every_intent_with_one_effect(
    shop: Shop, url: str, tmp_path: Path, at: str
) -> None:
    assert pay(url, tmp_path, at=at) == -9

    assert pay(url, tmp_path) == 0

    paid = dict(line.split() for line in (tmp_path / "paid").read_text().splitlines())
    assert shop.runs == len(ORDERS)
    assert sorted(paid) == sorted(ORDERS)
    assert sorted(paid.values()) == ["1", "2", "3"], "each has its own answer, and keeps it"
    with Journal(tmp_path / "intents.db") as journal:
        assert journal.unsettled() == []


def test_one_that_is_killed_again_and_again_gets_there_in_the_end(
    shop: Shop, url: str, tmp_path: Path
) -> None:
    for at in (*AT, "after_answer", "after_answer"):
        assert pay(url, tmp_path, at=f"{at}=kill") == -9

    assert pay(url, tmp_path) == 0
    assert shop.runs == len(ORDERS)
