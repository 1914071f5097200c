"""Answer only what is on disk: on MySQL and MariaDB without a binary log.

There InnoDB shows a commit to others before it is on disk. The transaction itself is acknowledged
once it is there; but another process that reads it meanwhile would answer from data that a crash in
the same moment loses, and so would the same process if it timed out and asks again. So a batch that
found something its caller relies on commits a small write before it answers: the redo log is one
file, and a commit that is on disk has all earlier ones there. With a binary log no commit is seen
before it is on disk, and none of this is needed.

A caller relies on a record that has ended, because it is replayed; and on one that runs under the
verb's own token, because its handler is about to run. For any other record nothing depends on it,
or a swap follows, which is a later commit itself. A step that is appended again changes nothing,
and would commit nothing: its question says `flushed`.

A record that ended long ago is on disk, and its replay writes nothing. A record only tells when it
expires. It ended `retention_s` before that, or, if retention counts from the first use, began then:
hence an hour, and not the seconds that a disk takes. A record that was renewed, released or taken
over may have ended any time after it began, and counts as new; so does an unknown one, which is
kept for longer.
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
"""Insert and remove a row that no other transaction sees, since a transaction that changes nothing
commits nothing. The row sorts after those of all records, where no caller's transaction locks a
gap, and is named by its whole key: so this never waits.
"""
FLUSH = Question((), atomic=True, flushed=True)


def answer_durably(verbs: Sequence[Verb], op: Op[list[Any]]) -> Op[list[Any]]:
    """Return the outcomes once what callers rely on is on disk."""
    outcomes = yield from op
    if any(map(_is_relied_on, verbs, outcomes)):
        yield FLUSH
    return outcomes


def _is_relied_on(verb: Verb, outcome: Any) -> bool:
    record = outcome.record if isinstance(outcome, Found | Refused) else outcome
    if not isinstance(record, Record):
        return False
    if record.state is State.RUNNING:
        return record.token == _own_token(verb)
    ended = record.state in (State.COMPLETED, State.UNKNOWN)
    return ended and not _ended_long_ago(record)


def _ended_long_ago(record: Record) -> bool:
    at_once = record.beat <= 1  # nothing happened to it but its end
    return at_once and record.retention_s - record.expires_in_s >= NEW_S


def _own_token(verb: Verb) -> bytes | None:
    if isinstance(verb, Insert):
        return verb.claim.token
    return verb.new_token if isinstance(verb, Swap) else None
