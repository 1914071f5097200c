"""Sealed stores: who can open what, and how to enable sealing. Rotation of secrets is in
`test_keyring.py`, changed records in `test_tampering.py`, the contract in `test_contract.py`, and
the search for leaks in `test_leaks.py`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncekey import open_store
from oncekey._core import lifecycle
from oncekey._core.notice import KEYRING, NOTICE_ID
from oncekey._core.record import Answer, Claim, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Purge,
    Requested,
    Scan,
    Steps,
    Swap,
    Sweep,
    When,
)
from oncekey._system.clock import FakeClock
from oncekey.errors import CorruptRecord, Misuse
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed.secrets import CLOSED
from oncekey.stores.sealed.store import SealedStore
from oncekey.stores.transactions import sql_transactions
from oncekey.testing.contract.subject import new_id, new_token
from tests.stores.sealed.kit import SECOND, SECRET, ask, prepare
from tests.stores.sealed.world import ANSWER, claim, clock, complete, inner, insert_completed, store

__all__ = ["clock", "inner", "store"]


# ------------------------------------------------------------------------------ who may open what


def test_p12_whoever_has_the_clients_key_sees_everything(store: SealedStore) -> None:
    claimed = insert_completed(store)
    [found] = ask(store, Find(claimed.id))
    assert (found.id, found.tenant, found.key) == (claimed.id, "acct_1", "order-17")
    assert (found.answer, found.resource_id) == (ANSWER, "order_1")
    assert (found.fingerprint, dict(found.field_digests)) == (b"\x01" * 32, {"amount": "ab12"})


def test_p12_the_secrets_alone_open_no_answer(store: SealedStore) -> None:
    """As seen with the store and the secrets, but without the client's key."""
    claimed = insert_completed(store)
    [[shown]] = ask(store, Scan(10))
    [found] = ask(store, Find(shown.id))
    assert found.id == shown.id != claimed.id
    assert (found.key, found.resource_id, dict(found.field_digests)) == (CLOSED, None, {})
    assert found.answer == Answer(201, (), None)
    assert found.tenant not in ("", "acct_1")
    assert found.fingerprint != claimed.fingerprint


def test_a_hashed_id_can_be_used_like_any_other(store: SealedStore) -> None:
    """An operator resolves a record from a list: the client gets the response."""
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
    assert shown.answer == answer  # written without the client's key, so readable without it


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
    """One in four thousand million does by chance: its retries used to be refused."""
    insert_completed(store)
    assert store._seal is not None
    alike = insert_completed(store, id=store._seal.hashed_id(new_id()), tenant=tenant)
    [found] = ask(store, Insert(replace(alike, token=new_token())))
    assert (found.record.tenant, found.record.key) == (tenant, "order-17")
    assert found.record.answer == ANSWER


def test_a_tenants_records_are_listed_under_its_name(store: SealedStore) -> None:
    insert_completed(store)
    insert_completed(store, tenant="acct_2")
    [mine, all_] = ask(store, Scan(10, tenant="acct_2"), Scan(10))
    assert [record.tenant for record in mine] == ["acct_2"]
    assert len(all_) == 2
    [[first], rest] = ask(store, Scan(1), Scan(10, after=all_[0].id))
    assert [first.id, *(record.id for record in rest)] == [record.id for record in all_]


def test_the_key_ring_is_not_shown_swept_counted_or_purged(
    store: SealedStore, inner: MemoryStore, clock: FakeClock
) -> None:
    prepare(store)
    clock.advance(50 * 365 * 86_400.0)
    assert ask(store, Scan(10), Due(10), Sweep(10)) == [[], [], 0]
    assert ask(store, Count(), Purge("oncekey", 10)) == [dict.fromkeys(State, 0), 0]
    [keyring] = ask(inner, Find(NOTICE_ID))
    assert keyring.operation == KEYRING
    assert keyring.expires_in_s > 90 * 365 * 86_400.0  # reading it has renewed it


def test_a_purge_blanks_the_content_and_never_causes_a_second_run(store: SealedStore) -> None:
    claimed = insert_completed(store)
    assert ask(store, Purge("acct_2", 10), Purge("acct_1", 10)) == [0, 1]
    [found] = ask(store, Insert(replace(claimed, token=new_token())))
    assert isinstance(found, Found)
    record = found.record
    assert (record.key, record.answer, record.resource_id) == ("", Answer(201, (), None), None)
    assert (record.tenant, record.fingerprint) == ("acct_1", claimed.fingerprint)


def test_what_the_engine_marks_an_answer_with_is_seen_by_who_tidies_up(store: SealedStore) -> None:
    """And it cannot be changed: it decides what is removed when."""
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
    """Its client still finds the tombstone, but a purge of its tenant does not."""
    claimed = insert_completed(store)
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
    insert_completed(store)
    [[shown]] = ask(store, Scan(10))
    ask(store, Insert(claim(tenant=shown.tenant)))
    assert len(ask(store, Scan(10, tenant="acct_1"))[0]) == 1
    assert len(ask(store, Scan(10))[0]) == 2


# ------------------------------------------------------------------------------------ switching on


def test_what_it_survives_is_known_once_the_store_below_has_learnt_it(inner: MemoryStore) -> None:
    sealed, learnt = SealedStore(inner, [SECRET]), replace(inner.durability, note="learnt since")
    inner.durability = learnt
    prepare(sealed)
    assert sealed.durability == learnt


def test_open_store_takes_secrets(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    file = tmp_path / "secrets"
    file.write_text(f"# of the shop\n{SECOND}\n\n{SECRET}\n")
    given = [SECRET], f"{SECRET},{SECOND}", f"@{file}"
    claimed = insert_completed(open_store(url, secrets=given[0]))
    for secrets in given[1:]:
        assert ask(open_store(url, secrets=secrets), Find(claimed.id))[0].answer == ANSWER
    assert "SealedStore(SqliteStore(" in repr(open_store(url, secrets=SECRET))


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ("", "there is none, or an empty one"),
        ([], "there is none"),
        (None, "not None. Is the environment variable set"),
        ([SECRET, None], "takes texts, not None"),
        (SECRET.encode(), "not a bytes"),
        (f"{SECRET},", "or an empty one"),
        ("too short", "one is shorter than 32 characters"),
        ([SECRET, SECRET], "one is named twice"),
        ([f"{SECRET},{SECOND}"], "one contains a comma"),
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
    for name in ("store", "keyring", "verbs", "envelope"):
        monkeypatch.delitem(sys.modules, f"oncekey.stores.sealed.{name}")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(Misuse, match=r"pip install 'oncekey\[sealed\]'"):
        open_store("memory://", secrets=SECRET)


def test_it_knows_which_errors_undo_a_transaction_of_the_store_within() -> None:
    url = "mysql://user:password@127.0.0.1/keys"
    plain = sql_transactions(open_store(url))
    sealed = sql_transactions(open_store(url, secrets=[SECRET]))
    assert plain is not None
    assert plain.verbs is not None
    assert sealed is not None
    assert sealed.verbs is not None
    assert sealed.verbs.undoes is plain.verbs.undoes
    assert sealed.verbs.hold is not plain.verbs.hold
