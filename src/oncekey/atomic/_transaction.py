"""One atomic operation: the claim, your rows and the stored response commit in one transaction.

It runs the engine's own `begin` and `conclude`, but answers their store verbs differently. `Insert`
locks the id for the length of this transaction and reads the record. A take-over is remembered. The
completion writes everything at once and commits; a release rolls back. So until the end there is no
row of ours that others could find or wait for, a crash leaves nothing, and no lease is needed.

If the acknowledgement of a commit is lost, the record is looked up (P9): once we hold the id again,
that transaction is over, and the record's token shows whether it committed.

Like the rest of the engine this is made of generators. They yield `Begin`, `Flush`, `Commit`,
`Rollback` or `Outside`; anything else is a store query, run inside the transaction.
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
    """Open a transaction on a connection of its own. → whether the id can be locked at all"""

    id: bytes
    seconds_max: float


@value
class Flush:
    """Write what the handler's session has not written yet."""


@value
class Commit:
    """Commit, and return the connection."""


@value
class Rollback:
    """Roll back, and return the connection. Never fails: what is not committed is gone."""


@value
class Outside:
    """Run a query on the store's own connections, outside the transaction."""

    question: Verb | Pause | Offload


class Denied(StoreUnavailable):
    """The handler tried to end the transaction, which was prevented."""

    def __init__(self) -> None:
        super().__init__(
            "the handler tried to end its transaction, or closed its session: leave both to "
            "oncekey, and use a savepoint to roll back a part",
            sent=True,
        )


@value
class NotRecorded:
    """Why the operation is not recorded, and the response to its client."""

    reason: str
    response: Given | Refuse


