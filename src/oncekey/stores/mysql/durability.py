"""Nothing is said that is not on disk: on MySQL and MariaDB without a binary log.

There InnoDB shows a commit to others first, and brings it to disk then. Whoever made it is answered
once it is there. Another who reads it meanwhile would be answered from what a crash in the same
moment forgets; so would the same worker, if it lost patience and asks again. So a batch that found
something that its caller relies on commits a little write of its own before it says so: the redo
log is one file, and a commit that is on disk has all before it there. With a binary log nobody sees
a commit before it is on disk, and nothing of this is needed.

What is relied on: a record that has ended, for it is replayed; and one that runs under the verb's
own token, for its handler is about to run. Of what else is found nothing is said that matters, or a
swap follows, which is a later commit itself; so is the swap of whoever reads another's steps. A
step that is appended again changes nothing, and would commit nothing: its question says `flushed`.

A record that ended long ago is on disk, and its replay writes nothing. Of one that ended it is only
known when it expires. `retention_s` before that it ended, or, where retention counts from the first
use, began: hence an hour, and not the seconds that a disk takes. What was renewed, given back or
taken over may have ended any time after it began, and counts as new; as does an unknown one, which
is kept for longer.
"""

# ruff: noqa: S608  (there is no value in them)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import Record, State
from oncekey._core.verbs import Found, Insert, Refused, Swap, Verb
from oncekey.stores.mysql.statements import Question

NEW_S = 3600.0

_OURS = "CONCAT(x'ffffffffffffffff', CONNECTION_ID())"
WRITES = (
    "INSERT INTO oncekey_steps (id, generation, name, position, digest) "
    f"VALUES ({_OURS}, 0, '', 0, '')",
    f"DELETE FROM oncekey_steps WHERE id = {_OURS} AND generation = 0 AND name = ''",
)
"""A row that nobody else ever sees. What changes nothing would not be committed. It stands behind
those of all records, where no caller's transaction holds a gap, and is named by its whole key: so
this waits for nobody.
"""
FLUSH = Question((), atomic=True, flushed=True)


def before_said(verbs: Sequence[Verb], op: Op[list[Any]]) -> Op[list[Any]]:
    """The same outcomes, once what is relied on of them is on disk."""
    outcomes = yield from op
    if any(map(_relies, verbs, outcomes)):
        yield FLUSH
    return outcomes


def _relies(verb: Verb, outcome: Any) -> bool:
    record = outcome.record if isinstance(outcome, Found | Refused) else outcome
    if not isinstance(record, Record):
        return False
    if record.state is State.RUNNING:
        return record.token == _own_token(verb)
    ended = record.state in (State.COMPLETED, State.UNKNOWN)
    return ended and not _ended_long_ago(record)


def _ended_long_ago(record: Record) -> bool:
    at_once = record.beat <= 1  # its end was all that became of it
    return at_once and record.retention_s - record.expires_in_s >= NEW_S


def _own_token(verb: Verb) -> bytes | None:
    if isinstance(verb, Insert):
        return verb.claim.token
    return verb.new_token if isinstance(verb, Swap) else None
