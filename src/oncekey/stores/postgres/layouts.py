"""Where PostgreSQL keeps answers: three layouts, and moving from one to another while all goes on.

inline       in the row of their claim: least room, least work. What a new database has.
separate     in a table of their own. What every release can read.
partitioned  in a table with a part for each day on which answers expire, dropped as a whole. And so
             steps and kept requests, which otherwise are in a table without parts and in the claim.

A move first says the new layout, which every write looks up; then it takes along what is
elsewhere, in batches by id. Whoever reads looks in both places all the time. A move that was cut
short is taken up by asking for it again. Between the two kinds of table it goes through "inline":
then the table is empty and can be replaced.

Releases that know nothing of a layout must not run while anything is kept by it: they would find
nothing. The schema's notebook keeps them from starting.
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
"""For a row that somebody holds: a batch holds others meanwhile. Shorter than the server's
`deadlock_timeout`, so that whoever waits for us in turn is not the one who is told.
"""
WAITS_MAX = 100
MOVERS = 31360989905909115
"""The advisory lock of whoever moves."""
ALONE_TRIES_MAX = 10
"""A tenth of a second apart: the server may not have noticed yet that the last mover has gone."""
OLDEST_READERS = {INLINE: 6, SEPARATE: 1, PARTITIONED: 5}
"""The schema that a release must know to find what a layout keeps."""


@value
class Moved:
    """How far a move is."""

    to: str
    share: float
    """Of the ids: they are digests, so it is the share of the records too."""
    records: int
    """Moved by now."""


Watch = Callable[[Moved | None], None]
"""Is told after every batch, and may take a rest; None while a transaction is waited for."""


def layout(store: Store) -> str:
    """The one that answers are written in."""
    with closing(_connect(store)) as connection:
        said: str = run(_known(), connection.ask)[0]
        return said


def move(store: Store, to: str, watch: Watch) -> int:
    """Bring a store into a layout; how many records had to be moved. Safe to repeat, and beside
    running code that knows of layouts. Raises `StoreUnavailable`, `Misuse`.
    """
    if to not in LAYOUTS:
        raise Misuse(f"there is no layout {to!r}, only {', '.join(LAYOUTS)}")
    with closing(_connect(store)) as connection:
        ask = connection.ask
        run(_alone(store), ask)
        moved = 0
        _, has_parts = run(_known(), ask)
        wants_parts = to == PARTITIONED
        if to == INLINE or has_parts != wants_parts:
            moved += _take_along(ask, INLINE, watch)
        if has_parts != wants_parts:
            _outlive(ask, watch)  # an old snapshot shows answers in the table that is to go
            _insist(partial(_replace_table, wants_parts), ask, watch)
        elif wants_parts and not run(_turns_days(), ask):
            _insist(_add_parts, ask, watch)  # only answers had them, before migration 5
        if to != INLINE:
            moved += _take_along(ask, to, watch)
        return moved


def begin_inline() -> Op[None]:
    """For a database that is new: nothing is to be moved, and no older release uses it."""
    return _say(INLINE, OLDEST_READERS[INLINE])


def _connect(store: Store) -> Any:
    if store.name != "postgres":
        raise Misuse(f"records in {store.name} have one layout: only PostgreSQL has others")
    return store.connect()


# ------------------------------------------------------------------------------------ the parts


def _alone(store: Any) -> Op[None]:
    if store.pgbouncer:
        raise Misuse("a move needs a connection of its own: name the server itself, not PgBouncer")
    for _ in range(ALONE_TRIES_MAX):
        [(ours,)] = yield Question(STATEMENTS["one_mover"], (MOVERS,))
        if ours:
            return
        yield Question("SELECT pg_sleep(0.1)")
    raise StoreUnavailable("somebody else is changing the layout: wait until that has ended")


def _known() -> Op[tuple[str, bool]]:
    rows = yield Question(STATEMENTS["layout"])
    [(said, has_parts)] = rows
    return said, has_parts


def _say(to: str, oldest_reader: int) -> Op[None]:
    yield Question(STATEMENTS["set_layout"], (to, oldest_reader))


def _take_along(ask: Callable[[Any], Any], to: str, watch: Watch) -> int:
    """Say the layout and move what is in another. Older releases may come back when all is out."""
    run(_say(to, max(OLDEST_READERS.values())), ask)
    _outlive(ask, watch)
    records, after = 0, b""
    while True:
        last, count = _insist(partial(_batch, to, after), ask, watch)
        records += count
        if last is None:
            break
        after = last
        watch(Moved(to, int.from_bytes(after[:4].ljust(4, b"\0")) / 2**32, records))
    run(_say(to, OLDEST_READERS[to]), ask)
    return records


def _outlive(ask: Callable[[Any], Any], watch: Watch) -> None:
    """Wait until every transaction that is open now has ended: each may have looked the layout up
    before, or still see the database as it was. No lock tells so much, and none is in the way.
    """
    opened = run(_opened(), ask)
    _insist(partial(_none_open, opened), ask, watch)


def _opened() -> Op[list[str]]:
    [(opened,)] = yield Question(STATEMENTS["open_transactions"])
    return list(opened)


def _insist(step: Callable[[], Op[T | None]], ask: Callable[[Any], Any], watch: Watch) -> T:
    """What a step gives, unless a transaction stays in its way for too long."""
    for _ in range(WAITS_MAX):
        given = run(step(), ask)
        if given is not None:
            return given
        watch(None)
    raise StoreUnavailable(
        "a transaction that began before, or holds a record, stays open: see pg_stat_activity for "
        "who it is, then ask for the layout again. All goes on meanwhile"
    )


def _none_open(opened: list[str]) -> Op[bool | None]:
    [(ended,)] = yield Question(STATEMENTS["none_open"], (opened,))
    return ended or None


def _batch(to: str, after: bytes) -> Op[tuple[bytes | None, int] | None]:
    """One transaction: whatever cuts it short, nothing of it has happened or all."""
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


def _turns_days() -> Op[bool]:
    [(has_function,)] = yield Question(STATEMENTS["turns_days"])
    return bool(has_function)


def _add_parts() -> Op[bool | None]:
    return _carry_out(_script("partitioned"))


def _carry_out(script: str) -> Op[bool | None]:
    """All or nothing: a script is one transaction."""
    try:
        yield Question(script, chore=True, script=True)
    except RowHeld:
        return None
    return True


def _script(name: str) -> str:
    folder = resources.files("oncekey.stores.postgres")
    return (folder / f"{name}.sql").read_text("utf-8")