class AtomicOperation:
    """One request in atomic mode."""

    def __init__(
        self, store: Store, seconds_max: float, *, callers: bool = False, plain: bool = False
    ) -> None:
        """`callers`: the transaction is a caller's own. `plain`: nothing is recorded in it."""
        self._store = store
        self._plain = plain
        self._callers = callers
        sql = sql_transactions(store)
        self._sql = sql
        self._verbs = None if sql is None else sql.callers_verbs if callers else sql.verbs
        """None on SQLite, where beginning a transaction locks the id."""
        self.first_question = None if callers or sql is None else sql.begin
        """The first statement of our own transactions, if any. A caller's has begun already."""
        self._seconds_max = seconds_max
        self._claim: Claim
        self._token = b""
        """The claim's token, once there is a claim."""
        self._open = False
        """A transaction is open, as far as we know."""
        self._held = False
        """The transaction holds the id, so no other attempt can run."""
        self._take_over: Swap | None = None
        """The take-over to write before the completion, if there was a record."""
        self._in_doubt = False
        """The commit was not acknowledged."""
        self._not_recorded: NotRecorded | None = None
        self._undoable: bool | None = None
        """Whether a rollback certainly undoes everything, once that was checked."""
        self._final: Exception | None = None
        """An error after which the engine must not retry."""
        self.status = 0
        """The status of the response that is committed."""

    def drive(self, op: Op[T]) -> Op[T | Finished]:
        """Run an operation of the engine, with its verbs answered by the transaction.

        Its decision stands, with three exceptions: a handler cannot run without a transaction,
        nothing is left to forget, and a rolled back operation is not reported as done.
        """
        decision = yield from self._drive(op)
        if isinstance(decision, Execute) or (decision is None and self._take_over is not None):
            return decision  # its handler runs now
        yield from self.close()
        if self._not_recorded is not None and decision is not None:  # else it was logged before
            _log.error("%s %s", self._claim.operation, self._not_recorded.reason)
            own = isinstance(self._not_recorded.response, Given) and isinstance(decision, GivenUp)
            return decision if own else self._not_recorded.response
        if isinstance(decision, Bypass):
            return Refuse(refusals.store_unavailable())
        if isinstance(decision, Unstored):
            return Refuse(refusals.answer_not_recorded(1.0))
        if isinstance(decision, Refuse) and decision.lost_claim is not None:
            return Refuse(decision.problem)
        return decision

    def close(self) -> Op[None]:
        """Roll back whatever is open."""
        if self._open:
            self._open = self._held = False
            reason = yield Rollback()
            if reason is not None:
                self._mark_not_recorded(reason)

    def _mark_not_recorded(self, reason: str | Exception, answer: Answer | None = None) -> None:
        """Note that nothing happened, unless the handler ended the transaction. A response that
        reports a failure itself is sent, but not stored.
        """
        failed = answer is not None and answer.status >= 400
        response = Given() if failed else Refuse(_problem(reason, self._claim.recovery))
        # A handler that ended the transaction may have committed it.
        became = "is not recorded" if isinstance(reason, Ended) else "was undone"
        self._not_recorded = NotRecorded(f"{became}: {reason}", response)

    # -------------------------------------------------------------- another way to answer verbs

    def _drive(self, op: Op[T]) -> Op[T]:
        """Run `op` with its questions answered by `_answer`."""
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
        finally:  # a cancelled operation leaves the queue of waiters
            op.close()

    def _answer(self, verb: Any) -> Op[Any]:
        match verb:
            case Insert(claim):
                self._claim, self._token = claim, claim.token
                return (yield from self._insert())
            case Peek() if self._token:  # else it looks at a key it may not claim
                return (yield from self._peek())
            # Also for an orphaned record, which has no insert before.
            case Swap(claim=Claim() as claim, to=State.RUNNING):
                self._claim, self._token = claim, claim.token
                return (yield from self._remember(verb))
            case Swap(token=token) if token == self._token:
                return (yield from self._end(verb))
            case Find() if self._held:  # the store's notice, read by the attempt about to run
                [found] = yield from self._store.perform([verb])
                return found
            case Offload():
                return (yield Outside(verb))
            case Undoable(error):
                if self._undoable is None:
                    self._undoable = yield from self._is_undoable(error)
                return self._undoable
        yield from self.close()  # holding two connections at once could deadlock the pool
        return (yield Outside(verb))

    def _insert(self) -> Op[Inserted | Found]:
        self._take_over = None
        if self._verbs is None:  # so that replays need not wait for the writer
            found: Record | None = yield Outside(Find(self._claim.id))
            if found is not None:
                return Found(found)
        held = yield from self._hold()
        if held.record is None or _is_free(held.record):
            if not held.ours:
                yield from self.close()
                return Found(_in_flight(self._claim))
            if held.record is None:
                return Inserted(0)
        return Found(held.record)

    def _hold(self) -> Op[Hold]:
        """Begin, and lock the id. A failure in a caller's transaction may have rolled it back: a
        retry would run in a new one, without the rows that the caller wrote before.
        """
        try:
            held = yield from self._begin_and_hold()
        except StoreUnavailable as error:
            self._final = error if self._callers else None
            raise
        if held.record is None or not self._may_not_be_durable(held.record):
            return held
        return Hold(False, (yield from self._read_durable(held.record)))

    def _may_not_be_durable(self, found: Record) -> bool:
        """Whether this finished record may not be on disk yet."""
        return _has_ended(found) and self._sql is not None and self._sql.shows_early(self._store)

    def _read_durable(self, found: Record) -> Op[Record]:
        """Read the record again on the store's own connections, which see only what is durable."""
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
        """Look for a waiting request whether a transaction or a record holds the id."""
        held = yield from self._hold()
        yield from self.close()
        if held.record is not None and (held.ours or not _is_free(held.record)):
            return Glimpse(held.record.state, held.record.fence, held.record.lease_left_s)
        return None if held.ours else Glimpse(State.RUNNING, 0, self._claim.lease_s)

    def _remember(self, take: Swap) -> Op[Done | Refused]:
        """Remember a take-over. It is decided at the end, so that no record is locked meanwhile."""
        if not self._held:
            held = yield from self._hold()
            found = held.record
            if not held.ours:  # another transaction holds the id and is about to take it
                yield from self.close()
                free = found is None or _is_free(found)
                return Refused(_in_flight(self._claim) if free else found)
            if found is None or (found.fence, found.token) != (take.fence, take.token):
                return Refused(found)
        self._take_over = take
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
        if not self._open:  # it was refused before, but the reply was lost
            return (yield from self._refusal())
        yield from self._flush()
        self.status = 0 if swap.answer is None else swap.answer.status
        try:
            fence = yield from self._write(swap)
        except (StoreError, Misuse) as error:
            if isinstance(error, TooLong) and self._take_over is None:  # a shorter one may fit
                raise
            self._mark_not_recorded(error, swap.answer)
            if isinstance(error, Ended) and not self._may_repeat:
                raise
            fence = None
        if fence is None:
            return (yield from self._refusal())
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
        """Flush the session. A failure here is the handler's own."""
        try:
            yield Flush()
        except Exception as error:
            self._final = error
            raise

    @property
    def _may_repeat(self) -> bool:
        """Whether it may run again although it may have taken effect. In a caller's transaction the
        caller rolls all of that back.
        """
        return self._callers or self._claim.recovery not in ("ask", "block")

    def _is_undoable(self, error: BaseException | None) -> Op[bool]:
        """Return False if the handler ended the transaction and may have committed. A transaction
        that no longer answers has failed or lost its connection.
        """
        if self._may_repeat or self._verbs is None or not self._open:  # SQLite prevents ending it
            return True
        try:
            yield Flush()
            ours = yield from self._verbs.is_ours(self._claim)
            ours = ours or (error is not None and self._verbs.undoes(error))
        except Ended:  # a commit was seen
            ours = False
        except Exception:
            return True
        if not ours:
            _log.error("%s may have taken effect: %s", self._claim.operation, Ended())
        return ours

    def _end_without_rows(self, swap: Swap) -> Op[Done | Refused]:
        """End with an unknown outcome, or one to ask the application about: roll back the rows
        written here, and write the record outside.
        """
        yield from self.close()
        taken = yield Outside(self._take_over or Insert(self._claim))
        found = None if isinstance(taken, Done | Inserted) else taken.record
        if found is not None and found.token == self._token:
            taken = Done(found.fence)
        if not isinstance(taken, Done | Inserted):
            return Refused(found)
        ended: Done | Refused = yield Outside(replace(swap, fence=taken.fence))
        return ended

    def _write(self, swap: Swap) -> Op[int | None]:
        """Write the record. Return its fence, or None if another attempt has it by now."""
        claim, perform = self._claim, self._store.perform
        if self._verbs is not None:
            new = self._take_over is None and swap.to is State.COMPLETED
            if new and not self._plain and (yield from self._verbs.insert_completed(claim, swap)):
                return swap.fence
            if not (yield from self._verbs.is_ours(claim)):
                raise Ended
            if new and not self._plain:
                return None
        if self._plain:
            if self._verbs is None:  # a query shows if there is still something to commit
                yield from perform([Find(claim.id)])
            return swap.fence
        [taken] = yield from perform([self._take_over or Insert(claim)])
        if not isinstance(taken, Done | Inserted):
            return None
        [done] = yield from perform([replace(swap, fence=taken.fence)])
        return done.fence if isinstance(done, Done) else None

    def _refusal(self) -> Op[Refused]:
        """Roll back, and return the record that is there instead, if any."""
        yield from self.close()
        if self._not_recorded is not None:
            return Refused(None)
        found = yield Outside(Find(self._claim.id))
        return Refused(found)

    def _look_up(self) -> Op[Done | Refused]:
        """Find out whether an unacknowledged commit succeeded."""
        held = yield from self._hold()
        found = held.record
        if held.ours and self._verbs is not None:  # read again: the first read was before the lock
            [found] = yield from self._store.perform([Find(self._claim.id)])
        yield from self.close()
        if found is not None and self._may_not_be_durable(found):
            found = yield from self._read_durable(found)
        if found is not None and found.token == self._claim.token:
            return Done(found.fence)
        if not held.ours and (found is None or _is_free(found)):
            raise StoreUnavailable("a commit may still be in progress")
        if found is None or _is_free(found):
            self._mark_not_recorded("its commit failed")
        return Refused(found)


def _is_free(record: Record) -> bool:
    """Whether an attempt could run: then it matters which one holds the id."""
    return not _has_ended(record) and not (record.state is State.RUNNING and not record.lapsed)


def _has_ended(record: Record) -> bool:
    return record.state in (State.COMPLETED, State.UNKNOWN) and not record.expired


def _in_flight(claim: Claim) -> Record:
    """Make a record for the transaction that holds the id: running. Which request it is becomes
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


def _problem(reason: str | Exception, recovery: str) -> Problem:
    """Make the problem for the client."""
    if isinstance(reason, Ended):
        afterwards = _AFTERWARDS.get(recovery, "A retry runs it again.")
        return Problem(
            Kind.TRANSACTION_ENDED,
            "The request is not recorded: its handler ended the transaction that was begun for it, "
            "or went on after a deadlock had. What it committed by itself stands, all else is "
            f"undone. {afterwards}",
        )
    if isinstance(reason, Denied):
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
