"""Tombstones: that it was done is remembered for longer than what was answered.

Under a policy with `tombstone_s`, a store keeps a completed record for its retention and that much
longer. How much of what is left is tombstone stands with the answer, in a line before its headers
that no header can be: so a change of the policy changes nothing of what is kept. When no more than
that is left, the answer is over, whether or not it was blanked yet (`_engine.tombstones`): a retry
is told that it was done, and does not run.

Only what is completed has a tombstone. What was released may run again, and what is running or
unknown is remembered as such for as long.
"""

from __future__ import annotations

from oncekey._core.record import TOMBSTONE, Answer, Record

_BLANK = b" blank"
"""Stands behind the seconds of an answer that was blanked."""


def with_tombstone(answer: Answer, tombstone_s: float) -> Answer:
    """An answer as it is kept where its record outlives it by `tombstone_s`."""
    if not tombstone_s:
        return answer
    return Answer(answer.status, (_line(tombstone_s), *answer.headers), answer.body)


def bare(answer: Answer) -> Answer:
    """The answer as it was given."""
    if not _marked(answer):
        return answer
    return Answer(answer.status, answer.headers[1:], answer.body)


def tombstone_s(record: Record) -> float:
    """For how long a record outlives its answer."""
    answer = record.answer
    if answer is None or not _marked(answer):
        return 0.0
    return float(answer.headers[0][1].removesuffix(_BLANK))


def answer_left_s(record: Record) -> float:
    """Until the answer is over: then, if the record is still there, it is a tombstone."""
    return record.expires_in_s - tombstone_s(record)


def is_over(record: Record) -> bool:
    """Whether nobody gets the answer any more. What was blanked is over for good, also if the
    store's clock is set back.
    """
    answer = record.answer
    blanked = answer is not None and _marked(answer) and answer.headers[0][1].endswith(_BLANK)
    return blanked or answer_left_s(record) <= 0


def blank(answer: Answer) -> Answer:
    """All that a tombstone keeps of an answer."""
    if not _marked(answer):
        return Answer(answer.status, (), None)
    name, seconds = answer.headers[0]
    return Answer(answer.status, ((name, seconds.removesuffix(_BLANK) + _BLANK),), None)


def _marked(answer: Answer) -> bool:
    return bool(answer.headers) and answer.headers[0][0] == TOMBSTONE


def _line(tombstone_s: float) -> tuple[bytes, bytes]:
    return TOMBSTONE, repr(float(tombstone_s)).encode()
