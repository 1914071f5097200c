"""What a statement of an atomic transaction means, and what must hold when it commits.

The statements are the real ones (`stores.postgres.transactions`), with their arguments in their
order; what they ask for is carried out by the store that everybody has. What a transaction writes
stays with it until it commits: then the oracle is told, as if record and answer had been written in
that moment, and the business rows are counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from oncekey._core import lifecycle
from oncekey._core.record import Answer, Claim, Record, State, decode_headers, encode_headers
from oncekey._core.verbs import Done, Find, Insert, Inserted, Verb
from oncekey.stores import sql
from oncekey.stores.batching import Ticket
from oncekey.stores.memory import MemoryStore
from oncekey.stores.postgres import transactions
from oncekey.stores.postgres.verbs import Question
from simulator.coverage import Marks
from simulator.ghost import BODILESS, COMPLETED, GONE, IN_FLIGHT, OVERLONG, UNKNOWN, WHOLE, Note
from simulator.oracle import Oracle
from simulator.task import Task
from simulator.transaction import Asked, Transaction, Write
from simulator.violation import Violation

_NOT_FREE = (IN_FLIGHT, OVERLONG, WHOLE, BODILESS, GONE, UNKNOWN)
_ENDED = (State.COMPLETED, State.UNKNOWN)


class Look(NamedTuple):
    """What a statement saw when it began."""

    brief: bool
    """It does not tell what a record says."""
    record: Record | None
    note: Note


class Statements:
    """What the server does."""

    def __init__(self, store: MemoryStore, oracle: Oracle, marks: Marks) -> None:
        self._store = store
        self._oracle = oracle
        self._marks = marks

    # ------------------------------------------------------------------------- take and look

    def look(self, transaction: Transaction, question: Question) -> Look:
        """The statement's snapshot: it is older than the lock."""
        record_id, _, *mark = question.args
        if mark:
            [transaction.mark] = mark
        task, now = transaction.task, self._store._now()
        [record] = self._perform([Find(record_id)])
        self._oracle.agree(task.ghost, record, task)
        return Look(bool(mark), record, task.ghost.note(task, now))

    def lock(
        self, transaction: Transaction, look: Look, others: list[Transaction]
    ) -> tuple[Any, Note | None]:
        """Try to take the id, for as long as the transaction lasts. Nobody waits for it."""
        record, note, task = look.record, look.note, transaction.task
        if look.brief and record is not None:
            return [(transaction.mark, None)], None  # it looks again
        ended = record is not None and record.state in _ENDED and not record.expired
        ours = not ended and self._take(transaction, others)
        self._oracle.trace.append(0x70 | ours)
        if not ours and note.situation not in _NOT_FREE:  # whoever has the id is in flight
            self._marks.atomic["another has the id"] += 1
            note = note._replace(
                situation=IN_FLIGHT, intent=task.intent, version=task.version, own=False
            )
        return [(transaction.mark, ours) if look.brief else (ours, *_columns(record))], note

    def _take(self, transaction: Transaction, others: list[Transaction]) -> bool:
        taken = any(t.locked and t.id == transaction.id for t in others if t is not transaction)
        transaction.locked = not taken
        return not taken

    # --------------------------------------------------------------------------------- write

    def answer(self, transaction: Transaction, question: Any, others: list[Transaction]) -> Any:
        """Any other statement."""
        if type(question) is Write:
            transaction.business_rows += 1
            return None
        if type(question) is Asked:
            self._may_write(transaction, question.verbs, others)
            return self._within(transaction, question.verbs)
        if question is transactions._MARK:
            return [(transaction.mark,)]
        if question.sql is transactions._INSERT_COMPLETED:
            return self._settle(transaction, question, others)
        raise AssertionError(f"a statement that the simulator does not know: {question.sql}")

    def seen(self, transaction: Transaction, question: Any) -> Note | None:
        """What a statement met that only looks."""
        if type(question) is not Asked or any(type(verb) is not Find for verb in question.verbs):
            return None
        task = transaction.task
        return task.ghost.note(task, self._store._now())

    def _may_write(
        self, transaction: Transaction, verbs: Sequence[Verb], others: list[Transaction]
    ) -> None:
        """A row that another transaction has written would have to be waited for."""
        if all(type(verb) is Find for verb in verbs):
            return
        for other in others:
            if other is not transaction and other.writes and other.id == transaction.id:
                raise Violation("P11", f"{transaction.task} waits for the end of {other.task}")

    def _settle(
        self, transaction: Transaction, question: Question, others: list[Transaction]
    ) -> list[tuple[bool]]:
        mark, retention_s, record_id, token, resource_id, *rest = question.args
        if mark != transaction.mark:
            return []
        status, headers, body, *of_claim, digests = rest
        claim = Claim(*(record_id, token, *of_claim, sql.decode_digests(digests)))
        self._may_write(transaction, [Insert(claim)], others)
        if not self._is_new(transaction, claim):
            self._marks.atomic["another's record at the end"] += 1
            return []
        [inserted] = self._within(transaction, [Insert(claim)])
        complete = lifecycle.complete(
            lifecycle.Held(record_id, inserted.fence, token),
            Answer(status, decode_headers(headers), body),
            retention_s=retention_s,
            resource_id=resource_id,
        )
        self._within(transaction, [complete])
        return [(True,)]

    def _is_new(self, transaction: Transaction, claim: Claim) -> bool:
        """Whether the table has no such id: this decides, not what was seen before."""
        return claim.id not in self._store._rows

    def _within(self, transaction: Transaction, verbs: Sequence[Verb]) -> list[Any]:
        """Carry verbs out on the transaction's own version of the row."""
        kept, record_id = self._store._rows, transaction.id
        committed = kept.get(record_id)
        if transaction.row is not None:
            kept[record_id] = transaction.row
        elif committed is not None:
            kept[record_id] = dataclasses.replace(committed, steps=dict(committed.steps))
        outcomes = self._perform(verbs)
        changed = kept.pop(record_id, None)
        if committed is not None:
            kept[record_id] = committed
        now = self._store._now()
        done = [
            (verb, outcome, now)
            for verb, outcome in zip(verbs, outcomes, strict=True)
            if isinstance(outcome, Done | Inserted)
        ]
        if done:
            transaction.row = changed
            transaction.writes += done
            transaction.task.ghost.held = committed is not None
        return outcomes

    def _perform(self, verbs: Sequence[Verb]) -> list[Any]:
        op = self._store.perform(verbs)
        try:
            next(op)
        except StopIteration as stop:
            outcomes: list[Any] = stop.value
            return outcomes
        raise AssertionError("the memory store asks nothing")

    # -------------------------------------------------------------------------------- commit

    def commit(self, transaction: Transaction) -> None:
        """All of it, or nothing: the record with its answer, and the business rows."""
        task, ghost = transaction.task, transaction.task.ghost
        for verb, outcome, now in transaction.writes:
            self._oracle.applied(Ticket(verb, task), outcome, now, late=True)
        if transaction.row is not None:
            self._store._rows[transaction.id] = transaction.row
        own = ghost.state is COMPLETED and ghost.token == task.claim.token
        answered = bool(transaction.writes) and own
        if transaction.business_rows and not answered:
            raise Violation("P2", f"{task} committed its rows; {ghost} has no answer of it")
        if answered and task.ran and not transaction.business_rows:  # else it is what `ask` gave
            raise Violation("P2", f"{task} committed its answer without its rows")
        if transaction.business_rows:
            _once(task)


def _once(task: Task) -> None:
    book = task.book
    book.effects += 1
    if book.effects > 1 + book.excuses:
        raise Violation("P1", f"{task} has committed rows again: {book.effects} of {task.ghost}")


_NOTHING = (None,) * len(sql.COLUMNS)


def _columns(record: Record | None) -> tuple[Any, ...]:
    """A record as a row, in the order in which the store's SELECT names the columns."""
    if record is None:
        return _NOTHING
    answer = record.answer
    kept = (
        (None, None, None)
        if answer is None
        else (answer.status, encode_headers(answer.headers), answer.body)
    )
    fields = [getattr(record, field.name) for field in dataclasses.fields(Record)]
    fields[11] = sql.encode_digests(record.field_digests)
    fields[12] = record.state.value
    return (*fields[:18], *kept, *fields[19:])


def is_look(question: Any) -> bool:
    """Whether it takes the id, if it can."""
    looks = (transactions._CLAIM, transactions._HOLD)
    return isinstance(question, Question) and question.sql in looks
