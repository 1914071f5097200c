from pathlib import Path

import pytest
import sqlalchemy as sa

from payments.money import ledger
from payments.settings import Settings
from payments.storage.database import Database
from payments.storage.tables import ledger_entries


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(Settings(data=tmp_path))
    database.create_tables()
    return database


def test_money_that_moves_is_written_twice_and_sums_to_zero(database: Database) -> None:
    with database.begin() as connection:
        ledger.post(connection, "acct_a/test", "charge", "ch_1", 2000, "eur")
        ledger.post(connection, "acct_a/test", "charge", "ch_2", 300, "jpy")
        ledger.post(connection, "acct_b/test", "charge", "ch_3", 100, "eur")
        ledger.post(connection, "acct_a/test", "refund", "re_1", -500, "eur")
    with database.read() as connection:
        assert ledger.balances(connection, "acct_a/test") == {"eur": 1500, "jpy": 300}
        assert ledger.balances(connection, "acct_b/test") == {"eur": 100}
        assert ledger.balances(connection, "acct_c/test") == {}
        assert ledger.total(connection) == 0
        count = connection.execute(sa.select(sa.func.count()).select_from(ledger_entries))
        assert count.scalar_one() == 8


def test_one_cause_moves_money_once(database: Database) -> None:
    with database.begin() as connection:
        ledger.post(connection, "acct_a/test", "charge", "ch_1", 2000, "eur")
    with pytest.raises(sa.exc.IntegrityError), database.begin() as connection:
        ledger.post(connection, "acct_a/test", "charge", "ch_1", 2000, "eur")
    with database.read() as connection:
        assert ledger.balances(connection, "acct_a/test") == {"eur": 2000}


def test_entries_that_do_not_sum_to_zero_are_never_committed(database: Database) -> None:
    def post_wrongly() -> None:
        with database.begin() as connection:
            name = ledger.post(connection, "acct_a/test", "charge", "ch_1", 2000, "eur")
            connection.execute(sa.update(ledger_entries).values(amount=1))
            ledger.check(connection, name)

    with pytest.raises(ledger.UnbalancedError):
        post_wrongly()
    with database.read() as connection:
        assert ledger.balances(connection, "acct_a/test") == {}
