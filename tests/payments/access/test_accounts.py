"""Accounts: keys are made, found, replaced and ended; none is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from payments import clock
from payments.access.accounts import Account, AccountNotFoundError, Accounts, digest, hint
from payments.settings import Settings
from payments.storage.database import Database


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    made = Database(Settings(data=tmp_path, database_url=url))
    made.create_tables()
    yield made
    made.close()


def test_a_key_is_found_by_its_digest_and_kept_in_no_other_form(database: Database) -> None:
    accounts = Accounts(database)
    account, key = accounts.create("Tea shop")
    assert account.mode == "test"
    assert key.startswith("sk_test_")
    found = accounts.find_key(digest(key))
    assert found is not None
    assert (found.account, found.hint, found.expires) == (account, hint(key), None)
    assert found.works(clock.wall())
    assert accounts.find_key(digest(key[:-1])) is None
    with database.read() as connection:
        kept = str(connection.exec_driver_sql("SELECT * FROM api_keys").all())
    assert key not in kept
    assert key.removeprefix("sk_test_")[:8] not in kept


def test_no_two_keys_are_alike(database: Database) -> None:
    accounts = Accounts(database)
    assert len({accounts.create("Shop")[1] for _ in range(20)}) == 20


def test_rotation_overlaps(database: Database) -> None:
    accounts = Accounts(database)
    account, old = accounts.create("Tea shop")
    new = accounts.rotate(account, overlap_s=600)
    now = clock.wall()
    before, after = accounts.find_key(digest(old)), accounts.find_key(digest(new))
    assert before is not None
    assert after is not None
    assert before.account == after.account == account
    assert (before.works(now), before.works(now + 601)) == (True, False)
    assert (after.works(now), after.works(now + 601)) == (True, True)


def test_a_rotation_lengthens_no_earlier_one(database: Database) -> None:
    accounts = Accounts(database)
    account, oldest = accounts.create("Tea shop")
    accounts.rotate(account, overlap_s=60)
    accounts.rotate(account, overlap_s=86_400)
    found = accounts.find_key(digest(oldest))
    assert found is not None
    assert not found.works(clock.wall() + 61)


def test_a_key_is_revoked_in_full_or_by_its_hint_or_with_all_others(database: Database) -> None:
    accounts = Accounts(database)
    account, first = accounts.create("Tea shop")
    second, third, fourth = (accounts.rotate(account) for _ in range(3))
    accounts.revoke(account, first)
    assert {key.hint for key in accounts.revoke(account, hint(second))} == {hint(second)}
    works = [
        (found := accounts.find_key(digest(key))) is not None and found.works(clock.wall())
        for key in (first, second, third, fourth)
    ]
    assert works == [False, False, True, True]
    assert len(accounts.revoke(account)) == 2
    with pytest.raises(AccountNotFoundError, match="account list"):
        accounts.revoke(account)


def test_a_revoked_key_does_not_come_back_by_a_rotation(database: Database) -> None:
    accounts = Accounts(database)
    account, key = accounts.create("Tea shop")
    accounts.revoke(account, key)
    accounts.rotate(account)
    found = accounts.find_key(digest(key))
    assert found is not None
    assert not found.works(clock.wall())


def test_the_key_of_another_account_is_not_revoked(database: Database) -> None:
    accounts = Accounts(database)
    (one, _), (_, others) = accounts.create("One"), accounts.create("Other")
    with pytest.raises(AccountNotFoundError):
        accounts.revoke(one, others)


def test_an_account_that_is_not_there(database: Database) -> None:
    for refused in (Accounts(database).rotate, Accounts(database).revoke):
        with pytest.raises(AccountNotFoundError, match="There is no account acct_none"):
            refused(Account("acct_none"))


def test_all_are_listed_with_their_keys(database: Database) -> None:
    accounts = Accounts(database)
    account, _ = accounts.create("Tea shop")
    accounts.rotate(account)
    [listed] = [found for found in accounts.all() if found.id == account.id]
    assert (listed.name, len(listed.keys)) == ("Tea shop", 2)


def test_a_tenant_names_its_account() -> None:
    account = Account("acct_1", "live")
    assert account.tenant == "acct_1/live"
    assert Account.of(account.tenant) == account


@pytest.mark.parametrize(
    ("key", "shown"),
    [("sk_test_AbCdEfGh", "sk_test_…EfGh"), ("abc", "_…abc"), ("sk_live_x", "sk_live_…x")],
)
def test_what_may_be_shown_of_a_key(key: str, shown: str) -> None:
    assert hint(key) == shown
