"""Counters that are written behind: they inform operators and decide nothing."""

from __future__ import annotations


class TallyCounters:
    """Replays and conflicts counted in this process, to be written behind. Bounded; what is over
    the bound is not counted.
    """

    IDS_MAX = 10_000

    def __init__(self) -> None:
        self.replays: dict[bytes, int] = {}
        self.conflicts: dict[bytes, int] = {}

    def count(self, counts: dict[bytes, int], record_id: bytes) -> None:
        if record_id in counts or len(counts) < self.IDS_MAX:
            counts[record_id] = counts.get(record_id, 0) + 1

    def take(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """What was counted since the last time."""
        replays, conflicts = self.replays, self.conflicts
        self.replays, self.conflicts = {}, {}
        # Copies: a thread that is just counting may still change what it had in its hands.
        return replays.copy(), conflicts.copy()
