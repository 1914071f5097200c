"""Accounts and their API keys. A key is shown once, when created; the database stores its digest.

Everything of an account is stored under its *tenant* (account and mode), never under the API key of
the request: after a key is replaced, retries of earlier requests are still recognised.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from payments import clock
from payments.storage import ids
from payments.storage.database import Database
from payments.storage.tables import accounts, api_keys

Mode = Literal["test", "live"]

SECRET_CHARS = 32
"""190 random bits: too many to guess, so a plain digest is enough."""
HINT_CHARS = 4
OVERLAP_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Account:
    """The account and mode a request belongs to."""

    id: str
    mode: Mode = "test"

    @property
    def tenant(self) -> str:
        """What its rows and idempotency keys are stored under."""
        return f"{self.id}/{self.mode}"

    @classmethod
    def of(cls, tenant: str) -> Account:
        """Return the account of a tenant."""
        account, _, mode = tenant.rpartition("/")
        return cls(account, cast(Mode, mode))


LOCAL = Account("acct_local")
LOCAL_KEY = "sk_test_local"  # no secret: only this machine may use it


@dataclass(frozen=True, slots=True)
class Key:
    """What is stored about a key."""

    account: Account
    hint: str
    """Enough to tell it from others, such as `sk_test_…aB3x`."""
    created: int
    expires: int | None = None
    revoked: int | None = None

    def works(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class AccountSummary:
    """An account as operators see it."""

    id: str
    name: str
    created: int
    keys: list[Key] = field(default_factory=list)


class AccountNotFoundError(LookupError):
    """There is no such account, or no such key of it."""


class Accounts:
    """The accounts of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, mode: Mode = "test", id_: str | None = None) -> tuple[Account, str]:
        """Create an account and its first key, which is returned here and never again."""
        account = Account(id_ or ids.new("acct"), mode)
        with self._database.begin() as connection:
            created = {"id": account.id, "created": clock.now_s(), "name": name}
            connection.execute(sa.insert(accounts), created)
            return account, _add_key(connection, account)

    def all(self) -> list[AccountSummary]:
        """List all accounts with their keys, oldest first."""
        keys: dict[str, list[Key]] = defaultdict(list)
        with self._database.read() as connection:
            for row in connection.execute(sa.select(api_keys).order_by(api_keys.c.created)):
                keys[row.account].append(_key(row))
            found = connection.execute(sa.select(accounts).order_by(accounts.c.id))
            return [
                AccountSummary(row.id, row.name or "", row.created, keys[row.id]) for row in found
            ]

    def find_key(self, digest: bytes) -> Key | None:
        """Look up a key, valid or not."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(api_keys).where(api_keys.c.digest == digest)).first()
        return None if row is None else _key(row)

    def rotate(self, account: Account, overlap_s: int = OVERLAP_S) -> str:
        """Create a key. The account's other keys of that mode work for another `overlap_s`."""
        until = clock.now_s() + overlap_s
        expire = (
            sa.update(api_keys)
            .where(_of(account), api_keys.c.revoked.is_(None))
            .where(sa.or_(api_keys.c.expires.is_(None), api_keys.c.expires > until))
            .values(expires=until)
        )
        with self._database.begin() as connection:
            _require(connection, account.id)
            connection.execute(expire)
            return _add_key(connection, account)

    def revoke(self, account: Account, key: str | None = None) -> list[Key]:
        """Revoke a key now, given in full or by its hint, or all keys of that mode.

        Returns the revoked keys.
        """
        matching = sa.and_(_of(account), api_keys.c.revoked.is_(None))
        if key is not None:
            matching = sa.and_(
                matching, sa.or_(api_keys.c.digest == digest(key), api_keys.c.hint == key)
            )
        now = clock.now_s()
        with self._database.begin() as connection:
            _require(connection, account.id)
            revoked = connection.execute(sa.select(api_keys).where(matching)).all()
            if not revoked:
                raise AccountNotFoundError(
                    f"{account.id} has no such key in {account.mode} mode, or it is revoked "
                    "already. List its keys with: ./dev payments account list"
                )
            connection.execute(sa.update(api_keys).where(matching).values(revoked=now))
        return [_key(row) for row in revoked]


def digest(key: str) -> bytes:
    """Return the digest that is stored for a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def hint(key: str) -> str:
    """Return the part of a key that may be shown."""
    kind, _, secret = key.rpartition("_")
    return f"{kind}_…{secret[-HINT_CHARS:]}"


def _add_key(connection: Connection, account: Account) -> str:
    key = f"sk_{account.mode}_{ids.random_letters(SECRET_CHARS)}"
    row = {
        "digest": digest(key),
        "account": account.id,
        "mode": account.mode,
        "hint": hint(key),
        "created": clock.now_s(),
    }
    connection.execute(sa.insert(api_keys), row)
    return key


def _of(account: Account) -> sa.ColumnElement[bool]:
    return sa.and_(api_keys.c.account == account.id, api_keys.c.mode == account.mode)


def _require(connection: Connection, account_id: str) -> None:
    if connection.execute(sa.select(accounts.c.id).where(accounts.c.id == account_id)).first():
        return
    raise AccountNotFoundError(
        f"There is no account {account_id}. List accounts with: ./dev payments account list"
    )


def _key(row: Row[tuple[object, ...]]) -> Key:
    account = Account(row.account, row.mode)
    return Key(account, row.hint or "", row.created, row.expires, row.revoked)
