"""Units of work: connections that break while lent, and a cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from oncekey import atomic
from tests.atomic.shop import KINDS, Opener, Shop, new_key, opener, place_of

__all__ = ["opener"]

pytestmark = pytest.mark.anyio


class Breaking:
    """An adapter whose connections are found to be broken when they are rolled back."""

    def __init__(self, adapter: atomic.Adapter) -> None:
        self._adapter = adapter
        self.engine, self.awaited = adapter.engine, adapter.awaited

    def begin(self, *given: Any) -> Any:
        return self._begin_async(*given) if self.awaited else self._broken(self._begin(*given))

    def _begin(self, *given: Any) -> Any:
        return self._adapter.begin(*given)

    async def _begin_async(self, *given: Any) -> Any:
        return self._broken(await self._begin(*given))

    def _broken(self, transaction: Any) -> Any:
        undone = transaction.rollback

        def rollback() -> None:
            undone()
            raise ConnectionError("its pool has taken it back")

        async def rollback_async() -> None:
            await undone()
            raise ConnectionError("its pool has taken it back")

        transaction.rollback = rollback_async if self.awaited else rollback
        return transaction


@pytest.fixture(params=["asyncpg", "psycopg in threads", "psycopg"])
async def shop(request: pytest.FixtureRequest, opener: Opener) -> AsyncIterator[Shop]:
    async with opener(request.param) as shop:
        shop.app.edge.adapter = Breaking(shop.adapter)
        yield shop


async def test_a_rollback_of_what_is_gone_fails_nobody(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """What failed was an outage, or the handler; its client is told so, and not of this."""
    key = new_key()
    assert (await shop.order(key, status=503)).status == 503
    assert (await shop.order(key)).status == 201
    assert (await shop.order(key)).replayed
    assert shop.orders() == 1
    assert "its pool has taken it back" in caplog.text


class Failing:
    """An adapter that counts the transactions that are lent. What `raises` is raised by the first
    question in the next.
    """

    def __init__(self, adapter: atomic.Adapter) -> None:
        self._adapter = adapter
        self.engine, self.awaited = adapter.engine, adapter.awaited
        self.raises: list[BaseException] = []
        self.begun = self.lent = 0

    def begin(self, *given: Any) -> Any:
        begun = self._adapter.begin(*given)
        return self._awaited(begun) if self.awaited else self._lend(begun)

    async def _awaited(self, begun: Any) -> Any:
        return self._lend(await begun)

    def _lend(self, transaction: Any) -> Any:
        self.begun += 1
        self.lent += 1
        if self.raises:
            transaction.ask = self._fail
        give_back = transaction._give_back

        def given_back(tainted: bool) -> Any:
            self.lent -= 1
            return give_back(tainted)

        transaction._give_back = given_back
        return transaction

    def _fail(self, question: Any) -> Any:
        raise self.raises.pop()


class Interrupted(BaseException):
    """A signal's."""


LENDING = ["async psycopg", "psycopg in threads", "psycopg"]


@pytest.mark.parametrize("kind", LENDING)
async def test_p11_a_transaction_that_is_begun_again_is_given_back(
    opener: Opener, kind: str
) -> None:
    async with opener(kind) as shop:
        shop.app.edge.adapter = failing = Failing(shop.adapter)
        failing.raises.append(ConnectionError("the server has closed it"))
        assert (await shop.order(new_key())).status == 201
        assert (failing.begun, failing.lent) == (2, 0)


@pytest.mark.parametrize("kind", LENDING)
async def test_p11_who_is_interrupted_in_its_claim_gives_its_transaction_back(
    opener: Opener, kind: str
) -> None:
    async with opener(kind) as shop:
        shop.app.edge.adapter = failing = Failing(shop.adapter)
        key = new_key()
        assert (await shop.order(new_key())).status == 201  # its database is known from then on
        failing.raises.append(Interrupted())
        with pytest.raises(Interrupted):
            await shop.order(key)
        assert failing.lent == 0
        assert (await shop.order(key)).status == 201
        assert shop.orders() == shop.runs == 2


@pytest.mark.parametrize("kind", ["sqlite3", "sqlite3 in threads", "asyncpg"])
async def test_a_tiered_store_looks_into_no_cache_within_a_transaction(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, kind: str
) -> None:
    place = place_of(kind, request, tmp_path)
    given = "&" if "?" in place.url else "?"
    cache = quote(f"{redis_url}?prefix={new_key()}", safe="")
    async with KINDS[kind][1](place.url.partition("?")[0]) as adapter:
        shop = Shop(kind, place, adapter, f"tiered+{place.url}{given}cache={cache}")
        key = new_key()
        assert (await shop.order(key)).status == 201
        assert (await shop.order(key)).replayed
        assert shop.orders() == shop.runs == 1
        await shop.close()
