"""One atomic operation: claim, business rows and kept answer commit in one transaction.

It is the engine's own `begin` and `conclude`, with another way to answer the verbs that they ask.
An `Insert` becomes: take the id for as long as this transaction lasts, and look. A take-over is
remembered. The completion carries all of it out at once, and commits; a release rolls back, and
nothing was ever there. So until the end nothing of ours stands in the tables that others could find
or wait for, a crash leaves nothing, and no lease is needed.

A commit whose acknowledgement was lost is looked up (P9): whoever holds the id again after it can
be sure that its transaction is over, and the record says by its token which way.

Like all of the engine this is made of generators. What they yield is a `Begin`, `Flush`, `Commit`,
`Rollback` or `Outside`; anything else is a question to the store, asked within the transaction.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, TypeVar

from oncekey._core import refusals
from oncekey._core.op import Offload, Op, Pause, Undoable
from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Answer, Claim, Glimpse, Record, State
from oncekey._core.values import value
from oncekey._core.verbs import Done, Find, Found, Insert, Inserted, Peek, Refused, Swap, Verb
from oncekey._engine.decisions import (
    Bypass,
    Ended,
    Execute,
    Finished,
    Given,
    GivenUp,
    Refuse,
    Unstored,
)
from oncekey._system.probes import probe
from oncekey.errors import Misuse, StoreError, StoreUnavailable, TooLong
from oncekey.stores.base import Store
from oncekey.stores.transactions import Hold, sql_transactions

_log = logging.getLogger("oncekey")
T = TypeVar("T")


@value
class Begin:
    """Open a transaction on a connection of its own. → whether the id may be had at all"""

    id: bytes
    seconds_max: float


@value
class Flush:
    """Write what the handler's session still holds back."""


@value
class Commit:
    """Commit, and give the connection back."""


@value
class Rollback:
    """Roll back, and give the connection back. Never fails: what is not committed is gone."""


@value
class Outside:
    """Ask on the store's own connections, apart from the transaction."""

    question: Verb | Pause | Offload


class Denied(StoreUnavailable):
    """The handler tried to end the transaction, and was not let."""

    def __init__(self) -> None:
        super().__init__(
            "the handler tried to end its transaction, or closed its session: leave both to "
            "oncekey, and use a savepoint to undo a part",
            sent=True,
        )


@value
class Undone:
    """Why it is not recorded, and what its client is told."""

    why: str
    told: Given | Refuse


