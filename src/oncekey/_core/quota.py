"""Quotas: what one tenant may have kept at a time. And how that is counted by time.

Nobody counts what expires. A record is counted where it will: in a *span* of time, of an eighth to
a quarter of its retention. What a tenant has kept is the sum over the spans that have not passed.
So a count goes by itself, with its span, and a record counts for at most that much longer than it
is there. Records of very different retentions have spans of different lengths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oncekey._core.framing import as_bytes
from oncekey._core.problems import Kind, Problem
from oncekey._core.reserved_records import reserved_id
from oncekey._core.values import value
from oncekey.errors import Misuse

OPERATION = "oncekey/quota"
SPANS_MAX = 8
"""Of one length, within one retention; and one more has begun."""
RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one tenant may have kept at a time; None sets no limit.

    >>> Quota(records_max=100_000).bytes_max
    """

    records_max: int | None = None
    """Records that have not expired, of whatever state; tombstones do not count."""
    bytes_max: int | None = None
    """Bytes of kept answers: their bodies and headers."""

    def __post_init__(self) -> None:
        limits: dict[str, object] = {"records_max": self.records_max, "bytes_max": self.bytes_max}
        for name, limit in limits.items():
            if limit is not None and not (isinstance(limit, int) and limit > 0):
                raise Misuse(f"Quota({name}={limit!r}): takes a whole number, more than 0")
        if self.records_max is None and self.bytes_max is None:
            raise Misuse("Quota(records_max=…, bytes_max=…): set at least one of them")


@value
class Usage:
    """Records, and bytes of answers."""

    records: int = 0
    answer_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.records + other.records, self.answer_bytes + other.answer_bytes)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.records - other.records, self.answer_bytes - other.answer_bytes)


NOTHING = Usage()


def check_quota(quota: Quota, used: Usage) -> Problem | None:
    """Why a tenant that uses so much may not begin anything more."""
    if quota.records_max is not None and used.records >= quota.records_max:
        what = f"{quota.records_max} records of recent requests"
    elif quota.bytes_max is not None and used.answer_bytes >= quota.bytes_max:
        what = f"{quota.bytes_max} bytes of kept answers"
    else:
        return None
    return Problem(
        Kind.OVER_QUOTA,
        f"This account has {what} here, as many as it may have. Retry with the same key when some "
        "of them have expired.",
        retryable=True,
        retry_after_s=RETRY_AFTER_S,
    )


def is_nearly_used(quota: Quota, known: Usage, since: Usage, part: float) -> bool:
    """Whether what was used since is that part of what was left, or more."""
    limits = (
        (quota.records_max, known.records, since.records),
        (quota.bytes_max, known.answer_bytes, since.answer_bytes),
    )
    return any(
        limit is not None and added > 0 and added >= (limit - before) * part
        for limit, before, added in limits
    )


# ------------------------------------------------------------------------------------- spans


@value
class Span:
    """A stretch of time in which records expire: the how many-th of its length since 1970."""

    length_s: float
    number: int

    @property
    def end(self) -> float:
        """Seconds since 1970."""
        return (self.number + 1) * self.length_s


def length_s(retention_s: float) -> float:
    """Of the spans for records of this retention: a power of two, so that few lengths serve all."""
    return 2.0 ** math.ceil(math.log2(retention_s / SPANS_MAX))


def span_of(retention_s: float, now_wall: float) -> Span:
    """Where a record is counted that begins now."""
    length = length_s(retention_s)
    return Span(length, int((now_wall + retention_s) // length))


def spans_ahead(length: float, now_wall: float) -> list[Span]:
    """Where records of one length may be counted that have not expired."""
    first = int(now_wall // length)
    return [Span(length, number) for number in range(first, first + SPANS_MAX + 1)]


def account_id(tenant: str, span: Span) -> bytes:
    """The id of the record that holds a tenant's count of one span."""
    length = repr(span.length_s).encode()
    return reserved_id(OPERATION, as_bytes(tenant), length, b"%d" % span.number)
