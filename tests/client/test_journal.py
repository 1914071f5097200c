"""The journal: keys that survive a crash."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from oncekey._system import probes
from oncekey._system.clock import FakeClock
from oncekey.client import AsyncClient, Client, Journal
from oncekey.client import _journal as journals
from oncekey.errors import Misuse
from tests.client.journal_fixtures import DAY_S, PAY, QUICK, changes, clock, journal, path, server
from tests.client.scripted_server import ScriptedServer

__all__ = ["clock", "journal", "path", "server"]


def test_the_key_is_the_same_until_the_intent_is_settled(
    path: Path, journal: Journal, clock: FakeClock
) -> None:
    assert journal.find(PAY) is None
    key = journal.key(PAY)
    assert journal.key(PAY) == key
    found = journal.find(PAY)
    assert found is not None
    assert found.key == key
    assert journal.key("order-43/pay") != key
    with Journal(path, clock=clock) as restarted:
        assert restarted.key("order-43/pay") == journal.key("order-43/pay")

    journal.settle(PAY)

    assert journal.find(PAY) is None
    assert journal.key(PAY) != key


def test_another_process_finds_the_same_key(path: Path) -> None:
    program = f"from oncekey.client import Journal; print(Journal({str(path)!r}).key({PAY!r}))"
    keys = {
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
        for _ in range(2)
    }

    assert len(keys) == 1


def test_a_key_is_on_disk_before_it_is_given_out(path: Path) -> None:
    """The process is gone the moment it has its key: no closing, no flushing."""
    program = (
        "import os; from oncekey.client import Journal; "
        f"os.write(1, Journal({str(path)!r}).key({PAY!r}).encode()); os._exit(9)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True)

    assert ran.returncode == 9
    assert Journal(path).key(PAY) == ran.stdout.decode()


def test_one_durable_write_per_intent_and_none_after_it(
    path: Path, clock: FakeClock, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "FLUSH_AFTER_S", 3600.0)
    server.script = ["drop"]
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, journal=journal, retries=QUICK, clock=clock) as api,
    ):
        journal.unsettled()  # opens the file
        writes = []
        for number in range(3):
            before = changes(path)
            api.post("/charges", intent=f"order-{number}/pay")
            journal.settle(f"order-{number}/pay")
            writes.append(changes(path) - before)

    assert writes == [1, 1, 1]


def test_what_is_not_settled_is_listed_the_oldest_first(journal: Journal, clock: FakeClock) -> None:
    keys = {}
    for name in ("b", "a", "c"):
        keys[name] = journal.key(name, origin="https://api.test:443", note=f"send {name}")
        clock.advance(1.0)
    journal.settle("a", "never begun")

    found = journal.unsettled()

    assert [(intent.name, intent.key, intent.note) for intent in found] == [
        (name, keys[name], f"send {name}") for name in ("b", "c")
    ]
    assert found[0].origin == "https://api.test:443"
    assert found[0].until == found[0].begun + DAY_S - 120
    assert journal.unsettled(limit=1) == found[:1]


def test_what_is_settled_stays_so_after_closing(path: Path) -> None:
    with Journal(path) as journal:
        journal.key(PAY)
        journal.settle(PAY)

    assert Journal(path).unsettled() == []


def test_a_block_settles_its_intent_unless_it_fails(journal: Journal) -> None:
    with pytest.raises(ConnectionError), journal.intent(PAY) as first:
        raise ConnectionError
    with journal.intent(PAY) as second:
        pass

    assert first == second
    assert journal.unsettled() == []


def test_a_late_settling_does_not_touch_what_another_process_began(
    path: Path, journal: Journal, clock: FakeClock
) -> None:
    journal.key(PAY)
    journal.settle(PAY)  # not written yet
    clock.advance(1.0)
    with Journal(path, clock=clock) as other:
        other.settle(PAY)
        anew = other.key(PAY)

    journal.flush()

    assert journal.key(PAY) == anew


def test_who_was_slow_does_not_settle_what_another_process_began_anew(
    path: Path, journal: Journal, clock: FakeClock
) -> None:
    with Journal(path, clock=clock) as other:
        key = journal.key(PAY)
        assert other.key(PAY) == key
        with other.intent(PAY) as same:
            journal.settle(PAY)
            anew = journal.key(PAY)
        other.settle(PAY, key=same)
        other.flush()

        assert [intent.key for intent in journal.unsettled()] == [anew]
        journal.settle(PAY, key=anew)
        assert journal.unsettled() == []
        with pytest.raises(Misuse, match="one key belongs to one intent"):
            journal.settle("a", "b", key=anew)


def test_other_processes_see_soon_what_is_settled(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another intent, and without closing: nobody is sent after what is done."""
    monkeypatch.setattr(journals, "FLUSH_AFTER_S", 0.001)
    key, written = journal.key(PAY), threading.Event()
    probes.arm("after_settle", written.set)

    journal.settle(PAY)

    assert written.wait(30)
    with Journal(path) as other:
        assert other.key(PAY) != key


# ----------------------------------------------------------------------------------------- clients


def test_an_intent_is_resumed_under_its_key(path: Path, server: ScriptedServer) -> None:
    server.script = ["drop", "drop"]
    with (
        Journal(path) as journal,
        Client(base_url=server.url, journal=journal, retries=QUICK) as api,
    ):
        with pytest.raises(Exception, match=r".") as lost:
            api.post("/charges", json={"amount": 1}, intent=PAY, note='{"amount": 1}')
        assert lost.value.__notes__

    async def restarted() -> None:
        journal = Journal(path)
        async with AsyncClient(base_url=server.url, journal=journal) as api:
            for intent in journal.unsettled():
                answer = await api.post("/charges", content=intent.note, intent=intent.name)
                assert answer.status_code == 201
                journal.settle(intent.name)
        journal.close()

    asyncio.run(restarted())
    assert len(server.seen) == 3
    assert len(set(server.keys)) == 1
    assert Journal(path).unsettled() == []


def test_an_intent_needs_a_journal_and_no_other_key(path: Path, server: ScriptedServer) -> None:
    with Client(base_url=server.url) as api, pytest.raises(Misuse, match="needs a journal"):
        api.post("/charges", intent=PAY)
    with (
        Client(base_url=server.url, journal=Journal(path)) as api,
        pytest.raises(Misuse, match="not both"),
    ):
        api.post("/charges", intent=PAY, key="k")

    assert not server.seen


def test_what_is_no_path_is_refused() -> None:
    nothing: Any = None  # as an environment variable gives it that nobody set
    with pytest.raises(Misuse, match="give its path"):
        Journal(nothing)


@pytest.mark.parametrize(
    "url", ["sqlite:///intents.db", "postgresql://shop:hunter2@db.internal/shop"]
)
def test_p12_a_url_is_no_path_of_a_journal_and_not_shown(url: str) -> None:
    with pytest.raises(Misuse, match=r"give its path.* use SqlJournal\(\)") as refused:
        Journal(url)
    assert "hunter2" not in str(refused.value)
