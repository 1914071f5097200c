"""The key ring of a sealed store: how secrets rotate, and that it is created only once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from oncekey._core.notice import KEYRING, NOTICE_ID, notice_claim
from oncekey._core.op import run
from oncekey._core.record import Claim, State, Step
from oncekey._core.verbs import AppendStep, Count, Find, Found, Insert, Purge, Scan, Steps
from oncekey.errors import CorruptRecord, StoreUnfit
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed.secrets import CLOSED
from oncekey.stores.sealed.store import SealedStore
from oncekey.testing.contract.subject import new_id, new_token
from tests.stores.sealed.kit import SECOND, SECRET, ask, prepare
from tests.stores.sealed.world import ANSWER, claim, clock, inner, insert_completed

__all__ = ["clock", "inner"]

STRANGER = "a secret of somebody else of enough characters"


def test_secrets_rotate_while_old_and_new_processes_run(inner: MemoryStore) -> None:
    """Each step of a rotation, beside the processes of the step before."""
    steps = [[SECRET], [SECRET, SECOND], [SECOND, SECRET], [SECOND]]
    stores = [SealedStore(inner, secrets) for secrets in steps]
    known: list[Claim] = []
    for before, after in itertools.pairwise(stores):
        for one, other in ((before, after), (after, before)):
            claimed = insert_completed(one)
            [found] = ask(other, Insert(replace(claimed, token=new_token())))
            assert isinstance(found, Found), "an id depends on a secret"
            assert found.record.answer == ANSWER
            known.append(claimed)
    for claimed in known[-2:]:  # sealed by the second secret, so the first is no longer needed
        assert ask(stores[-1], Find(claimed.id))[0].answer == ANSWER


def test_a_step_begun_under_one_secret_is_ended_under_another(inner: MemoryStore) -> None:
    old, new = SealedStore(inner, [SECRET, SECOND]), SealedStore(inner, [SECOND, SECRET])
    claimed = claim()
    begun = AppendStep(claimed.id, 1, claimed.token, Step("pay", b"d", None))
    ended = AppendStep(claimed.id, 1, claimed.token, Step("pay", b"d", b"paid"))
    ask(old, Insert(claimed), begun)
    [_, steps] = ask(new, ended, Steps(claimed.id))
    assert steps == [Step("pay", b"d", b"paid")]


def test_a_record_sealed_by_a_secret_that_is_gone_is_refused(inner: MemoryStore) -> None:
    """As after a rotation in one step, or too early: nothing runs twice."""
    prepare(SealedStore(inner, [SECRET, SECOND]))
    claimed = insert_completed(SealedStore(inner, [SECOND]))
    with pytest.raises(CorruptRecord, match="which this process does not have: add it"):
        ask(SealedStore(inner, [SECRET]), Insert(claimed))


def test_a_record_sealed_by_a_secret_that_is_gone_hides_no_others(inner: MemoryStore) -> None:
    """A list does not show what the secret would open anyway."""
    prepare(SealedStore(inner, [SECRET, SECOND]))
    for secret in (SECRET, SECOND):
        insert_completed(SealedStore(inner, [secret]))
    [shown] = ask(SealedStore(inner, [SECRET]), Scan(10))
    assert [record.key for record in shown] == [CLOSED, CLOSED]
    assert ask(SealedStore(inner, [SECRET]), Purge("acct_1", 10)) == [2]


def test_a_wrong_secret_is_refused_and_changes_nothing(inner: MemoryStore) -> None:
    claimed = insert_completed(SealedStore(inner, [SECRET]))
    for _ in range(2):
        with pytest.raises(StoreUnfit, match="none of this process's secrets opens"):
            ask(SealedStore(inner, [STRANGER]), Insert(claimed))
    assert ask(SealedStore(inner, [SECRET]), Find(claimed.id))[0].answer == ANSWER
    assert ask(inner, Count())[0][State.COMPLETED] == 2


def test_of_processes_that_create_the_key_ring_at_once_all_use_one() -> None:
    """One process is interrupted after each of its questions, and another goes first."""
    for stopped_after in range(4):
        shared = MemoryStore()
        slow, quick = SealedStore(shared, [SECRET]), SealedStore(shared, [SECRET, SECOND])
        slow.inner = _Interrupted(shared, stopped_after, partial(prepare, quick))
        claimed = insert_completed(slow)
        assert ask(quick, Find(claimed.id))[0].answer == ANSWER


class _Interrupted(MemoryStore):
    """Lets another process go first, once, after so many verbs."""

    def __init__(self, shared: MemoryStore, after: int, then: Callable[[], None]) -> None:
        self._shared, self._after, self._then = shared, after, then

    def perform(self, verbs: Any) -> Any:
        if self._after == 0:
            self._then()
        self._after -= 1
        return (yield from self._shared.perform(verbs))


def test_a_process_that_died_over_the_key_ring_holds_nobody_up(inner: MemoryStore) -> None:
    ask(inner, Insert(notice_claim(KEYRING, new_token(), 600.0)))
    claimed = insert_completed(SealedStore(inner, [SECRET]))
    assert ask(SealedStore(inner, [SECRET]), Find(claimed.id))[0].answer == ANSWER


def test_a_store_that_was_used_without_sealing_is_refused(inner: MemoryStore) -> None:
    """Its records would not be found: retries would run again."""
    insert_completed(inner)
    with pytest.raises(StoreUnfit, match="holds records, but not the id key"):
        prepare(SealedStore(inner, [SECRET]))


def test_a_process_writes_a_lost_book_again_and_refuses_another(inner: MemoryStore) -> None:
    store = SealedStore(inner, [SECRET])
    claimed = insert_completed(store)
    del inner._rows[NOTICE_ID]
    with pytest.raises(StoreUnfit, match="the store has lost its id key: restore it"):
        prepare(SealedStore(inner, [SECRET]))
    prepare(store)
    assert ask(SealedStore(inner, [SECRET]), Find(claimed.id))[0].answer == ANSWER
    inner._rows.clear()
    prepare(SealedStore(inner, [SECRET]))
    with pytest.raises(StoreUnfit, match="another id key than when this process started"):
        prepare(store)


def test_a_key_ring_that_is_set_back_to_its_beginning_is_not_created_again(
    inner: MemoryStore,
) -> None:
    """A lagging replica took over: records exist, but the key ring is unfinished again. A new id
    key would find none of the records.
    """
    store = SealedStore(inner, [SECRET])
    claimed = insert_completed(store)
    del inner._rows[NOTICE_ID]
    ask(inner, Insert(notice_claim(KEYRING, new_token(), 600.0)))
    with pytest.raises(StoreUnfit, match="the store has lost its id key: restore it"):
        prepare(SealedStore(inner, [SECRET]))
    prepare(store)
    assert ask(SealedStore(inner, [SECRET]), Find(claimed.id))[0].answer == ANSWER


def test_a_callers_transaction_never_creates_the_key_ring(inner: MemoryStore) -> None:
    """It may be rolled back; the process would continue with an id key that was never stored."""
    store = SealedStore(inner, [SECRET])
    with closing(inner.connect()) as connection:
        with pytest.raises(StoreUnfit, match="run `oncekey migrate` on it, with its secrets"):
            run(store.perform([Find(new_id())]), connection.ask)
        run(store.migrate(), connection.ask)
        other = SealedStore(inner, [SECRET])
        assert run(other.perform([Find(new_id())]), connection.ask) == [None]
