"""A store whose content is sealed: around any other store, and asked like it.

Verbs are sealed on their way down and outcomes opened on their way up (`seal`); which questions are
asked, and how they are answered, is the store's below. Whoever looks at that store sees neither
keys, nor answers, nor whose they are.

    store = oncekey.open_store("postgresql://…", secrets=os.environ["ONCEKEY_SECRETS"])

A record that does not open (a secret that is gone, something that was changed) is `CorruptRecord`:
its request is refused, never run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from oncekey._core.notice import NEVER_SEALED, NOTICE_ID
from oncekey._core.op import Op
from oncekey._core.record import Claim, Record, State
from oncekey._core.secrets import read_secrets
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
from oncekey.stores.sealed.keyring import find_book, forget, open_book, read_book, read_wraps
from oncekey.stores.sealed.verbs import Seal, resumable
from oncekey.stores.transactions import Hold, SqlTransactions, TransactionVerbs
from oncekey.stores.wrapper import StoreAround

_LOOK = Find(NOTICE_ID)


class SealedStore(StoreAround):
    """The records of another store, sealed."""

    def __init__(self, store: Store, secrets: str | Sequence[str]) -> None:
        """`secrets`: the first seals, all of them open (`core.secret.read_secrets`)."""
        super().__init__(store)
        self.secrets = read_secrets(secrets)
        self._id_key: bytes | None = None
        self._seal: Seal | None = None

    def __repr__(self) -> str:
        return f"SealedStore({self.inner!r})"

    def group(self, verb: Verb) -> Hashable:
        """By the id that the store below knows: what lies on one server may share a group."""
        seal, asked = self._seal, verb
        if seal is not None and isinstance(verb, Insert):
            asked = Insert(replace(verb.claim, id=seal.id(verb.id)))
        elif seal is not None and isinstance(
            verb, Swap | Find | Peek | AppendStep | Steps | Requested
        ):
            asked = replace(verb, id=seal.id(verb.id))
        return self.inner.group(asked)

    def connect(self) -> Connection:
        return self.inner.connect()

    async def aconnect(self) -> AsyncConnection:
        return await self.inner.aconnect()

    def prepare(self) -> Op[None]:
        """Every connection looks at the book: a store that was exchanged must not be taken for the
        one that this process knows.
        """
        yield from self.inner.prepare()
        self.durability = self.inner.durability
        yield from self._open()

    def migrate(self) -> Op[list[str]]:
        applied = yield from self.inner.migrate()
        yield from self._open()
        return applied

    def _open(self) -> Op[None]:
        """Look at the book. Also whenever a process looks at the notice: a store that was emptied
        beside its open connections gets its book again, before anybody makes another.
        """
        id_key = yield from open_book(self.inner, self.secrets, self._id_key)
        if self._seal is None:
            self._id_key, self._seal = id_key, Seal(self.secrets, id_key)

    def seal(self) -> Op[Seal]:
        """What seals. A caller's transaction may be the first to ask: it opens the book and must
        not make it, for it may be rolled back.
        """
        if self._seal is None:
            found = yield from find_book(self.inner)
            if found is None or found.state is not State.COMPLETED:
                raise StoreUnfit(
                    "nobody has opened this sealed store yet: run `oncekey migrate` on it, with "
                    "its secrets"
                )
            self._id_key = read_book(found, self.secrets).id_key
            self._seal = Seal(self.secrets, self._id_key)
        return self._seal

    # ------------------------------------------------------------------------------- secrets

    def secret_ids(self) -> Op[set[bytes]]:
        """Which secrets open this store, here or elsewhere."""
        found = yield from find_book(self.inner)
        return set() if found is None else set(read_wraps(found))

    def forget_secret(self, secret_id: bytes) -> Op[None]:
        """From now on this secret does not open the store; what it sealed is lost with it."""
        if secret_id in {secret.id for secret in self.secrets}:
            raise Misuse("this secret is among those that were given: take it away there first")
        yield from forget(self.inner, secret_id)

    # ------------------------------------------------------------------------------- perform

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        seal = self._seal or (yield from self.seal())
        asked = [_SEALED[type(verb)](seal, verb) for verb in verbs]
        if _LOOK in verbs:
            yield from self._open()
        if len(verbs) == 1:
            [outcome] = yield from self.inner.perform(asked)
            return [(yield from self._opened(seal, verbs[0], outcome))]
        outcomes: list[Any] = [AGAIN] * len(verbs)
        places = _in_order(asked)
        answers = yield from self.inner.perform([asked[at] for at in places])
        for at, answer in zip(places, answers, strict=True):
            try:
                outcomes[at] = yield from self._opened(seal, verbs[at], answer)
            except StoreError:  # asked again, alone, it fails alone; the others were served
                outcomes[at] = AGAIN
        return outcomes

    def _opened(self, seal: Seal, verb: Any, outcome: Any) -> Op[Any]:
        opened = _OPENED.get(type(verb))
        if opened is None or outcome is AGAIN or outcome is None:
            return outcome
        if type(verb) is Find and resumable(outcome) and seal.is_sealed(verb.id):
            verb = yield from self._by_real_id(seal, verb)
        return opened(seal, verb, outcome)

    def _by_real_id(self, seal: Seal, verb: Find) -> Op[Find]:
        """For who finishes it without its client: the request that was kept tells the real id."""
        [kept] = yield from self.inner.perform([Requested(verb.id)])
        return verb if kept is None else Find(seal.requested(verb.id, kept).id)

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
        seal = yield from self.seal()
        held = yield from hold(replace(claim, id=seal.id(claim.id)))
        if held.record is None:
            return held
        return Hold(held.ours, seal.record(held.record, claim.id, claim.tenant))

    def _insert_completed(
        self, insert: Callable[[Claim, Swap], Op[bool]], claim: Claim, complete: Swap
    ) -> Op[bool]:
        seal = yield from self.seal()
        return (yield from insert(seal.claim(claim), _swap(seal, complete)))


def _in_order(asked: Sequence[Any]) -> list[int]:
    """Which verbs go together, ordered by the ids that the store below knows: two processes that
    touch the same rows must take them in one order. One id may come in two forms, hashed and not:
    only one of them goes.
    """
    first: dict[bytes, int] = {}
    others = []
    for at, verb in enumerate(asked):
        if isinstance(verb, Insert | Swap | AppendStep):
            first.setdefault(verb.id, at)
        else:
            others.append(at)
    return [*others, *(first[record_id] for record_id in sorted(first))]


# ------------------------------------------------------------------------------ verbs, sealed


def _insert(seal: Seal, verb: Insert) -> Insert:
    return Insert(seal.claim(verb.claim))


def _swap(seal: Seal, verb: Swap) -> Swap:
    answer = verb.answer
    if answer is not None:
        token = verb.new_token or verb.token
        answer = seal.answer(verb.id, answer, verb.resource_id, token)
    return replace(
        verb,
        id=seal.id(verb.id),
        claim=None if verb.claim is None else seal.claim(verb.claim),
        answer=answer,
        resource_id=None,
    )


def _append_step(seal: Seal, verb: AppendStep) -> AppendStep:
    return replace(verb, id=seal.id(verb.id), step=seal.step(verb.id, verb.step))


def _tally(seal: Seal, verb: Tally) -> Tally:
    return Tally(
        {seal.id(given): count for given, count in verb.replays.items()},
        {seal.id(given): count for given, count in verb.conflicts.items()},
    )


def _scan(seal: Seal, verb: Scan) -> Scan:
    """In the order of the hashed ids, and some more: what was never sealed is not shown."""
    tenant = None if verb.tenant is None else seal.tenant(verb.tenant)
    return replace(verb, limit=verb.limit + len(NEVER_SEALED), tenant=tenant)


_SEALED: dict[type, Callable[[Seal, Any], Any]] = {
    Insert: _insert,
    Swap: _swap,
    AppendStep: _append_step,
    Find: lambda seal, verb: Find(seal.id(verb.id)),
    Peek: lambda seal, verb: Peek(seal.id(verb.id)),
    Steps: lambda seal, verb: Steps(seal.id(verb.id)),
    Requested: lambda seal, verb: Requested(seal.id(verb.id)),
    Tally: _tally,
    Scan: _scan,
    Purge: lambda seal, verb: replace(verb, tenant=seal.tenant(verb.tenant)),
    Due: lambda seal, verb: verb,
    Sweep: lambda seal, verb: verb,
    Count: lambda seal, verb: verb,
}


# ---------------------------------------------------------------------------- outcomes, opened


def _found(seal: Seal, verb: Insert, outcome: Any) -> Any:
    if not isinstance(outcome, Found):
        return outcome
    return Found(seal.record(outcome.record, verb.id, verb.claim.tenant))


def _refused(seal: Seal, verb: Swap | AppendStep, outcome: Any) -> Any:
    if not isinstance(outcome, Refused) or outcome.record is None:
        return outcome
    return Refused(seal.record(outcome.record, verb.id))


def _scanned(seal: Seal, verb: Scan, outcome: list[Record]) -> list[Record]:
    shown = [record for record in outcome if record.id not in NEVER_SEALED][: verb.limit]
    return [seal.record(record, record.id, verb.tenant) for record in shown]


def _counted(seal: Seal, verb: Count, outcome: dict[State, int]) -> dict[State, int]:
    """Without the book."""
    return {**outcome, State.COMPLETED: max(outcome[State.COMPLETED] - 1, 0)}


_OPENED: dict[type, Callable[[Seal, Any, Any], Any]] = {
    Insert: _found,
    Swap: _refused,
    AppendStep: _refused,
    Find: lambda seal, verb, outcome: seal.record(outcome, verb.id),
    Steps: lambda seal, verb, outcome: [seal.opened_step(verb.id, step) for step in outcome],
    Requested: lambda seal, verb, outcome: seal.requested(verb.id, outcome).request,
    Scan: _scanned,
    Count: _counted,
}
