"""Messages in a transaction of the caller's, where MySQL and MariaDB are unlike others."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pymysql
import pytest

from oncekey import StoreUnavailable
from oncekey._core.op import run
from oncekey._core.verbs import Sweep
from oncekey.messaging import Busy, Handled
from tests.messaging.inbox_shop import Shop, message_id, on_mysql, place, shop

__all__ = ["message_id", "place", "shop"]

pytestmark = on_mysql


def once_instead(
    monkeypatch: pytest.MonkeyPatch, statement: str, happens: Callable[[Any], None]
) -> None:
    """This happens to the connection instead of the first such statement."""
    execute, left = pymysql.cursors.Cursor.execute, [statement]

    def executed(cursor: Any, query: str, args: Any = None) -> Any:
        if left and left[0] in query:
            left.clear()
            happens(cursor.connection)
        return execute(cursor, query, args)

    monkeypatch.setattr(pymysql.cursors.Cursor, "execute", executed)


def deadlock(connection: Any) -> None:
    """It is the victim: the whole transaction is undone."""
    connection.rollback()
    raise pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")


def interruption(connection: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("statement", ["INTO oncekey_held", "INTO oncekey_claims"])
def test_p2_a_caller_whose_transaction_was_undone_hears_of_it(
    shop: Shop, message_id: str, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """What it had written before is gone: going on in a new transaction would commit the rest."""
    with closing(shop.connect()) as connection:
        shop.ship(connection, message_id)
        once_instead(monkeypatch, statement, deadlock)
        with pytest.raises(StoreUnavailable):
            shop.inbox.handle_in_sync(connection, message_id, shop.ship, connection, message_id)
        connection.rollback()
        assert shop.inbox.handle_in_sync(connection, message_id, lambda: 2) == Handled(2)


def test_p6_an_id_that_was_left_behind_holds_nobody_up(
    shop: Shop, message_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted between taking it and letting it go, and committed all the same. The next takes
    it for its own, and has it for itself.
    """

    def held() -> int:
        with closing(shop.connect()) as looking, looking.cursor() as cursor:
            return int(cursor.execute("SELECT id FROM oncekey_held"))

    with closing(shop.connect()) as connection, closing(shop.connect()) as other:

        def ship() -> int:
            assert isinstance(shop.inbox.handle_in_sync(other, message_id, print), Busy)
            return 2

        once_instead(monkeypatch, "DELETE FROM oncekey_held", interruption)
        with pytest.raises(KeyboardInterrupt):
            shop.inbox.handle_in_sync(connection, message_id, lambda: 1)
        connection.commit()
        assert held() == 1
        assert shop.inbox.handle_in_sync(connection, message_id, ship) == Handled(2)
        connection.commit()
        assert held() == 0


@pytest.mark.parametrize("expired", [1, 3])
def test_a_transaction_that_stays_open_keeps_nobody_from_sweeping(shop: Shop, expired: int) -> None:
    """Its message is handled and not yet committed: neither what it read nor what it wrote is
    waited for, be the table ever so short.
    """
    store = shop.runtime.store
    with closing(shop.connect()) as connection, closing(store.connect()) as ours:

        def sweep() -> Any:
            return run(store.perform([Sweep(1_000)]), ours.ask)[0]

        shop.place.elapse(10 * 365 * 86_400)
        sweep()
        for _ in range(expired):
            shop.inbox.handle_sync(uuid.uuid4().hex, lambda: 1)
        shop.place.elapse(10 * 365 * 86_400)
        assert shop.inbox.handle_in_sync(connection, uuid.uuid4().hex, lambda: 2) == Handled(2)
        assert sweep() == expired
        connection.commit()


def test_what_somebody_holds_is_not_swept_and_not_waited_for(shop: Shop, message_id: str) -> None:
    store = shop.runtime.store
    shop.inbox.handle_sync(message_id, lambda: 1)
    shop.place.elapse(10 * 365 * 86_400)
    with closing(shop.connect()) as connection, closing(store.connect()) as ours:
        connection.cursor().execute("SELECT id FROM oncekey_claims FOR UPDATE")
        assert run(store.perform([Sweep(1_000)]), ours.ask) == [0]
