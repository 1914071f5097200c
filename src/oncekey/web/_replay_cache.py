"""A cache of the replays that this process sent lately: many retries query the store once.

A completed record does not change for as long as it is kept (P3), so a request that comes again
byte for byte, a moment after its replay, gets that replay once more. Two things end it before its
time, a purge and a run for a newer schema version (`stale="rerun"`): a process that has just
replayed the old answer can do so for at most `seconds` longer.
"""

from __future__ import annotations

from typing import NamedTuple

from oncekey._core.record import Answer
from oncekey._core.validation import must_be_seconds
from oncekey._engine.decisions import Replay

RECENT_S = 5.0
BODY_BYTES_MAX = 4_096
"""Of a request, and of an answer; longer ones are looked up in the store each time."""
REPLAYS_MAX = 4_096
REPLAY_BYTES_MAX = 16_384
"""Of a request and its answer, with all that is neither's body: not every server limits that."""

Asked = tuple[tuple[str | bytes, ...], float]
"""All of a request that its answer may depend on, as it came: nothing is taken to mean the same.
And when it came.
"""


class Known(NamedTuple):
    """A replay that is surely still what the store would say."""

    replay: Replay
    sent: Answer
    ago_s: float


class Recent:
    """A bounded memory of replays, for `seconds` each; 0 remembers nothing."""

    def __init__(self, seconds: float = RECENT_S) -> None:
        must_be_seconds({"recent_s": seconds})
        self.seconds = seconds
        # Two halves: when the newer one is full it becomes the older one, which is dropped whole.
        # Threads may cross here: at worst a replay is forgotten early.
        self._newer: dict[tuple[str | bytes, ...], tuple[Replay, Answer, float]] = {}
        self._older: dict[tuple[str | bytes, ...], tuple[Replay, Answer, float]] = {}

    def keep(self, asked: Asked, replay: Replay, sent: Answer) -> None:
        """Remember what the store was asked for and what was sent."""
        whole, at = asked
        if self.seconds <= 0 or len(sent.body or b"") > BODY_BYTES_MAX:
            return
        if sum(map(len, whole)) + _bytes_of(sent) > REPLAY_BYTES_MAX:
            return
        if len(self._newer) >= REPLAYS_MAX // 2:
            self._newer, self._older = {}, self._newer
        self._newer[whole] = replay, sent, at

    def find(self, asked: Asked) -> Known | None:
        """What the same request was sent a moment ago."""
        whole, now = asked
        kept = self._newer.get(whole) or self._older.get(whole)
        if kept is None:
            return None
        replay, sent, at = kept
        ago_s = now - at
        fresh = ago_s < self.seconds and ago_s < replay.expires_in_s
        return Known(replay, sent, ago_s) if fresh else None


def _bytes_of(sent: Answer) -> int:
    return len(sent.body or b"") + sum(len(name) + len(text) for name, text in sent.headers)
