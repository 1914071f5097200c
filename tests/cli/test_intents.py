"""`oncekey intents`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey.client import Journal
from oncekey.core.key import short_hash
from tests.cli.conftest import HourAgo, Oncekey


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "intents.db")


@pytest.fixture
def journal(path: str) -> Iterator[Journal]:
    with Journal(path) as opened:
        yield opened


def test_what_is_not_settled_is_listed(oncekey: Oncekey, path: str, journal: Journal) -> None:
    key = journal.key("order-42/pay", origin="https://api.test:443", note="resend")
    journal.key("order-43/pay")
    journal.settle("order-43/pay")
    journal.flush()

    ran = oncekey("intents", path)

    assert ran.code == 0
    header, line = ran.out.splitlines()
    assert header.split() == ["INTENT", "KEY", "HASH", "BEGUN", "MAY", "BE", "SENT", "TO"]
    assert short_hash(key) in line
    assert line.endswith("https://api.test:443")
    assert key not in ran.out
    assert key in oncekey("intents", "--show-keys", path).out

    [told] = oncekey("intents", "--json", path).json["intents"]
    assert (told["name"], told["note"], told["may_be_sent"]) == ("order-42/pay", "resend", True)
    assert (told["key_hash"], "key" in told) == (short_hash(key), False)


def test_what_is_too_old_to_be_sent_is_marked(oncekey: Oncekey, path: str) -> None:
    with Journal(path, clock=HourAgo()) as journal:
        journal.key("order-42/pay", origin="https://api.test:443")
        journal.learn("https://api.test:443", 600)

    assert "no more: look first" in oncekey("intents", path).out
    assert not oncekey("intents", "--json", path).json["intents"][0]["may_be_sent"]


def test_an_operator_settles_what_was_found_out(
    oncekey: Oncekey, path: str, journal: Journal
) -> None:
    key = journal.key("order-42/pay")

    ran = oncekey("intents", path, "--settle", "order-42/pay")

    assert (ran.code, "new key" in ran.out) == (0, True)
    assert journal.key("order-42/pay") != key
    assert oncekey("intents", path, "--settle", "order-42/pay", "--json").json == {
        "settled": "order-42/pay"
    }
    again = oncekey("intents", path, "--settle", "order-42/pay")
    assert (again.code, again.err) == (1, "no unsettled intent is called 'order-42/pay'\n")


def test_nothing_to_do(oncekey: Oncekey, path: str, journal: Journal) -> None:
    journal.unsettled()

    ran = oncekey("intents", path)

    assert (ran.code, ran.out, ran.err) == (1, "", "every intent is settled\n")


def test_a_file_that_is_not_there_is_not_made(oncekey: Oncekey, path: str) -> None:
    ran = oncekey("intents", path)

    assert (ran.code, "there is no file" in ran.err) == (2, True)
    assert not Path(path).exists()
