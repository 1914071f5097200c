"""Sealed stores: who can open what, how secrets rotate, and that whatever does not open is refused.

That they keep the contract is for `test_sealed_contract.py`, what is left to be seen in their files
for `test_sealed_leaks.py`.
"""

from __future__ import annotations

import itertools
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncekey import open_store
from oncekey.clock import FakeClock
from oncekey.core import lifecycle
from oncekey.core.notice import BOOK, NOTICE_ID, notice_claim
from oncekey.core.op import run
from oncekey.core.record import Answer, Claim, Record, State, Step
from oncekey.core.secret import CLOSED
from oncekey.core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Swap,
    Sweep,
    When,
)
from oncekey.errors import CorruptRecord, Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores.base import AGAIN
from oncekey.stores.gather import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed import SealedStore
from oncekey.stores.sqlite import SqliteStore
from oncekey.testing.contract.subject import new_id, new_token
from tests.stores.sealed_kit import SECOND, SECRET, ask, prepare

STRANGER = "a secret of somebody else of enough characters"
ANSWER = Answer(201, ((b"location", b"/orders/1"),), b"created")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def inner(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def store(inner: MemoryStore) -> SealedStore:
    return SealedStore(inner, [SECRET])


def claim(**changes: Any) -> Claim:
    made = Claim(
        id=new_id(),
        token=new_token(),
        tenant="acct_1",
        operation="POST /orders",
        key="order-17",
        fingerprint=b"\x01" * 32,
        fingerprint_version=1,
        lease_s=30.0,
        retention_s=600.0,
        field_digests={"amount": "ab12"},
    )
    return replace(made, **changes)


def complete(claimed: Claim, fence: int = 1, answer: Answer = ANSWER) -> Swap:
    held = lifecycle.Held(claimed.id, fence, claimed.token)
    return lifecycle.complete(held, answer, retention_s=600.0, resource_id="order_1")


def completed(store: Any, **changes: Any) -> Claim:
    """A claim whose record is completed."""
    claimed = claim(**changes)
    [inserted] = ask(store, Insert(claimed))
    assert isinstance(inserted, Inserted)
    assert ask(store, complete(claimed, inserted.fence)) == [Done(inserted.fence)]
    return claimed


# ------------------------------------------------------------------------------ who may open what


def test_p12_whoever_has_the_clients_key_sees_everything(store: SealedStore) -> None:
    claimed = completed(store)
    [found] = ask(store, Find(claimed.id))
    assert (found.id, found.tenant, found.key) == (claimed.id, "acct_1", "order-17")
    assert (found.answer, found.resource_id) == (ANSWER, "order_1")
    assert (found.fingerprint, dict(found.field_digests)) == (b"\x01" * 32, {"amount": "ab12"})


def test_p12_the_secrets_alone_open_no_answer(store: SealedStore) -> None:
    """As somebody sees it who has the store and the secrets, and not the client's key."""
    claimed = completed(store)
    [[shown]] = ask(store, Scan(10))
    [found] = ask(store, Find(shown.id))
    assert found.id == shown.id != claimed.id
    assert (found.key, found.resource_id, dict(found.field_digests)) == (CLOSED, None, {})
    assert found.answer == Answer(201, (), None)
    assert found.tenant not in ("", "acct_1")
    assert found.fingerprint != claimed.fingerprint


def test_a_hashed_id_can_be_used_like_any_other(store: SealedStore) -> None:
    """As an operator does who resolves what a list shows: the client gets the answer."""
    claimed = claim()
    ask(store, Insert(claimed))
    held = lifecycle.Held(claimed.id, 1, claimed.token)
    ask(
        store,
        AppendStep(claimed.id, 1, claimed.token, Step("pay", b"d", b"paid")),
        lifecycle.give_up(held, new_token=new_token(), lapses=1, retention_s=600.0),
    )
    [[unknown]] = ask(store, Scan(10, state=State.UNKNOWN))
    assert ask(store, Steps(unknown.id)) == [[Step(CLOSED, *_rest(store, claimed))]]
    answer = Answer(200, ((b"x-by", b"operator"),), b"it was done")
    resolve = lifecycle.resolve(unknown, new_token=new_token(), answer=answer, retention_s=600.0)
    [done, found, shown] = ask(store, resolve, Find(claimed.id), Find(unknown.id))
    assert isinstance(done, Done)
    assert (found.state, found.answer) == (State.COMPLETED, answer)
    assert shown.answer == answer  # who wrote it without the client's key may read it so too


def _rest(store: SealedStore, claimed: Claim) -> tuple[bytes, bytes]:
    [seal_id] = [record.id for record in ask(store, Scan(1))[0]]
    [[step]] = ask(store.inner, Steps(seal_id))
    return step.digest, b""


def test_what_is_to_be_finished_without_its_client_can_be(
    store: SealedStore, clock: FakeClock
) -> None:
    claimed = claim(recovery="resume", request=b"POST /orders")
    ask(store, Insert(claimed))
    clock.advance(31)
    [[due]] = ask(store, Due(10, abandoned=True))
    assert due != claimed.id
    [found, request] = ask(store, Find(due), Requested(due))
    assert (found.id, found.tenant, found.key) == (claimed.id, "acct_1", "order-17")
    assert found.fingerprint == claimed.fingerprint
    assert request == b"POST /orders"


def test_without_a_request_a_record_that_lapsed_can_still_be_declared_unknown(
    store: SealedStore, clock: FakeClock
) -> None:
    claimed = claim(recovery="block")
    ask(store, Insert(claimed))
    clock.advance(31)
    [[due]] = ask(store, Due(10, abandoned=True))
    [found] = ask(store, Find(due))
    doubt = lifecycle.doubt(found, new_token=new_token(), retention_s=600.0)
    [done, after] = ask(store, doubt, Find(claimed.id))
    assert isinstance(done, Done)
    assert after.state is State.UNKNOWN


@pytest.mark.parametrize("tenant", ["acct_1", "0123456789abcdef" * 2])
def test_a_real_id_that_looks_like_a_hashed_one_is_merely_not_hidden(
    store: SealedStore, tenant: str
) -> None:
    """One in four thousand million does by chance: its retries were refused."""
    completed(store)
    assert store._seal is not None
    alike = completed(store, id=store._seal.id(new_id()), tenant=tenant)
    [found] = ask(store, Insert(replace(alike, token=new_token())))
    assert (found.record.tenant, found.record.key) == (tenant, "order-17")
    assert found.record.answer == ANSWER


def test_a_tenants_records_are_listed_under_its_name(store: SealedStore) -> None:
    completed(store)
    completed(store, tenant="acct_2")
    [mine, all_] = ask(store, Scan(10, tenant="acct_2"), Scan(10))
    assert [record.tenant for record in mine] == ["acct_2"]
    assert len(all_) == 2
    [[first], rest] = ask(store, Scan(1), Scan(10, after=all_[0].id))
    assert [first.id, *(record.id for record in rest)] == [record.id for record in all_]


def test_the_book_is_not_shown_swept_counted_or_purged(
    store: SealedStore, inner: MemoryStore, clock: FakeClock
) -> None:
    prepare(store)
    clock.advance(50 * 365 * 86_400.0)
    assert ask(store, Scan(10), Due(10), Sweep(10)) == [[], [], 0]
    assert ask(store, Count(), Purge("oncekey", 10)) == [dict.fromkeys(State, 0), 0]
    [book] = ask(inner, Find(NOTICE_ID))
    assert book.operation == BOOK
    assert book.expires_in_s > 90 * 365 * 86_400.0  # who looked at it has renewed it


def test_a_purge_blanks_the_content_and_never_causes_a_second_run(store: SealedStore) -> None:
    claimed = completed(store)
    assert ask(store, Purge("acct_2", 10), Purge("acct_1", 10)) == [0, 1]
    [found] = ask(store, Insert(replace(claimed, token=new_token())))
    assert isinstance(found, Found)
    record = found.record
    assert (record.key, record.answer, record.resource_id) == ("", Answer(201, (), None), None)
    assert (record.tenant, record.fingerprint) == ("acct_1", claimed.fingerprint)


def test_what_the_engine_marks_an_answer_with_is_seen_by_who_tidies_up(store: SealedStore) -> None:
    """And nobody can change it: it decides what is forgotten when."""
    mark, claimed = (b":kept-s", b"60"), claim()
    answer = Answer(200, (mark, (b"x-secret", b"1")), b"body")
    ask(store, Insert(claimed), complete(claimed, answer=answer))
    [[shown], found] = ask(store, Scan(10), Find(claimed.id))
    assert shown.answer == ask(store, Find(shown.id))[0].answer == Answer(200, (mark,), None)
    assert found.answer == answer
    row = store.inner._rows[shown.id]  # type: ignore[attr-defined]
    row.answer = replace(row.answer, headers=((b":kept-s", b"9999"),))
    with pytest.raises(CorruptRecord):
        ask(store, Find(claimed.id))


def test_who_has_only_the_hashed_id_can_blank_a_record_for_good(store: SealedStore) -> None:
    """What is left is found by its client, and by a purge of its tenant not again."""
    claimed = completed(store)
    [[shown]] = ask(store, Scan(10))
    blank = replace(
        claimed, id=shown.id, tenant=shown.tenant, key="", fingerprint=bytes(32), field_digests={}
    )
    swap = Swap(
        id=shown.id,
        state=State.COMPLETED,
        fence=shown.fence,
        token=shown.token,
        when=When.ANY,
        to=State.COMPLETED,
        raise_fence=False,
        retention_s=600.0,
        claim=blank,
        fresh=True,
        answer=Answer(201, (), None),
    )
    [done, found] = ask(store, swap, Insert(replace(claimed, token=new_token())))
    assert isinstance(done, Done)
    assert isinstance(found, Found)
    record = found.record
    assert (record.key, record.answer, record.fingerprint) == ("", swap.answer, bytes(32))
    assert (record.tenant, ask(store, Purge("acct_1", 10))) == ("acct_1", [0])
    assert [each.tenant for each in ask(store, Scan(10, tenant="acct_1"))[0]] == ["acct_1"]


def test_p5_an_account_that_is_named_like_a_hash_is_not_taken_for_the_one_it_is_of(
    store: SealedStore,
) -> None:
    completed(store)
    [[shown]] = ask(store, Scan(10))
    ask(store, Insert(claim(tenant=shown.tenant)))
    assert len(ask(store, Scan(10, tenant="acct_1"))[0]) == 1
    assert len(ask(store, Scan(10))[0]) == 2


# ---------------------------------------------------------------------------------------- rotation


def test_secrets_rotate_while_old_and_new_processes_run(inner: MemoryStore) -> None:
    """Each step of a rotation, beside the processes of the step before."""
    steps = [[SECRET], [SECRET, SECOND], [SECOND, SECRET], [SECOND]]
    stores = [SealedStore(inner, secrets) for secrets in steps]
    known: list[Claim] = []
    for before, after in itertools.pairwise(stores):
        for one, other in ((before, after), (after, before)):
            claimed = completed(one)
            [found] = ask(other, Insert(replace(claimed, token=new_token())))
            assert isinstance(found, Found), "an id depends on a secret"
            assert found.record.answer == ANSWER
            known.append(claimed)
    for claimed in known[-2:]:  # sealed by the second: the first is not needed any more
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
    """As where somebody rotates in one step, or too early: nothing runs twice."""
    prepare(SealedStore(inner, [SECRET, SECOND]))
    claimed = completed(SealedStore(inner, [SECOND]))
    with pytest.raises(CorruptRecord, match="which this process was not given: add it"):
        ask(SealedStore(inner, [SECRET]), Insert(claimed))


def test_a_record_sealed_by_a_secret_that_is_gone_hides_no_others(inner: MemoryStore) -> None:
    """What the secret would open is not shown in a list anyway."""
    prepare(SealedStore(inner, [SECRET, SECOND]))
    for secret in (SECRET, SECOND):
        completed(SealedStore(inner, [secret]))
    [shown] = ask(SealedStore(inner, [SECRET]), Scan(10))
    assert [record.key for record in shown] == [CLOSED, CLOSED]
    assert ask(SealedStore(inner, [SECRET]), Purge("acct_1", 10)) == [2]


def test_a_wrong_secret_is_refused_and_changes_nothing(inner: MemoryStore) -> None:
    claimed = completed(SealedStore(inner, [SECRET]))
    for _ in range(2):
        with pytest.raises(StoreUnfit, match="none of the secrets that were given opens"):
            ask(SealedStore(inner, [STRANGER]), Insert(claimed))
    assert ask(SealedStore(inner, [SECRET]), Find(claimed.id))[0].answer == ANSWER
    assert ask(inner, Count())[0][State.COMPLETED] == 2


def test_of_processes_that_make_the_book_at_once_all_use_one() -> None:
    """One is stopped after each of its questions, and another comes first."""
    for stopped_after in range(4):
        shared = MemoryStore()
        slow, quick = SealedStore(shared, [SECRET]), SealedStore(shared, [SECRET, SECOND])
        slow.inner = _Interrupted(shared, stopped_after, partial(prepare, quick))
        claimed = completed(slow)
        assert ask(quick, Find(claimed.id))[0].answer == ANSWER


class _Interrupted(MemoryStore):
    """Lets somebody else go first, once, after so many verbs."""

    def __init__(self, shared: MemoryStore, after: int, then: Callable[[], None]) -> None:
        self._shared, self._after, self._then = shared, after, then

    def perform(self, verbs: Any) -> Any:
        if self._after == 0:
            self._then()
        self._after -= 1
        return (yield from self._shared.perform(verbs))


def test_a_process_that_died_over_the_book_holds_nobody_up(inner: MemoryStore) -> None:
    ask(inner, Insert(notice_claim(BOOK, new_token(), 600.0)))
    claimed = completed(SealedStore(inner, [SECRET]))
    assert ask(SealedStore(inner, [SECRET]), Find(claimed.id))[0].answer == ANSWER


def test_a_store_that_was_used_without_sealing_is_refused(inner: MemoryStore) -> None:
    """Its records would not be found: what is retried would run again."""
    completed(inner)
    with pytest.raises(StoreUnfit, match="holds records, but not the id key"):
        prepare(SealedStore(inner, [SECRET]))


def test_a_process_writes_a_lost_book_again_and_refuses_another(inner: MemoryStore) -> None:
    store = SealedStore(inner, [SECRET])
    claimed = completed(store)
    del inner._rows[NOTICE_ID]
    with pytest.raises(StoreUnfit, match="the store has lost its book: restore it"):
        prepare(SealedStore(inner, [SECRET]))
    prepare(store)
    assert ask(SealedStore(inner, [SECRET]), Find(claimed.id))[0].answer == ANSWER
    inner._rows.clear()
    prepare(SealedStore(inner, [SECRET]))
    with pytest.raises(StoreUnfit, match="another id key than when this process started"):
        prepare(store)


def test_a_book_that_is_set_back_to_its_beginning_is_not_made_anew(inner: MemoryStore) -> None:
    """A replica that lagged behind: records are there, the book is as it was before it was
    finished. Another id key would find none of them.
    """
    store = SealedStore(inner, [SECRET])
    claimed = completed(store)
    del inner._rows[NOTICE_ID]
    ask(inner, Insert(notice_claim(BOOK, new_token(), 600.0)))
    with pytest.raises(StoreUnfit, match="the store has lost its book: restore it"):
        prepare(SealedStore(inner, [SECRET]))
    prepare(store)
    assert ask(SealedStore(inner, [SECRET]), Find(claimed.id))[0].answer == ANSWER


def test_a_callers_transaction_never_makes_the_book(inner: MemoryStore) -> None:
    """It may be rolled back; a process would go on with an id key that nobody has."""
    store = SealedStore(inner, [SECRET])
    with closing(inner.connect()) as connection:
        with pytest.raises(StoreUnfit, match="run `oncekey migrate` on it, with its secrets"):
            run(store.perform([Find(new_id())]), connection.ask)
        run(store.migrate(), connection.ask)
        other = SealedStore(inner, [SECRET])
        assert run(other.perform([Find(new_id())]), connection.ask) == [None]


# -------------------------------------------------------------------------------------- tampering


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def raw(path: Path) -> Iterator[Callable[..., None]]:
    """To change what is kept behind the store's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA busy_timeout = 20000")

        def change(statement: str, *given: Any) -> None:
            assert db.execute(statement, given).rowcount

        yield change


TOUCHED = {
    "claims.id": "UPDATE oncekey_claims SET id = zeroblob(32) WHERE operation = 'POST /orders'",
    "claims.tenant": "UPDATE oncekey_claims SET tenant = 'acct_2'",
    "claims.operation": "UPDATE oncekey_claims SET operation = 'POST /refunds'",
    "claims.key": "UPDATE oncekey_claims SET key = 'b' || substr(key, 2)",
    "claims.key, plain": "UPDATE oncekey_claims SET key = 'order-17'",
    "claims.fingerprint": "UPDATE oncekey_claims SET fingerprint = zeroblob(60)",
    "claims.fingerprint, plain": "UPDATE oncekey_claims SET fingerprint = zeroblob(32)",
    "claims.fingerprint_version": "UPDATE oncekey_claims SET fingerprint_version = 2",
    "claims.recovery": "UPDATE oncekey_claims SET recovery = 'rerun'",
    "claims.schema_version": "UPDATE oncekey_claims SET schema_version = 2",
    "claims.token": "UPDATE oncekey_claims SET token = zeroblob(16)",
    "answers.status": "UPDATE oncekey_answers SET status = 200",
    "answers.resource_id": "UPDATE oncekey_answers SET resource_id = 'order_2'",
    "answers.headers": "UPDATE oncekey_answers SET headers = x'010001000000016162'",
    "answers.body": "UPDATE oncekey_answers SET body = substr(body, 1, length(body) - 1)",
    "answers.body, plain": "UPDATE oncekey_answers SET body = CAST('created' AS BLOB)",
    "answers.body, empty": "UPDATE oncekey_answers SET body = x''",
}


@pytest.mark.parametrize("field", TOUCHED)
def test_p12_whatever_was_changed_is_refused_and_not_run(
    path: Path, raw: Callable[..., None], field: str
) -> None:
    store = SealedStore(SqliteStore(path), [SECRET])
    claimed = completed(store, recovery="block")
    statement = TOUCHED[field]
    where = " AND " if "WHERE" in statement else " WHERE "
    ours = f"n = (SELECT n FROM oncekey_claims WHERE operation <> '{BOOK}')"
    raw(statement + where + ours)
    retry = Insert(replace(claimed, token=new_token()))
    if field == "claims.id":  # that is to remove it: nobody can tell
        assert isinstance(ask(store, retry)[0], Inserted)
        return
    with pytest.raises(CorruptRecord):
        ask(store, retry)
    with pytest.raises(CorruptRecord):
        ask(store, Find(claimed.id))


@pytest.mark.parametrize("column", ["name", "digest", "result"])
def test_p12_a_step_that_was_changed_is_not_taken_for_another(
    path: Path, raw: Callable[..., None], column: str
) -> None:
    store = SealedStore(SqliteStore(path), [SECRET])
    claimed = claim()
    ask(
        store,
        Insert(claimed),
        *(
            AppendStep(claimed.id, 1, claimed.token, Step(name, b"d", name.encode()))
            for name in ("pay", "mail")
        ),
    )
    other = f"(SELECT {column} || '' FROM oncekey_steps WHERE at = 2)"
    if column == "name":
        raw("UPDATE oncekey_steps SET name = 'x' WHERE at = 1")
    else:
        raw(f"UPDATE oncekey_steps SET {column} = CAST({other} AS BLOB) WHERE at = 1")
    with pytest.raises(CorruptRecord):
        ask(store, Steps(claimed.id))


def test_p12_a_request_that_was_changed_or_moved_is_not_run(
    path: Path, raw: Callable[..., None]
) -> None:
    store = SealedStore(SqliteStore(path), [SECRET])
    one, two = (claim(recovery="resume", request=name) for name in (b"one", b"two"))
    ask(store, Insert(one), Insert(two))
    raw(
        "UPDATE oncekey_requests SET request = (SELECT request FROM oncekey_requests WHERE n = 3) "
        "WHERE n = 2"
    )
    with pytest.raises(CorruptRecord):
        ask(store, Requested(one.id))
    assert ask(store, Requested(two.id)) == [b"two"]


def test_p12_an_answer_does_not_open_under_another_record(
    path: Path, raw: Callable[..., None]
) -> None:
    store = SealedStore(SqliteStore(path), [SECRET])
    one = completed(store)
    completed(store, token=one.token)
    raw(
        "UPDATE oncekey_answers SET body = (SELECT body FROM oncekey_answers WHERE n = 3) "
        "WHERE n = 2"
    )
    with pytest.raises(CorruptRecord, match="does not open"):
        ask(store, Find(one.id))


def test_what_does_not_open_fails_alone(path: Path, raw: Callable[..., None]) -> None:
    """Its neighbours in a batch are served, and nothing of theirs is asked twice."""
    store = SealedStore(SqliteStore(path), [SECRET])
    bad, good, new = completed(store), completed(store), claim()
    raw("UPDATE oncekey_answers SET status = 500 WHERE n = 2")
    with closing(store.connect()) as connection:
        verbs = [Insert(replace(each, token=new_token())) for each in (bad, good, new)]
        first, second, third = run(store.perform(verbs), connection.ask)
    assert first is AGAIN
    assert isinstance(second, Found)
    assert isinstance(third, Inserted)
    with closing(Gatherer(store)) as gatherer, pytest.raises(CorruptRecord):
        gatherer.ask(verbs[0])


def test_p9_a_second_look_that_fails_denies_no_claim_of_its_batch() -> None:
    """Told that nothing was sent, its handler might run beside it (`store_down="run"`)."""

    class Busy(MemoryStore):
        def perform(self, verbs: Any) -> Any:
            if type(verbs[0]) is Requested:
                raise StoreUnavailable("busy", sent=False)
            return (yield from super().perform(verbs))

    store = SealedStore(Busy(), [SECRET])
    orphan, new = claim(recovery="resume", request=b"POST"), claim()
    ask(store, Insert(orphan))
    [[shown]] = ask(store, Scan(1))
    with closing(store.connect()) as connection:
        found, inserted = run(store.perform([Find(shown.id), Insert(new)]), connection.ask)
    assert found is AGAIN
    assert isinstance(inserted, Inserted)


def test_one_id_in_two_forms_is_changed_once_in_a_batch(store: SealedStore) -> None:
    claimed = claim()
    ask(store, Insert(claimed))
    [[shown]] = ask(store, Scan(1))
    held = [lifecycle.Held(given, 1, claimed.token) for given in (claimed.id, shown.id)]
    swaps = [lifecycle.release(each, no_effect=False, retention_s=600.0) for each in held]
    with closing(store.connect()) as connection:
        assert run(store.perform(swaps), connection.ask) == [Done(1), AGAIN]
        [refused] = run(store.perform([swaps[1]]), connection.ask)
    assert isinstance(refused, Refused)
    assert isinstance(refused.record, Record)


# ------------------------------------------------------------------------------------ switching on


def test_open_store_takes_secrets(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    file = tmp_path / "secrets"
    file.write_text(f"# of the shop\n{SECOND}\n\n{SECRET}\n")
    given = [SECRET], f"{SECRET},{SECOND}", f"@{file}"
    claimed = completed(open_store(url, secrets=given[0]))
    for secrets in given[1:]:
        assert ask(open_store(url, secrets=secrets), Find(claimed.id))[0].answer == ANSWER
    assert "SealedStore(SqliteStore(" in repr(open_store(url, secrets=SECRET))


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ("", "there is none, or an empty one"),
        ([], "there is none"),
        (f"{SECRET},", "or an empty one"),
        ("too short", "one is shorter than 32 characters"),
        ([SECRET, SECRET], "one is named twice"),
        ([f"{SECRET},{SECOND}"], "one holds a comma"),
        ([f"{SECRET}{number}" for number in range(17)], "at most 16"),
        ("@/nowhere/at/all", "/nowhere/at/all cannot be read"),
    ],
)
def test_secrets_that_cannot_be_meant_are_refused(secrets: Any, said: str) -> None:
    with pytest.raises(Misuse, match=said) as refused:
        open_store("memory://", secrets=secrets)
    assert SECRET not in str(refused.value)
    assert "too short" not in str(refused.value).replace(said, "")


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sealed", "book", "seal", "envelope"):
        monkeypatch.delitem(sys.modules, f"oncekey.stores.{name}")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(Misuse, match=r"pip install 'oncekey\[sealed\]'"):
        open_store("memory://", secrets=SECRET)
