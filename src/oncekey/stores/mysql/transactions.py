"""What atomic mode asks of MySQL and MariaDB, within the transaction that holds the business rows
too.

Neither has a lock that belongs to a transaction and to no row. So there is a table of ids in which
a transaction inserts a row and removes it again: until it ends, whichever way, the row is its own,
and nobody else ever sees it. Who wants the same row is told that it is held, and nothing of the
records is locked meanwhile. Should a caller be interrupted between the two and commit all the same,
its row stays. It holds nothing: whoever comes next takes it for one of its own, and removes it.

Nobody is to wait for such a row. MariaDB can be told so for a single statement. MySQL cannot, of an
INSERT: there the statement looks before, by a read that does not wait, and what was inserted since
that look is waited for at least a second, which is the least that this server counts. A read that
locks what is not there would keep others from inserting beside it under REPEATABLE READ, so where
the transaction is a caller's nothing looks before, and on MySQL that second is the rule.

The look at the record comes before the id is taken, so it may miss what was committed in between.
It decides nothing: the unique id of the records does.

Nothing outlasts the transaction. The mark, a savepoint with the name of the attempt, tells whether
the handler, or a deadlock, has ended it.
"""

# ruff: noqa: S608  (every value in a statement is a `literal`)

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from oncekey._core.op import Op
from oncekey._core.record import Claim, Record, State
from oncekey._core.verbs import Swap
from oncekey.errors import StoreUnavailable
from oncekey.stores.mysql.statements import CLOCK, Question, Value, later, literal, micros
from oncekey.stores.mysql.writes import answer_row, claim_row, records
from oncekey.stores.sql_batch import RowHeld
from oncekey.stores.way import Held, Way

READ_COMMITTED = Question(("SET TRANSACTION ISOLATION LEVEL READ COMMITTED",))
"""For the transaction that begins with the next statement, and no other."""

_TAKE = "INSERT INTO oncekey_held (id) VALUES ({id}) ON DUPLICATE KEY UPDATE id = oncekey_held.id"
_LOOK_AND_TAKE = (
    "INSERT INTO oncekey_held (id) SELECT {id} FROM DUAL "
    "WHERE NOT EXISTS (SELECT 1 FROM oncekey_held h WHERE h.id = {id} FOR UPDATE NOWAIT) "
    "ON DUPLICATE KEY UPDATE id = oncekey_held.id"
)
_LET_GO = "DELETE FROM oncekey_held WHERE id = {id}"


_UNDOING = (1205, 1213)
"""Error codes of a lock wait timeout and a deadlock."""
_TOLD_AS = "OperationalError"
"""How every driver of MySQL, and Django, calls the class of these. Others may have such a number
for another reason: a `KeyError` of an id.
"""


class TransactionOver(StoreUnavailable):
    """There is no such savepoint: the transaction that set it has ended."""


def _mark(claim: Claim) -> str:
    return f"oncekey_{claim.token.hex()}"


def _hold(claim: Claim, *, callers: bool) -> Op[Held]:
    found = (yield from records([claim.id])).get(claim.id)
    if found is not None and _ended(found):
        return Held(False, found)
    given, mark = literal(claim.id), _mark(claim)
    take = _TAKE if callers else _LOOK_AND_TAKE
    statements = (f"SAVEPOINT {mark}", take.format(id=given), _LET_GO.format(id=given))
    try:
        yield Question(statements, at_once=True)
    except RowHeld:
        if callers:  # with innodb_rollback_on_timeout their rows are gone, and they must hear of it
            yield Question((f"RELEASE SAVEPOINT {mark}",))
        return Held(False, found)
    return Held(True, found)


def _ended(record: Record) -> bool:
    return record.state in (State.COMPLETED, State.UNKNOWN) and not record.expired


def is_ours(claim: Claim) -> Op[bool]:
    """Whether the transaction is still the one that took the id."""
    mark = _mark(claim)
    try:
        yield Question((f"RELEASE SAVEPOINT {mark}", f"SAVEPOINT {mark}"))
    except TransactionOver:
        return False
    return True


def settle(claim: Claim, complete: Swap) -> Op[bool]:
    """Write a record that did not exist, completed. False if there is one after all, be it one that
    this transaction cannot see, or if the transaction is not the one that took the id.
    """
    if not (yield from is_ours(claim)):
        return False
    columns = _completed(claim, complete, "f.removed + 1")
    source = f"SELECT {', '.join(columns.values())} FROM oncekey_fences f"
    return (yield from _insert(claim, columns, source))


def _settle_in(claim: Claim, complete: Swap) -> Op[bool]:
    """The same in a transaction that may be REPEATABLE READ: there a statement that writes would
    lock the fences that it reads, and nobody could sweep until the caller's commit. They are read
    before, and need not be the newest: a fence is never presented without its token.
    """
    if not (yield from is_ours(claim)):
        return False
    [fences] = yield Question(("SELECT removed + 1 FROM oncekey_fences",))
    [(fence,)] = fences.rows
    columns = _completed(claim, complete, literal(int(fence)))
    return (yield from _insert(claim, columns, f"VALUES ({', '.join(columns.values())})"))


def _insert(claim: Claim, columns: Iterable[str], source: str) -> Op[bool]:
    *_, after = yield Question(
        (
            f"INSERT INTO oncekey_claims ({', '.join(f'`{name}`' for name in columns)}) {source} "
            "ON DUPLICATE KEY UPDATE id = oncekey_claims.id",
            f"SELECT token FROM oncekey_claims WHERE id = {literal(claim.id)}",
        )
    )
    return [tuple(row) for row in after.rows] == [(claim.token,)]


def _completed(claim: Claim, complete: Swap, fence: str) -> dict[str, str]:
    """Columns of `oncekey_claims`, as expressions."""
    row: dict[str, Value] = {"id": claim.id, "token": claim.token, **claim_row(claim)}
    for name in ("lease_us", "expires_us", "request"):  # only of what runs
        del row[name]
    values = {name: literal(given) for name, given in {**row, **answer_row(complete)}.items()}
    moments = {"created": CLOCK, "expires": later(str(micros(complete.retention_s)))}
    fences = dict.fromkeys(("fence", "generation"), fence)
    counts = {"attempt": "1", "lapses": "0", "beat": "0", "no_effect": "0"}
    return {**values, **moments, **fences, **counts, "state": "'completed'"}


def undoes(error: BaseException) -> bool:
    """Whether a deadlock is behind it, or a wait that was too long, which can undo as much."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        classes = (each.__name__ for each in type(cause).__mro__)
        if cause.args and cause.args[0] in _UNDOING and _TOLD_AS in classes:
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


WAY = Way(partial(_hold, callers=False), is_ours, settle, undoes)
"""In a transaction of atomic mode, which is READ COMMITTED."""
CALLERS_WAY = Way(partial(_hold, callers=True), is_ours, _settle_in, undoes)
"""In a transaction of a caller's."""
