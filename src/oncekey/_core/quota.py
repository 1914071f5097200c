"""Quotas: how much one tenant may have stored at a time, and how that is counted.

Nothing is counted when it expires. A record is counted in the *span* of time in which it will
expire; a span is an eighth to a quarter of its retention. What a tenant has stored is the sum over
the spans that have not passed. So counts vanish with their spans, and a record counts at most one
span longer than it exists. Records of very different retentions have spans of different lengths.
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
"""Spans of one length within one retention; one more has begun."""
RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one tenant may have stored at a time; None sets no limit.

    >>> Quota(records_max=100_000).bytes_max
    """

    records_max: int | None = None
    """Records that have not expired, in any state; tombstones do not count."""
    bytes_max: int | None = None
    """Bytes of stored responses: bodies and headers."""

    def __post_init__(self) -> None:
        limits: dict[str, object] = {"records_max": self.records_max, "bytes_max": self.bytes_max}
        for name, limit in limits.items():
            if limit is not None and not (isinstance(limit, int) and limit > 0):
                raise Misuse(f"Quota({name}={limit!r}): takes a whole number, more than 0")
        if self.records_max is None and self.bytes_max is None:
            raise Misuse("Quota(records_max=…, bytes_max=…): set at least one of them")


@value
class Usage:
    """Records, and bytes of responses."""

    records: int = 0
    answer_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.records + other.records, self.answer_bytes + other.answer_bytes)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.records - other.records, self.answer_bytes - other.answer_bytes)


NOTHING = Usage()


def check_quota(quota: Quota, used: Usage) -> Problem | None:
    """Return why a tenant that uses this much may not begin a request; None if it may."""
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
    """Return whether at least `part` of what was left has been used since."""
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
    """A stretch of time in which records expire; spans of one length are numbered since 1970."""

    length_s: float
    number: int

    @property
    def end(self) -> float:
        """Seconds since 1970."""
        return (self.number + 1) * self.length_s


def length_s(retention_s: float) -> float:
    """Return the length of spans for this retention: a power of two, so that few serve all."""
    return 2.0 ** math.ceil(math.log2(retention_s / SPANS_MAX))


def span_of(retention_s: float, now_wall: float) -> Span:
    """Return the span in which a record that begins now is counted."""
    length = length_s(retention_s)
    return Span(length, int((now_wall + retention_s) // length))


def spans_ahead(length: float, now_wall: float) -> list[Span]:
    """Return the spans of one length in which records that have not expired may be counted."""
    first = int(now_wall // length)
    return [Span(length, number) for number in range(first, first + SPANS_MAX + 1)]


def account_id(tenant: str, span: Span) -> bytes:
    """Return the id of the record with a tenant's count of one span."""
    length = repr(span.length_s).encode()
    return reserved_id(OPERATION, as_bytes(tenant), length, b"%d" % span.number)
