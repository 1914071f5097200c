"""Planted bugs about atomic mode: rows and answer apart, ids that two have (P1, P2, P4, P6, P9)."""

from __future__ import annotations

from typing import Any

from oncekey._core.op import Op, Pause
from oncekey._core.record import Claim, State
from oncekey._core.verbs import Done, Find, Found, Inserted, Refused, Swap
from oncekey.atomic._transaction import AtomicOperation, Commit, Outside
from simulator.bugs.planting import planted
from simulator.parts import Parts
from simulator.statements import Statements
from simulator.transaction import Transaction

# --------------------------------------------------------------------- together or not at all


@planted(seeds=100)
def atomic_answer_before_commit() -> Parts:
    """The client has its answer, then the commit fails: it was told of rows that do not exist."""

    class Hasty(AtomicOperation):
        def _end(self, swap: Swap) -> Op[Done | Refused]:
            if swap.to is not State.COMPLETED:
                return (yield from super()._end(swap))
            yield from self._write(swap)
            self._open = False  # committed by whoever closes it, later
            return Done(swap.fence)

    return Parts(work=Hasty)


@planted(seeds=100)
def failure_commits_its_rows() -> Parts:
    """A handler that failed half-way leaves the rows of the first half."""

    class Careless(AtomicOperation):
        def _end(self, swap: Swap) -> Op[Done | Refused]:
            if swap.to is State.RELEASED and self._open:
                self._open = False
                yield Commit()
                return Done(swap.fence)
            return (yield from super()._end(swap))

    return Parts(work=Careless)


@planted(seeds=100)
def answer_without_its_rows() -> Parts:
    """A lost connection is replaced by another: the answer is kept, the rows went with the old."""

    class Renewed(AtomicOperation):
        def _write(self, swap: Swap) -> Op[int | None]:
            yield from self._hold()
            return (yield from super()._write(swap))

    return Parts(work=Renewed)


# ----------------------------------------------------------------------------- lost commits


@planted(seeds=500)
def lost_commit_means_failure() -> Parts:
    """No reply to a commit is taken for a failure: the client is told that nothing happened."""

    class Rash(AtomicOperation):
        def _look_up(self) -> Op[Done | Refused]:
            self._mark_not_recorded("its commit failed")
            return (yield from self._refusal())

    return Parts(work=Rash)


@planted(seeds=500)
def lost_commit_looked_up_too_early() -> Parts:
    """Whether a commit happened is asked while it is under way, and nobody waits for its end."""

    class Quick(AtomicOperation):
        def _look_up(self) -> Op[Done | Refused]:
            found = yield Outside(Find(self._claim.id))
            if found is not None and found.token == self._claim.token:
                return Done(found.fence)
            self._mark_not_recorded("its commit failed")
            return Refused(found)

    return Parts(work=Quick)


# ---------------------------------------------------------------------------- who has the id


@planted(seeds=200)
def lock_ends_with_its_statement() -> Parts:
    """The id is given back before the commit: two handlers run it, and one of them in vain."""

    class Forgetful(Statements):
        def _take(self, transaction: Transaction, others: list[Transaction]) -> bool:
            return super()._take(transaction, [])

    return Parts(statements=Forgetful)


@planted(seeds=100)
def lock_outlives_its_transaction() -> Parts:
    """A lock of the session stays with a connection of the pool: its key is in flight for ever."""

    class Clinging(Statements):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._ever: list[Transaction] = []

        def _take(self, transaction: Transaction, others: list[Transaction]) -> bool:
            taken = super()._take(transaction, self._ever)
            self._ever += [transaction] if taken else []
            return taken

    return Parts(statements=Clinging)


@planted(seeds=500)
def look_before_lock_is_trusted() -> Parts:
    """What was committed between the look and the lock is written over: its rows are doubled."""

    class Trusting(Statements):
        def _is_new(self, transaction: Transaction, claim: Claim) -> bool:
            self._store._rows.pop(claim.id, None)
            return True

    return Parts(statements=Trusting)


@planted(seeds=500)
def duplicate_waits() -> Parts:
    """A duplicate waits for as long as the other transaction runs, and holds its connection."""

    class Patient(AtomicOperation):
        def _insert(self) -> Op[Inserted | Found]:
            outcome = yield from super()._insert()
            if isinstance(outcome, Inserted) or outcome.record.token:
                return outcome
            yield Outside(Pause(5.0))
            return (yield from super()._insert())

    return Parts(work=Patient)
