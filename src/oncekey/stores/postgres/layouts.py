"""Where PostgreSQL stores answers: three layouts, and moving between them under load.

inline       in the row of their claim: least space, least work. The layout of a new database.
separate     in a separate table. Every release can read it.
partitioned  in a table with a partition for each day on which answers expire, dropped as a whole.
             So are steps and stored requests, otherwise in a plain table and in the claim.

A move first sets the new layout. Every write looks it up, one row within its statement: so a change
counts from the next statement on in every process, through every pooler and in callers'
transactions, and no process remembers an old one. Then it moves existing answers, in
batches by id. Reads always look in both places. To resume an interrupted move, run it again. A
move between the two kinds of table passes "inline", so that the table is empty and can be replaced.

Where a record's steps and request are, its claim says: a move changes that in a transaction that
has locked the claim, so an owner that writes its third step during the move cannot put it beside
the other two. A day's partition is dropped when no claim that expired on it is left. If it stayed
for as long as a row of it was needed, one unresolved record would keep a million rows; so what will
expire on another day goes along (`0005_days.sql`).

Releases that do not know a layout must not run while it is in use: they would not find the answers.
The table of migrations keeps them from starting.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib import resources
from typing import Any, TypeVar

from oncekey._core.op import Op, run
from oncekey._core.values import value
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.base import Store
from oncekey.stores.postgres.statements import STATEMENTS
from oncekey.stores.postgres.verbs import Question
from oncekey.stores.sql_batch import RowHeld

T = TypeVar("T")

INLINE, SEPARATE, PARTITIONED = "inline", "separate", "partitioned"
LAYOUTS = (INLINE, SEPARATE, PARTITIONED)
BATCH_ROWS = 500
WAIT_MS = "300"
"""How long to wait for a locked row, while a batch locks others. Shorter than the server's
`deadlock_timeout`, so that a deadlock fails the move and not the other transaction.
"""
WAITS_MAX = 100
MOVERS = 31360989905909115
"""The advisory lock of a move."""
ALONE_TRIES_MAX = 10
"""A tenth of a second apart: the server may not have noticed that the last move has ended."""
OLDEST_READERS = {INLINE: 6, SEPARATE: 1, PARTITIONED: 5}
"""The schema that a release must know to find the answers of a layout."""


@value
class MoveProgress:
    """How far a move has come."""

    to: str
    share: float
    """Of the ids: they are digests, so it is the share of the records too."""
    records: int
    """How many were moved so far."""


Watch = Callable[[MoveProgress | None], None]
"""Called after every batch, and may sleep; with None while waiting for a transaction."""


def layout(store: Store) -> str:
    """Return the layout in which answers are written."""
    with closing(_connect(store)) as connection:
        said: str = run(_read_layout(), connection.ask)[0]
        return said


def move(store: Store, to: str, watch: Watch) -> int:
    """Move a store to a layout; return how many records were moved. Safe to repeat, and beside
    running code that knows layouts. Raises `StoreUnavailable`, `Misuse`.
    """
    if to not in LAYOUTS:
        raise Misuse(f"there is no layout {to!r}, only {', '.join(LAYOUTS)}")
    with closing(_connect(store)) as connection:
        ask = connection.ask
        run(_lock_moves(store), ask)
        moved = 0
        _, has_parts = run(_read_layout(), ask)
        wants_parts = to == PARTITIONED
        if to == INLINE or has_parts != wants_parts:
            moved += _move_all(ask, INLINE, watch)
        if has_parts != wants_parts:
            _wait_for_open_transactions(
                ask, watch
            )  # an old snapshot shows answers in the table to be replaced
            _repeat(partial(_replace_table, wants_parts), ask, watch)
        elif wants_parts and not run(_has_partitions(), ask):
            _repeat(_add_partitions, ask, watch)  # before migration 5 only answers had them
        if to != INLINE:
            moved += _move_all(ask, to, watch)
        return moved


def begin_inline() -> Op[None]:
    """Set the layout of a new database: nothing to move, and no older release uses it."""
    return _set_layout(INLINE, OLDEST_READERS[INLINE])


def _connect(store: Store) -> Any:
    if store.name != "postgres":
        raise Misuse(f"records in {store.name} have one layout: only PostgreSQL has others")
    return store.connect()


# ------------------------------------------------------------------------------------ the parts


def _lock_moves(store: Any) -> Op[None]:
    if store.driver.pgbouncer:
        raise Misuse("a move needs a connection of its own: name the server itself, not PgBouncer")
    for _ in range(ALONE_TRIES_MAX):
        [(ours,)] = yield Question(STATEMENTS["one_mover"], (MOVERS,))
        if ours:
            return
        yield Question("SELECT pg_sleep(0.1)")
    raise StoreUnavailable("another process is changing the layout: wait until it has finished")


def _read_layout() -> Op[tuple[str, bool]]:
    rows = yield Question(STATEMENTS["layout"])
    [(said, has_parts)] = rows
    return said, has_parts


def _set_layout(to: str, oldest_reader: int) -> Op[None]:
    yield Question(STATEMENTS["set_layout"], (to, oldest_reader))


def _move_all(ask: Callable[[Any], Any], to: str, watch: Watch) -> int:
    """Set the layout and move what is in another. Older releases may start when all is moved."""
    run(_set_layout(to, max(OLDEST_READERS.values())), ask)
    _wait_for_open_transactions(ask, watch)
    records, after = 0, b""
    while True:
        last, count = _repeat(partial(_move_batch, to, after), ask, watch)
        records += count
        if last is None:
            break
        after = last
        watch(MoveProgress(to, int.from_bytes(after[:4].ljust(4, b"\0")) / 2**32, records))
    run(_set_layout(to, OLDEST_READERS[to]), ask)
    return records


def _wait_for_open_transactions(ask: Callable[[Any], Any], watch: Watch) -> None:
    """Wait until every transaction that is open now has ended: each may have read the old layout,
    or still see the old data. No lock is held: one on the claims would let a transaction
    through that has not touched them yet, and would wait for vacuum, for hours.
    """
    opened = run(_open_transactions(), ask)
    _repeat(partial(_none_open, opened), ask, watch)


def _open_transactions() -> Op[list[str]]:
    [(opened,)] = yield Question(STATEMENTS["open_transactions"])
    return list(opened)


def _repeat(step: Callable[[], Op[T | None]], ask: Callable[[Any], Any], watch: Watch) -> T:
    """Repeat a step until no transaction blocks it; return its result."""
    for _ in range(WAITS_MAX):
        given = run(step(), ask)
        if given is not None:
            return given
        watch(None)
    raise StoreUnavailable(
        "a transaction that began before, or holds a record, stays open: find it in "
        "pg_stat_activity, then ask for the layout again. Requests go on meanwhile"
    )


def _none_open(opened: list[str]) -> Op[bool | None]:
    [(ended,)] = yield Question(STATEMENTS["none_open"], (opened,))
    return ended or None


def _move_batch(to: str, after: bytes) -> Op[tuple[bytes | None, int] | None]:
    """Move one batch in one transaction: all or nothing, if interrupted."""
    name = "move_into_claims" if to == INLINE else "move_out_of_claims"
    limits = (WAIT_MS, after, BATCH_ROWS)
    yield Question("BEGIN", script=True)
    try:
        [(last, held)] = yield Question(STATEMENTS["hold_for_move"], limits, chore=True)
        if held:
            yield Question(STATEMENTS[name], (list(held),), chore=True)
        yield Question("COMMIT", script=True)
    except RowHeld:
        yield Question("ROLLBACK", script=True)
        return None
    return last, len(held)


def _replace_table(with_parts: bool) -> Op[bool | None]:
    how = "PARTITION BY RANGE (day)" if with_parts else ""
    script = _script("answers").replace("{parts}", how, 2)
    return _carry_out(f"{script};\n{_script('partitioned' if with_parts else 'whole')}")


def _has_partitions() -> Op[bool]:
    [(has_function,)] = yield Question(STATEMENTS["turns_days"])
    return bool(has_function)


def _add_partitions() -> Op[bool | None]:
    return _carry_out(_script("partitioned"))


def _carry_out(script: str) -> Op[bool | None]:
    """Run a script, which is one transaction; None if a row is locked."""
    try:
        yield Question(script, chore=True, script=True)
    except RowHeld:
        return None
    return True


def _script(name: str) -> str:
    folder = resources.files("oncekey.stores.postgres")
    return (folder / f"{name}.sql").read_text("utf-8")
