"""The check that no test leaves a worker behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oncekey._engine.sweeper import Sweeper
from oncekey.messaging import Outbox, Publisher
from oncekey.stores.memory import MemoryStore
from tests import leftovers
from tests.leftovers import none_left


def test_a_thread_that_is_left_behind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ENDS_S", 0.01)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="courier", daemon=True)
    with pytest.raises(AssertionError, match="left behind: courier"), none_left():
        thread.start()
    end.set()
    thread.join()


def test_a_worker_that_a_pool_runs_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(leftovers, "ENDS_S", 0.01)
    outbox, runs, found = Outbox(f"sqlite:///{tmp_path / 'shop.db'}"), threading.Event(), ""
    outbox.migrate_sync()

    def chance() -> float:
        runs.set()
        return 0.0

    worker = Publisher(outbox, print, chance=chance)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread is there before
        try:
            with none_left():
                pool.submit(worker.run_sync)
                assert runs.wait(20)
        except AssertionError as error:
            found = str(error)
        finally:
            worker.stop()
    assert "left behind: ThreadPoolExecutor-" in found


def test_one_that_is_about_to_end_is_waited_for() -> None:
    end = threading.Event()
    with none_left():
        threading.Thread(target=end.wait).start()
        threading.Timer(0.05, end.set).start()


@pytest.mark.parametrize(("name", "is_left"), [("memory", False), ("postgres", True)])
def test_a_sweeper_counts_where_others_share_its_store(
    monkeypatch: pytest.MonkeyPatch, name: str, is_left: bool
) -> None:
    monkeypatch.setattr(leftovers, "ENDS_S", 0.01)
    store = MemoryStore()
    monkeypatch.setattr(store, "name", name, raising=False)
    sweeper, found = Sweeper(store), False
    try:
        with none_left():
            sweeper.start()
    except AssertionError:
        found = True
    sweeper.stop()
    assert found is is_left
