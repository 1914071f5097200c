"""Workers whose database is gone say so once, ask less and less often, and say when it is back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from payments.background import PeriodicTask
from payments.webhooks.deliveries import any_due
from payments.webhooks.worker import DeliveryWorker
from tests.payments.delivery_setup import delivery_setup
from tests.stores.postgres.kit import database

REFUSED = 8
DOUBLED = [0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]


class Paused(threading.Event):
    """Waits for nothing. It remembers for how long, and what else is to happen."""

    def __init__(self, then: Callable[[int], object]) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._then = then

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self._then(len(self.waits))
        return self.is_set()


def pause_worker(worker: DeliveryWorker, then: Callable[[int], object]) -> Paused:
    paused = Paused(then)
    worker._wake = paused
    return paused


def test_p11_a_courier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivery_setup("", tmp_path) as post:
        worker = post.worker(poll_s=0.2)

        def then(times: int) -> None:
            if times == REFUSED:
                gone.undo()
            if times == REFUSED + 2:
                worker._stop.set()

        def refuse(connection: Any, now: float) -> bool:
            raise sa.exc.OperationalError("SELECT 1", {}, Exception(f"refused at {now}"))

        with monkeypatch.context() as gone:
            gone.setattr("payments.webhooks.deliveries.any_due", refuse)
            paused = pause_worker(worker, then)
            worker.run()
    assert paused.waits == [*(pause / 2 for pause in DOUBLED), 0.1, 0.1]
    first, last = caplog.messages
    assert first.startswith("cannot claim deliveries: (builtins.Exception) refused at ")
    assert last == "claiming deliveries works again"


@pytest.mark.slow
def test_p11_a_courier_whose_database_was_dropped(
    tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as until_the_end:
        with database(postgres_url) as url:
            post = until_the_end.enter_context(delivery_setup(url, tmp_path))
            worker = post.worker(poll_s=0.2)
            with post.database.read() as connection:
                assert not any_due(connection, post.now())

        def then(times: int) -> None:
            if times == REFUSED:
                worker._stop.set()

        paused = pause_worker(worker, then)
        worker.run()
    assert paused.waits == [pause / 2 for pause in DOUBLED]
    assert len([line for line in caplog.messages if "cannot claim deliveries" in line]) == 1


def test_p11_a_chore(caplog: pytest.LogCaptureFixture) -> None:
    class Sweeping(PeriodicTask):
        every_s = 0.2
        done = 0

        def run_once(self) -> None:
            self.done += 1
            if self.done <= REFUSED:
                raise ZeroDivisionError(f"failure {self.done}")

    def then(times: int) -> None:
        if times == REFUSED + 3:
            paused.set()

    chore, paused = Sweeping(), Paused(then)
    chore.stopping = paused
    chore._run()
    assert paused.waits == [0.2, *DOUBLED, 0.2, 0.2]
    assert caplog.messages == [
        "Sweeping fails and will retry: failure 1",
        "Sweeping works again",
    ]
    assert caplog.records[0].exc_info is not None
