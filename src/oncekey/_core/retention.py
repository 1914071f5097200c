"""How long a record is remembered: the retention that a client asks for, and tombstones.

A client that will retry for a week says so with its first try, and one that gives up after an hour
need not be remembered for a day. The operation's policy sets the limits. If a client asks for too
little, it gets the shortest, which can only help. If it asks for too much, the request is refused
before it runs: a client that counts on a week must not be remembered for a day without noticing.

A tombstone remembers that a request was done for longer than its response. Under a policy with
`tombstone_s`, a store keeps a completed record for its retention and that much longer. How much of
the rest is tombstone is stored with the response, in a line before its headers that no header can
be, so a later change of the policy changes nothing of what is stored. When only the tombstone is
left, the response is over, whether or not it was blanked yet (`_engine.tombstones`): a retry learns
that the request was done, and does not run.

Only completed records have a tombstone. A released record may run again, and a running or unknown
one is remembered as such for as long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from oncekey._core.problems import Kind, Problem
from oncekey._core.record import TOMBSTONE, Answer, Record

REQUEST_HEADER = "idempotency-retention"
_SECONDS = re.compile(rb"[0-9]{1,10}")


def requested_retention_s(lines: Sequence[bytes], limits: tuple[float, float]) -> float | Problem:
    """Return the retention that the header lines ask for, within limits; or why it is refused."""
    shortest_s, longest_s = limits
    value = lines[0].strip(b" \t") if len(lines) == 1 else b""
    if not _SECONDS.fullmatch(value):
        return Problem(
            Kind.MALFORMED_REQUEST,
            "Send one header Idempotency-Retention, with the seconds for which this request may "
            "still be retried, such as 86400.",
        )
    retention_s = float(value)
    if retention_s > longest_s:
        return Problem(
            Kind.MALFORMED_REQUEST,
            f"The header Idempotency-Retention asks for more than {longest_s:g} seconds, the "
            "longest that this operation is remembered. Ask for no more, and do not retry after "
            "that.",
        )
    return max(retention_s, shortest_s)


# ------------------------------------------------------------------------------------- tombstones


_BLANK = b" blank"
"""Follows the seconds on a response that was blanked."""


def with_tombstone(answer: Answer, tombstone_s: float) -> Answer:
    """Return the response as it is stored, if its record outlives it by `tombstone_s`."""
    if not tombstone_s:
        return answer
    return Answer(answer.status, (_line(tombstone_s), *answer.headers), answer.body)


def without_tombstone(answer: Answer) -> Answer:
    """Return the response as the handler gave it."""
    if not _has_tombstone(answer):
        return answer
    return Answer(answer.status, answer.headers[1:], answer.body)


def tombstone_s(record: Record) -> float:
    """Return for how long a record outlives its response."""
    answer = record.answer
    if answer is None or not _has_tombstone(answer):
        return 0.0
    return float(answer.headers[0][1].removesuffix(_BLANK))


def answer_left_s(record: Record) -> float:
    """Return how long the response can still be replayed; after that a tombstone is left."""
    return record.expires_in_s - tombstone_s(record)


def is_tombstone(record: Record) -> bool:
    """Return whether the response is over. A blanked one stays so if the clock is set back."""
    answer = record.answer
    if answer is not None and _has_tombstone(answer) and answer.headers[0][1].endswith(_BLANK):
        return True
    return answer_left_s(record) <= 0


def blank_answer(answer: Answer) -> Answer:
    """Return all that a tombstone keeps of a response."""
    if not _has_tombstone(answer):
        return Answer(answer.status, (), None)
    name, seconds = answer.headers[0]
    return Answer(answer.status, ((name, seconds.removesuffix(_BLANK) + _BLANK),), None)


def _has_tombstone(answer: Answer) -> bool:
    return bool(answer.headers) and answer.headers[0][0] == TOMBSTONE


def _line(tombstone_s: float) -> tuple[bytes, bytes]:
    return TOMBSTONE, repr(float(tombstone_s)).encode()
