"""A line: what is known about verbs when the connection fails, or a record cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from oncekey._core.verbs import Find, Verb
from oncekey.errors import CorruptRecord, StoreUnavailable, StoreUnfit
from oncekey.stores import connection
from oncekey.stores.base import AGAIN
from oncekey.stores.connection import AsyncLine, Line
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sql_batch import Denied
from tests.stores.scripted import Scripted, find, ids

A, B, C = map(find, "abc")


class Closing(MemoryStore):
    """A store that hangs up while it is being checked."""

    def prepare(self) -> Any:
        yield from ()
        raise StoreUnavailable("hung up", sent=True)


def test_verbs_that_wait_for_a_connection_were_not_sent() -> None:
    with pytest.raises(StoreUnavailable) as failed:
        Line(Closing()).perform([Find(bytes(32))])
    assert failed.value.sent is False


@pytest.mark.anyio
async def test_verbs_that_wait_for_an_async_connection_were_not_sent() -> None:
    with pytest.raises(StoreUnavailable) as failed:
        await AsyncLine(Closing()).perform([Find(bytes(32))])
    assert failed.value.sent is False


@pytest.mark.parametrize("failure", [StoreUnavailable("hung up"), StoreUnfit("too old")])
async def test_p11_a_connection_that_fails_its_checks_is_closed(failure: Exception) -> None:
    """Each beat tries again: a server that is not fit yet would run out of connections."""

    def unfit() -> None:
        raise failure

    store = Scripted()
    store.unfit = unfit
    with pytest.raises(type(failure)):
        Line(store).perform([A])
    with pytest.raises(type(failure)):
        await AsyncLine(store).perform([A])
    assert store.closed == [True, True]


async def test_what_was_denied_is_asked_over_a_new_connection_but_not_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To MySQL those rights count that there were when a connection was made."""

    def deny(verbs: Sequence[Verb]) -> list[Any]:
        raise Denied("INSERT command denied")

    for is_sync in (True, False):
        monkeypatch.setattr(connection, "DENIED_S", 60.0)
        store = Scripted(deny)
        made: Any = Line(store) if is_sync else AsyncLine(store)

        async def perform(made: Any = made, is_sync: bool = is_sync) -> Any:
            return made.perform([A]) if is_sync else await made.perform([A])

        for _ in range(3):
            with pytest.raises(Denied):
                await perform()
        assert store.closed == [False]
        monkeypatch.setattr(connection, "DENIED_S", 0.0)
        made._rights = connection._Rights()
        with pytest.raises(Denied):
            await perform()
        store.answer = ids
        for _ in range(3):
            assert await perform() == [A.id]
        assert store.closed == [True, False]


def test_a_record_that_nobody_can_read_keeps_no_other_from_being_served() -> None:
    def answer(verbs: Sequence[Verb]) -> list[Any]:
        if B in verbs:
            raise CorruptRecord("sealed by another secret")
        return ids(verbs)

    store = Scripted(answer)
    assert Line(store).perform_all([A, B, C]) == [b"a", AGAIN, b"c"]


def test_verbs_of_several_groups_are_answered_in_the_order_in_which_they_were_asked() -> None:
    store = Scripted()
    store.group_of = lambda verb: verb in (A, C)
    assert Line(store).perform_all([A, B, C]) == [b"a", b"b", b"c"]
    assert store.asked == [[A, C], [B]]
