"""A store whose content is encrypted: it wraps any other store and has the same interface.

Verbs are sealed on their way down and outcomes opened on their way up (`verbs`); the inner store
decides how it carries them out. Whoever can read the inner store sees neither keys nor responses,
nor whose they are.

    store = oncekey.open_store("postgresql://…", secrets=os.environ["ONCEKEY_SECRETS"])

A record that does not open (its secret is missing, or it was changed) raises `CorruptRecord`: its
request is refused, never run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from oncekey._core.notice import NEVER_SEALED, NOTICE_ID
from oncekey._core.op import Op
from oncekey._core.record import Claim, Record, State
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Due,
    Find,
    Found,
    Insert,
    Peek,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Swap,
    Sweep,
    Tally,
    Verb,
)
from oncekey.errors import Misuse, StoreError, StoreUnfit
from oncekey.stores.base import (
    AGAIN,
    AsyncConnection,
    Connection,
    Store,
    Transactions,
    transactions_of,
)
from oncekey.stores.sealed.keyring import (
    find_keyring,
    open_keyring,
    read_keyring,
    read_wraps,
    remove_secret,
)
from oncekey.stores.sealed.secrets import read_secrets
from oncekey.stores.sealed.verbs import Seal, is_resumable
from oncekey.stores.transactions import Hold, SqlTransactions, TransactionVerbs
from oncekey.stores.wrapper import StoreAround

_READ_NOTICE = Find(NOTICE_ID)


class SealedStore(StoreAround):
    """Keep records in another store, encrypted."""

    def __init__(self, store: Store, secrets: str | Sequence[str]) -> None:
        """`secrets`: the first one seals, all of them open (`read_secrets` in
        `_core/secrets.py`).
        """
        super().__init__(store)
        self.secrets = read_secrets(secrets)
        self._id_key: bytes | None = None
        self._seal: Seal | None = None

    def __repr__(self) -> str:
        return f"SealedStore({self.inner!r})"

    def group(self, verb: Verb) -> Hashable:
        """Group by the id that the inner store knows: records on one server may share a group."""
        seal, asked = self._seal, verb
        if seal is not None and isinstance(verb, Insert):
            asked = Insert(replace(verb.claim, id=seal.hashed_id(verb.id)))
        elif seal is not None and isinstance(
            verb, Swap | Find | Peek | AppendStep | Steps | Requested
        ):
            asked = replace(verb, id=seal.hashed_id(verb.id))
        return self.inner.group(asked)

    def connect(self) -> Connection:
        return self.inner.connect()

    async def aconnect(self) -> AsyncConnection:
        return await self.inner.aconnect()

    def prepare(self) -> Op[None]:
        """Read the key ring for every connection: a store that was replaced must not be taken for
        the one that this process knows.
        """
        yield from self.inner.prepare()
        self.durability = self.inner.durability
        yield from self._open_keyring()

    def migrate(self) -> Op[list[str]]:
        applied = yield from self.inner.migrate()
        yield from self._open_keyring()
        return applied

    def _open_keyring(self) -> Op[None]:
        """Read the key ring; also whenever a process reads the notice. A store that was emptied
        while connections were open gets its key ring again, before another process creates a
        different one.
        """
        id_key = yield from open_keyring(self.inner, self.secrets, self._id_key)
        if self._seal is None:
            self._id_key, self._seal = id_key, Seal(self.secrets, id_key)

    def load_seal(self) -> Op[Seal]:
        """Return the seal. A caller's transaction may be the first to need it: it reads the key
        ring but must not create one, because it may be rolled back.
        """
        if self._seal is None:
            found = yield from find_keyring(self.inner)
            if found is None or found.state is not State.COMPLETED:
                raise StoreUnfit(
                    "this sealed store has not been opened yet: run `oncekey migrate` on it, with "
                    "its secrets"
                )
            self._id_key = read_keyring(found, self.secrets).id_key
            self._seal = Seal(self.secrets, self._id_key)
        return self._seal

    # ------------------------------------------------------------------------------- secrets

    def secret_ids(self) -> Op[set[bytes]]:
        """Return the ids of all secrets that open this store, here or elsewhere."""
        found = yield from find_keyring(self.inner)
        return set() if found is None else set(read_wraps(found))

    def forget_secret(self, secret_id: bytes) -> Op[None]:
        """Remove a secret: it no longer opens the store, and what it sealed is lost."""
        if secret_id in {secret.id for secret in self.secrets}:
            raise Misuse("this process still uses this secret: remove it from its secrets first")
        yield from remove_secret(self.inner, secret_id)

    # ------------------------------------------------------------------------------- perform

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        seal = self._seal or (yield from self.load_seal())
        asked = [_SEAL_VERB[type(verb)](seal, verb) for verb in verbs]
        if _READ_NOTICE in verbs:
            yield from self._open_keyring()
        if len(verbs) == 1:
            [outcome] = yield from self.inner.perform(asked)
            return [(yield from self._open_outcome(seal, verbs[0], outcome))]
        outcomes: list[Any] = [AGAIN] * len(verbs)
        order = _in_order(asked)
        answers = yield from self.inner.perform([asked[at] for at in order])
        for at, answer in zip(order, answers, strict=True):
            try:
                outcomes[at] = yield from self._open_outcome(seal, verbs[at], answer)
            except StoreError:  # retried alone, so that only this one fails
                outcomes[at] = AGAIN
        return outcomes

    def _open_outcome(self, seal: Seal, verb: Any, outcome: Any) -> Op[Any]:
        opened = _OPEN_OUTCOME.get(type(verb))
        if opened is None or outcome is AGAIN or outcome is None:
            return outcome
        if type(verb) is Find and is_resumable(outcome) and seal.is_sealed(verb.id):
            verb = yield from self._by_real_id(seal, verb)
        return opened(seal, verb, outcome)

    def _by_real_id(self, seal: Seal, verb: Find) -> Op[Find]:
        """Find by the real id, which the stored request contains, to finish a record without its
        client.
        """
        [kept] = yield from self.inner.perform([Requested(verb.id)])
        return verb if kept is None else Find(seal.open_request(verb.id, kept).id)

    # --------------------------------------------------------------------------------- atomic

    @property
    def transactions(self) -> Transactions | None:
        """Those of the store within, for records that are sealed."""
        found = transactions_of(self.inner)
        if not isinstance(found, SqlTransactions):
            return found
        verbs, callers_verbs = map(self._seal_verbs, (found.verbs, found.callers_verbs))
        return replace(found, verbs=verbs, callers_verbs=callers_verbs)

    def _seal_verbs(self, verbs: TransactionVerbs | None) -> TransactionVerbs | None:
        if verbs is None:
            return None
        hold = partial(self._hold, verbs.hold)
        insert_completed = partial(self._insert_completed, verbs.insert_completed)
        return replace(verbs, hold=hold, insert_completed=insert_completed)

    def _hold(self, hold: Callable[[Claim], Op[Hold]], claim: Claim) -> Op[Hold]:
        seal = yield from self.load_seal()
        held = yield from hold(replace(claim, id=seal.hashed_id(claim.id)))
        if held.record is None:
            return held
        return Hold(held.ours, seal.open_record(held.record, claim.id, claim.tenant))

    def _insert_completed(
        self, insert: Callable[[Claim, Swap], Op[bool]], claim: Claim, complete: Swap
    ) -> Op[bool]:
        seal = yield from self.load_seal()
        return (yield from insert(seal.seal_claim(claim), _seal_swap(seal, complete)))


def _in_order(asked: Sequence[Any]) -> list[int]:
    """Order the verbs by the ids that the inner store knows: processes that change the same rows
    must lock them in the same order. If one id occurs in two forms, hashed and not, keep only one.
    """
    first: dict[bytes, int] = {}
    others = []
    for at, verb in enumerate(asked):
        if isinstance(verb, Insert | Swap | AppendStep):
            first.setdefault(verb.id, at)
        else:
            others.append(at)
    return [*others, *(first[record_id] for record_id in sorted(first))]


# ----------------------------------------------------------------------------------- sealing verbs


def _seal_insert(seal: Seal, verb: Insert) -> Insert:
    return Insert(seal.seal_claim(verb.claim))


def _seal_swap(seal: Seal, verb: Swap) -> Swap:
    answer = verb.answer
    if answer is not None:
        token = verb.new_token or verb.token
        answer = seal.seal_answer(verb.id, answer, verb.resource_id, token)
    return replace(
        verb,
        id=seal.hashed_id(verb.id),
        claim=None if verb.claim is None else seal.seal_claim(verb.claim),
        answer=answer,
        resource_id=None,
    )


def _seal_step(seal: Seal, verb: AppendStep) -> AppendStep:
    return replace(verb, id=seal.hashed_id(verb.id), step=seal.seal_step(verb.id, verb.step))


def _seal_tally(seal: Seal, verb: Tally) -> Tally:
    return Tally(
        {seal.hashed_id(given): count for given, count in verb.replays.items()},
        {seal.hashed_id(given): count for given, count in verb.conflicts.items()},
    )


def _seal_scan(seal: Seal, verb: Scan) -> Scan:
    """Scan in the order of the hashed ids, and read a few more: records that are never sealed are
    hidden.
    """
    tenant = None if verb.tenant is None else seal.hashed_tenant(verb.tenant)
    return replace(verb, limit=verb.limit + len(NEVER_SEALED), tenant=tenant)


_SEAL_VERB: dict[type, Callable[[Seal, Any], Any]] = {
    Insert: _seal_insert,
    Swap: _seal_swap,
    AppendStep: _seal_step,
    Find: lambda seal, verb: Find(seal.hashed_id(verb.id)),
    Peek: lambda seal, verb: Peek(seal.hashed_id(verb.id)),
    Steps: lambda seal, verb: Steps(seal.hashed_id(verb.id)),
    Requested: lambda seal, verb: Requested(seal.hashed_id(verb.id)),
    Tally: _seal_tally,
    Scan: _seal_scan,
    Purge: lambda seal, verb: replace(verb, tenant=seal.hashed_tenant(verb.tenant)),
    Due: lambda seal, verb: verb,
    Sweep: lambda seal, verb: verb,
    Count: lambda seal, verb: verb,
}


# ---------------------------------------------------------------------------- outcomes, opened


def _open_insert(seal: Seal, verb: Insert, outcome: Any) -> Any:
    if not isinstance(outcome, Found):
        return outcome
    return Found(seal.open_record(outcome.record, verb.id, verb.claim.tenant))


def _open_refusal(seal: Seal, verb: Swap | AppendStep, outcome: Any) -> Any:
    if not isinstance(outcome, Refused) or outcome.record is None:
        return outcome
    return Refused(seal.open_record(outcome.record, verb.id))


def _open_scan(seal: Seal, verb: Scan, outcome: list[Record]) -> list[Record]:
    shown = [record for record in outcome if record.id not in NEVER_SEALED][: verb.limit]
    return [seal.open_record(record, record.id, verb.tenant) for record in shown]


def _open_count(seal: Seal, verb: Count, outcome: dict[State, int]) -> dict[State, int]:
    """Without the book."""
    return {**outcome, State.COMPLETED: max(outcome[State.COMPLETED] - 1, 0)}


_OPEN_OUTCOME: dict[type, Callable[[Seal, Any, Any], Any]] = {
    Insert: _open_insert,
    Swap: _open_refusal,
    AppendStep: _open_refusal,
    Find: lambda seal, verb, outcome: seal.open_record(outcome, verb.id),
    Steps: lambda seal, verb, outcome: [seal.open_step(verb.id, step) for step in outcome],
    Requested: lambda seal, verb, outcome: seal.open_request(verb.id, outcome).request,
    Scan: _open_scan,
    Count: _open_count,
}
