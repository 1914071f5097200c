"""Requests without a key on atomic routes: a plain transaction, which commits by the same rule."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from sqlalchemy.exc import DatabaseError

import oncekey
from oncekey import events
from oncekey._core.verbs import Scan
from oncekey.stores.batching import Gatherer
from oncekey.stores.urls import open_store
from tests.atomic.shop import KINDS, Opener, Shop, kinds_as_params, new_key, opener
from tests.web.client import Reply

__all__ = ["opener"]

pytestmark = pytest.mark.anyio

FEW = ("asyncpg", "AsyncSession on asyncpg", "Session", "sqlite3", "sqlite3 in threads")


def records(shop: Shop) -> list[Any]:
    gatherer = Gatherer(open_store(shop.place.url))
    found = list(gatherer.ask(Scan(1_000)))
    gatherer.close()
    return [each for each in found if each.tenant == ""]


def names(reply: Reply) -> set[bytes]:
    return {name.lower() for name, _ in reply.headers}


@pytest.mark.parametrize("kind", kinds_as_params(*KINDS))
async def test_what_is_answered_commits_or_is_undone(opener: Opener, kind: str) -> None:
    async with opener(kind) as shop:
        seen: list[Any] = []
        told: list[Any] = []
        shop.app.edge.guard.reports.hooks = events.Hooks([told.append])

        def look() -> None:
            attempt = oncekey.current()
            attempt.final()  # has no effect, as nothing is stored
            attempt.ensure_owned()
            seen.append((attempt.protected, attempt.key, oncekey.current_or_none()))

        shop.during = look
        first = await shop.order(None)
        assert (first.status, shop.orders()) == (201, 1)
        assert not {b"idempotency-key", b"idempotency-expires"} & names(first)
        assert (await shop.order(None, status=503)).status == 503
        assert (await shop.order(None, status=409)).status == 409
        assert shop.orders() == 1
        assert (await shop.order(None, status=422)).status == 422
        assert shop.orders() == 2
        with pytest.raises(RuntimeError, match="the handler failed"):
            await shop.order(None, fail=True)
        assert shop.orders() == 2
        assert (await shop.order(new_key())).status == 201
        assert shop.orders() == 3
        assert seen[0] == (False, None, None)
        assert records(shop) == []
        kinds = (events.Started, events.Completed, events.Released)
        assert [type(each) for each in told if isinstance(each, kinds)] == [*kinds[:2]]


@pytest.mark.parametrize("kind", kinds_as_params(*FEW))
async def test_it_is_over_with_the_answer(opener: Opener, kind: str) -> None:
    """As that of a request with a key: nobody gets into the transaction of another request."""
    async with opener(kind) as shop:
        lent: list[Any] = []
        shop.during = lambda: lent.append(oncekey.current())
        assert (await shop.order(None)).status == 201
        with pytest.raises(oncekey.Misuse, match="must open its own"):
            _ = lent[0].connection


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "AsyncSession on asyncpg", "Session"))
async def test_who_commits_it_is_told_so(opener: Opener, kind: str) -> None:
    async with opener(kind) as shop:
        write = shop.write

        async def commit_awaited(lent: Any) -> None:
            await write(lent)
            await (lent.execute("COMMIT") if kind == "asyncpg" else lent.commit())

        def commit(lent: Any) -> None:
            write(lent)
            lent.commit()

        shop.write = commit if kind == "Session" else commit_awaited
        reply = await shop.order(None)
        assert (reply.status, reply.kind) == (503, "transaction-ended")


@pytest.mark.parametrize(
    "kind",
    kinds_as_params(
        "Session", "Django", "Session on sqlite3", "Connection on sqlite3", "Django on sqlite3"
    ),
)
async def test_who_loses_its_rows_is_not_told_that_they_are_there(
    opener: Opener, kind: str
) -> None:
    """Its handler has swallowed that there is nothing left to commit."""
    async with opener(kind) as shop:
        write = shop.write

        def lose(lent: Any) -> None:
            write(lent)
            if "Django" in kind:  # as it does where an IntegrityError passes by
                lent.set_rollback(True)
                return
            with contextlib.suppress(DatabaseError):  # SQLite's: not authorized
                lent.rollback()

        shop.write = lose
        reply = await shop.order(None)
        assert (reply.status, shop.orders()) == (503, 0)


class Unheard:
    """A transaction whose commit is carried out, and not acknowledged."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def commit(self) -> None:
        self._transaction.commit()
        raise ConnectionError("reset by peer")


@pytest.mark.parametrize("kind", kinds_as_params("Session", "Django", "sqlite3 in threads"))
async def test_nobody_is_told_to_retry_what_may_be_committed(
    opener: Opener, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key the retry would write it a second time."""
    async with opener(kind) as shop:
        begin = shop.adapter.begin
        monkeypatch.setattr(shop.adapter, "begin", lambda *given: Unheard(begin(*given)))
        reply = await shop.order(None)
        assert (reply.status, reply.kind, shop.orders()) == (503, "store-unavailable", 1)
        assert (reply.json()["retryable"], reply.header("retry-after")) == (False, None)
        assert "nobody knows whether what it wrote was committed" in reply.json()["detail"]


@pytest.mark.parametrize("kind", kinds_as_params(*FEW))
async def test_a_database_that_does_not_answer_is_no_500(
    opener: Opener, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opener(kind) as shop:
        assert (await shop.order(None)).status == 201

        def begin(*_: Any) -> Any:
            raise ConnectionError("no route to it")

        monkeypatch.setattr(shop.adapter, "begin", begin)
        reply = await shop.order(None)
        assert (reply.status, reply.kind, shop.runs) == (503, "store-unavailable", 1)