class Work:
    """One request in atomic mode."""

    def __init__(
        self, store: Store, seconds_max: float, *, callers: bool = False, plain: bool = False
    ) -> None:
        """`callers`: its transactions are a caller's own. `plain`: nothing is recorded in it."""
        self._store = store
        self._plain = plain
        self._callers = callers
        sql = sql_transactions(store)
        self._sql = sql
        self._verbs = None if sql is None else sql.callers_verbs if callers else sql.verbs
        """None on SQLite, where whoever may begin has the id."""
        self.first_question = None if callers or sql is None else sql.begin
        """What a transaction of ours has to begin with, if anything. A caller's has begun."""
        self._seconds_max = seconds_max
        self._claim: Claim
        self._token = b""
        """The claim's, once there is one."""
        self._open = False
        """A transaction is begun, and not ended by us."""
        self._held = False
        """It has the id, so nobody else can be about to run it."""
        self._take: Swap | None = None
        """The take-over that goes before the completion, where a record was there."""
        self._in_doubt = False
        """Its commit was not acknowledged."""
        self._undone: Undone | None = None
        self._undoable: bool | None = None
        """Whether a rollback surely undoes it all, once that was asked."""
        self._final: Exception | None = None
        """What the engine must not repeat."""
        self.status = 0
        """Of the answer that it commits."""

    def drive(self, op: Op[T]) -> Op[T | Finished]:
        """Drive an operation of the engine, with its verbs answered by the transaction.

        What it decides stands, but for three things: a handler cannot run without a transaction,
        nothing is left to forget, and what was undone is not said to have happened.
        """
        decided = yield from self._through(op)
        if isinstance(decided, Execute) or (decided is None and self._take is not None):
            return decided  # its handler runs now
        yield from self.close()
        if self._undone is not None and decided is not None:  # else that was said before
            _log.error("%s %s", self._claim.operation, self._undone.why)
            own = isinstance(self._undone.told, Given) and isinstance(decided, GivenUp)
            return decided if own else self._undone.told
        if isinstance(decided, Bypass):
            return Refuse(refusals.store_unavailable())
        if isinstance(decided, Unstored):
            return Refuse(refusals.answer_not_recorded(1.0))
        if isinstance(decided, Refuse) and decided.lost_claim is not None:
            return Refuse(decided.problem)
        return decided

    def close(self) -> Op[None]:
        """Roll back whatever is open."""
        if self._open:
            self._open = self._held = False
            why = yield Rollback()
            if why is not None:
                self._undo(why)

    def _undo(self, why: str | Exception, answer: Answer | None = None) -> None:
        """Nothing of it happened, unless its handler ended the transaction. One that says itself
        that it failed is heard, but not kept.
        """
        failed = answer is not None and answer.status >= 400
        told = Given() if failed else Refuse(_problem(why, self._claim.recovery))
        # Who ended the transaction may have committed it.
        became = "is not recorded" if isinstance(why, Ended) else "was undone"
        self._undone = Undone(f"{became}: {why}", told)

    # -------------------------------------------------------------- another way to answer verbs

    def _through(self, op: Op[T]) -> Op[T]:
        """What `op` comes to, with its questions answered by `_answer`."""
        try:
            question = next(op)
            while True:
                try:
                    answer = yield from self._answer(question)
                except Exception as error:
                    if error is self._final:
                        raise
                    question = op.throw(error)
                else:
                    question = op.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:  # whoever is cancelled gives up its place among those who wait
            op.close()

    def _answer(self, verb: Any) -> Op[Any]:
        match verb:
            case Insert(claim):
                self._claim, self._token = claim, claim.token
                return (yield from self._insert())
            case Peek() if self._token:  # else it looks at what it was not allowed to claim
                return (yield from self._peek())
            # Also an orphan's, which nobody inserted.
            case Swap(claim=Claim() as claim, to=State.RUNNING):
                self._claim, self._token = claim, claim.token
                return (yield from self._remember(verb))
            case Swap(token=token) if token == self._token:
                return (yield from self._end(verb))
            case Find() if self._held:  # the store's notice, by who is about to run: it holds on
                [found] = yield from self._store.perform([verb])
                return found
            case Offload():
                return (yield Outside(verb))
            case Undoable(error):
                if self._undoable is None:
                    self._undoable = yield from self._is_undoable(error)
                return self._undoable
        yield from self.close()  # whoever needs two connections at once may wait for ever
        return (yield Outside(verb))

    def _insert(self) -> Op[Inserted | Found]:
        self._take = None
        if self._verbs is None:  # replays need not wait for whoever writes
            found: Record | None = yield Outside(Find(self._claim.id))
            if found is not None:
                return Found(found)
        held = yield from self._hold()
        if held.record is None or _free(held.record):
            if not held.ours:
                yield from self.close()
                return Found(_in_flight(self._claim))
            if held.record is None:
                return Inserted(0)
        return Found(held.record)

    def _hold(self) -> Op[Hold]:
        """Begin, and take the id. What fails in a transaction of a caller's may have undone all of
        it: repeated, it would go on in another one, without the rows that the caller had written.
        """
        try:
            held = yield from self._begin_and_hold()
        except StoreUnavailable as error:
            self._final = error if self._callers else None
            raise
        if held.record is None or not self._shown_early(held.record):
            return held
        return Hold(False, (yield from self._on_disk(held.record)))

    def _shown_early(self, found: Record) -> bool:
        """Whether it would be answered from what may not be on disk yet."""
        return _has_ended(found) and self._sql is not None and self._sql.shows_early(self._store)

    def _on_disk(self, found: Record) -> Op[Record]:
        """It again, by the store's own connections: what these say is on disk."""
        yield from self.close()
        again: Record | None = yield Outside(Find(found.id))
        return again or found

    def _begin_and_hold(self) -> Op[Hold]:
        yield from self.close()
        self._open = yield Begin(self._claim.id, self._seconds_max)
        if not self._open:
            return Hold(False, None)
        if self._verbs is not None:
            held = yield from self._verbs.hold(self._claim)
        else:
            [record] = yield from self._store.perform([Find(self._claim.id)])
            held = Hold(True, record)
        self._held = held.ours
        return held

    def _peek(self) -> Op[Glimpse | None]:
        """For those who wait: what holds the id is a transaction, or a record that says so."""
        held = yield from self._hold()
        yield from self.close()
        if held.record is not None and (held.ours or not _free(held.record)):
            return Glimpse(held.record.state, held.record.fence, held.record.lease_left_s)
        return None if held.ours else Glimpse(State.RUNNING, 0, self._claim.lease_s)

    def _remember(self, take: Swap) -> Op[Done | Refused]:
        """Whether it may be taken over is for the end to say: nobody's record is locked so long."""
        if not self._held:
            held = yield from self._hold()
            found = held.record
            if not held.ours:  # whoever holds the id is about to have what seems free
                yield from self.close()
                free = found is None or _free(found)
                return Refused(_in_flight(self._claim) if free else found)
            if found is None or (found.fence, found.token) != (take.fence, take.token):
                return Refused(found)
        self._take = take
        return Done(take.fence)

    # ------------------------------------------------------------------------------- the end

    def _end(self, swap: Swap) -> Op[Done | Refused]:
        if self._in_doubt:
            return (yield from self._look_up())
        if swap.to is State.RELEASED:
            yield from self.close()
            return Done(swap.fence)
        if swap.to is not State.COMPLETED:
            return (yield from self._end_without_rows(swap))
        if not self._open:  # it was refused before, and by what was not heard
            return (yield from self._refused())
        yield from self._flush()
        self.status = 0 if swap.answer is None else swap.answer.status
        try:
            fence = yield from self._write(swap)
        except (StoreError, Misuse) as error:
            if isinstance(error, TooLong) and self._take is None:  # less of it may be kept
                raise
            self._undo(error, swap.answer)
            if isinstance(error, Ended) and not self._may_repeat:
                raise
            fence = None
        if fence is None:
            return (yield from self._refused())
        probe("before_commit")
        self._open = False
        try:
            yield Commit()
        except StoreUnavailable:
            self._in_doubt = True
            raise
        probe("after_commit")
        return Done(fence)

    def _flush(self) -> Op[None]:
        """What fails here is the handler's own, which has failed with it."""
        try:
            yield Flush()
        except Exception as error:
            self._final = error
            raise

    @property
    def _may_repeat(self) -> bool:
        """Whether it may run again though it may have had its effect. In a transaction of a
        caller's all of that is the caller's to undo.
        """
        return self._callers or self._claim.recovery not in ("ask", "block")

    def _is_undoable(self, error: BaseException | None) -> Op[bool]:
        """False where the handler has ended the transaction, and may have committed. One that
        cannot be asked any more has failed as it was, or broken.
        """
        if self._may_repeat or self._verbs is None or not self._open:  # SQLite lets nobody end it
            return True
        try:
            yield Flush()
            ours = yield from self._verbs.is_ours(self._claim)
            ours = ours or (error is not None and self._verbs.undoes(error))
        except Ended:  # it was seen to commit
            ours = False
        except Exception:
            return True
        if not ours:
            _log.error("%s may have had its effect: %s", self._claim.operation, Ended())
        return ours

    def _end_without_rows(self, swap: Swap) -> Op[Done | Refused]:
        """Nobody knows the outcome, or the application is to be asked: what was written here does
        not go with that.
        """
        yield from self.close()
        taken = yield Outside(self._take or Insert(self._claim))
        found = None if isinstance(taken, Done | Inserted) else taken.record
        if found is not None and found.token == self._token:
            taken = Done(found.fence)
        if not isinstance(taken, Done | Inserted):
            return Refused(found)
        ended: Done | Refused = yield Outside(replace(swap, fence=taken.fence))
        return ended

    def _write(self, swap: Swap) -> Op[int | None]:
        """The record's fence, None if it is another's by now."""
        claim, perform = self._claim, self._store.perform
        if self._verbs is not None:
            new = self._take is None and swap.to is State.COMPLETED
            if new and not self._plain and (yield from self._verbs.insert_completed(claim, swap)):
                return swap.fence
            if not (yield from self._verbs.is_ours(claim)):
                raise Ended
            if new and not self._plain:
                return None
        if self._plain:
            if self._verbs is None:  # only who asks is told that there is nothing left to commit
                yield from perform([Find(claim.id)])
            return swap.fence
        [taken] = yield from perform([self._take or Insert(claim)])
        if not isinstance(taken, Done | Inserted):
            return None
        [done] = yield from perform([replace(swap, fence=taken.fence)])
        return done.fence if isinstance(done, Done) else None

    def _refused(self) -> Op[Refused]:
        """Nothing is committed; what stands there instead, unless that is nothing."""
        yield from self.close()
        if self._undone is not None:
            return Refused(None)
        found = yield Outside(Find(self._claim.id))
        return Refused(found)

    def _look_up(self) -> Op[Done | Refused]:
        """What became of a commit that nobody acknowledged."""
        held = yield from self._hold()
        found = held.record
        if held.ours and self._verbs is not None:  # look again: it looked before it held the id
            [found] = yield from self._store.perform([Find(self._claim.id)])
        yield from self.close()
        if found is not None and self._shown_early(found):
            found = yield from self._on_disk(found)
        if found is not None and found.token == self._claim.token:
            return Done(found.fence)
        if not held.ours and (found is None or _free(found)):
            raise StoreUnavailable("a commit is not known to be over")
        if found is None or _free(found):
            self._undo("its commit failed")
        return Refused(found)


