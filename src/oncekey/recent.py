"""Recent: completed records that this process has lately read, so that a crowd of retries asks the
store once.

A completed record does not change for as long as it is kept (P3), so what was read a moment ago may
be replayed again. Two things end it before its time, a purge and a run for a newer schema version
(`stale="rerun"`): a process that has just replayed the old answer can do so for at most `seconds`
longer.
"""

from __future__ import annotations

from oncekey.core.record import Record

RECENT_S = 5.0
ANSWER_BYTES_MAX = 4_096
RECORDS_MAX = 4_096


class Recent:
    """A bounded memory of completed records, for `seconds` each; 0 remembers nothing."""

    def __init__(self, seconds: float = RECENT_S) -> None:
        self._seconds = seconds
        # Two halves: when the newer one is full it becomes the older one, which is dropped whole.
        # Threads may cross here: at worst a record is forgotten early.
        self._newer: dict[bytes, tuple[Record, float]] = {}
        self._older: dict[bytes, tuple[Record, float]] = {}

    def keep(self, record: Record, now: float) -> None:
        """Remember a completed record that was read from the store at `now`."""
        answer = record.answer
        if self._seconds <= 0 or answer is None or len(answer.body or b"") > ANSWER_BYTES_MAX:
            return
        if len(self._newer) >= RECORDS_MAX // 2:
            self._newer, self._older = {}, self._newer
        self._newer[record.id] = record, now

    def find(self, record_id: bytes, now: float) -> tuple[Record, float] | None:
        """A record that is surely still what the store would say, and how long ago it said so."""
        kept = self._newer.get(record_id) or self._older.get(record_id)
        if kept is None:
            return None
        record, read_at = kept
        ago_s = now - read_at
        return (record, ago_s) if ago_s < min(self._seconds, record.expires_in_s) else None
