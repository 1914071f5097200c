"""What is old goes, in small transactions; what still waits, and what it needs, stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from payments import clock
from payments.storage import ids, rows
from payments.storage.tables import deliveries as delivery_rows
from payments.storage.tables import delivery_attempts
from payments.storage.tables import events as event_rows
from payments.webhooks import deliveries, sweeper
from payments.webhooks.sweeper import EventSweeper
from tests.payments.api_client import start_api
from tests.payments.delivery_setup import DeliverySetup, delivery_setup, post
from tests.payments.serve_command import until

__all__ = ["post"]
pytestmark = pytest.mark.slow

DAY_S = 86_400
KEPT_S = 30 * DAY_S
URL = "https://hooks.example.com/"


@pytest.fixture
def on_postgres(postgres_url: str, tmp_path: Path) -> Iterator[DeliverySetup]:
    with delivery_setup(postgres_url, tmp_path) as made:
        yield made


def add_event(post: DeliverySetup, age_s: float, status: str) -> str:
    """An event of this age, one delivery of it that stands so, and one attempt."""
    event, created = post.event(), int(clock.wall() - age_s)
    with post.database.begin() as connection:
        found = delivery_rows.c.event == event
        [delivery] = connection.execute(sa.select(delivery_rows).where(found)).all()
        attempt = {"tenant": post.tenant, "id": ids.new("att"), "delivery": delivery.id}
        connection.execute(delivery_attempts.insert(), attempt | {"created": created})
        changes = {"created": created, "status": status}
        connection.execute(delivery_rows.update().where(found).values(**changes))
        aged = event_rows.update().where(event_rows.c.id == event)
        connection.execute(aged.values(created=created))
    return event


def stored(post: DeliverySetup) -> dict[str, Any]:
    return {
        "events": {row.id for row in post.events()},
        "deliveries": {row.event for row in post.deliveries()},
        "attempts": len(post.attempts()),
    }


@pytest.mark.parametrize("status", ["delivered", "failed", "canceled"])
def test_what_is_old_goes_and_what_is_younger_stays(post: DeliverySetup, status: str) -> None:
    post.endpoint(URL)
    for days in (31, 300):
        add_event(post, days * DAY_S, status)
    young = {add_event(post, days * DAY_S, status) for days in (0, 29)}

    assert EventSweeper(post.database, KEPT_S).run_once() == 6

    assert stored(post) == {"events": young, "deliveries": young, "attempts": 2}


def test_an_event_that_nobody_wanted_goes_too(post: DeliverySetup) -> None:
    event = post.event()
    with post.database.begin() as connection:
        connection.execute(event_rows.update().where(event_rows.c.id == event).values(created=1))

    assert EventSweeper(post.database, KEPT_S).run_once() == 1

    assert post.events() == []


def test_what_waits_to_be_delivered_stays_and_so_does_its_event(post: DeliverySetup) -> None:
    """Nobody sent it for a month: at least once is at least once."""
    post.endpoint(URL)
    waits = {add_event(post, 60 * DAY_S, "pending")}

    EventSweeper(post.database, KEPT_S).run_once()

    assert stored(post) == {"events": waits, "deliveries": waits, "attempts": 0}


def test_it_goes_in_small_transactions(
    post: DeliverySetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "ROWS_MAX", 2)
    post.endpoint(URL)
    for _ in range(5):
        add_event(post, 31 * DAY_S, "delivered")
    total: list[int] = []

    def count(_: Any, cursor: Any, statement: str, *more: Any) -> None:
        if statement.startswith("DELETE"):
            total.append(cursor.rowcount)

    sa.event.listen(post.database.engine, "after_cursor_execute", count)
    EventSweeper(post.database, KEPT_S).run_once()

    assert sorted(total) == [1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert stored(post) == {"events": set(), "deliveries": set(), "attempts": 0}


def test_one_that_is_told_to_stop_leaves_the_rest(post: DeliverySetup) -> None:
    post.endpoint(URL)
    old = {add_event(post, 31 * DAY_S, "delivered")}
    stopped = EventSweeper(post.database, KEPT_S)
    stopped.stop()

    assert stopped.run_once() == 0

    assert stored(post)["events"] == old


def test_a_server_sweeps_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventSweeper, "every_s", 0.01)
    with start_api(tmp_path) as api:
        api.create("customers")
        assert api.count("events") == 1
        with api.database.begin() as connection:
            connection.execute(event_rows.update().values(created=1))
        until(lambda: api.count("events") == 0, "the event to be removed")


def test_an_event_that_is_being_sent_again_stays(on_postgres: DeliverySetup) -> None:
    """Whoever sends it again has locked it: no delivery is left without its event."""
    post = on_postgres
    post.endpoint(URL)
    event = add_event(post, 31 * DAY_S, "delivered")
    with post.database.begin() as connection:
        row = rows.get(connection, event_rows, post.tenant, event, lock=True)
        deliveries.send_again(connection, post.tenant, row, None, clock.wall())
        EventSweeper(post.database, KEPT_S).run_once()
        assert [row.id for row in post.events()] == [event]

    EventSweeper(post.database, KEPT_S).run_once()

    assert stored(post) == {"events": {event}, "deliveries": {event}, "attempts": 0}