def _free(record: Record) -> bool:
    """Whether somebody could run it: then it matters who has the id."""
    return not _has_ended(record) and not (record.state is State.RUNNING and not record.lapsed)


def _has_ended(record: Record) -> bool:
    return record.state in (State.COMPLETED, State.UNKNOWN) and not record.expired


def _in_flight(claim: Claim) -> Record:
    """What can be said of whoever holds the id: that it is under way. Which request it is will be
    known when it commits.
    """
    return Record(
        id=claim.id,
        token=b"",
        tenant=claim.tenant,
        operation=claim.operation,
        key=claim.key,
        fingerprint=claim.fingerprint,
        fingerprint_version=claim.fingerprint_version,
        lease_s=claim.lease_s,
        retention_s=claim.retention_s,
        recovery=claim.recovery,
        schema_version=claim.schema_version,
        field_digests=claim.field_digests,
        state=State.RUNNING,
        fence=0,
        attempt=1,
        lapses=0,
        beat=0,
        no_effect=False,
        answer=None,
        resource_id=None,
        age_s=0.0,
        lease_left_s=claim.lease_s,
        expires_in_s=claim.lease_s + claim.retention_s,
    )


_AFTERWARDS = {
    "block": "A retry is refused, since nobody can tell what it did.",
    "ask": "A retry finds out first what it did.",
}


def _problem(why: str | Exception, recovery: str) -> Problem:
    """What its client is told."""
    if isinstance(why, Ended):
        afterwards = _AFTERWARDS.get(recovery, "A retry runs it again.")
        return Problem(
            Kind.TRANSACTION_ENDED,
            "The request is not recorded: its handler ended the transaction that was begun for it, "
            "or went on after a deadlock had. What it committed by itself stands, all else is "
            f"undone. {afterwards}",
        )
    if isinstance(why, Denied):
        return Problem(
            Kind.TRANSACTION_ENDED,
            "The request was undone before it was answered: its handler tried to end the "
            "transaction that was begun for it. Nothing of it happened. A retry runs it again.",
            advice="Send it again with the same key once its service is put right.",
        )
    return Problem(
        Kind.STORE_UNAVAILABLE,
        "The request was undone before it was answered: nothing of it happened. Retry with the "
        "same key.",
        retryable=True,
        retry_after_s=1.0,
    )
