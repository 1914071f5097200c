"""Heeding the store's notice: whether it is sealed, and whether it has lost its memory.

A process looks before its first claim and from then on every `LOOK_EVERY_S`; in between nothing is
asked. What stands there is explained in `_core.notice`.
"""

from __future__ import annotations

import logging

from oncekey._core.key_age import key_time
from oncekey._core.notice import NOTICE_ID, Amnesia, read_notice
from oncekey._core.record import Record
from oncekey._core.verbs import Find
from oncekey._engine.decisions import Call
from oncekey._system.clock import Clock

_log = logging.getLogger("oncekey")

LOOK_EVERY_S = 10.0
LOOK = Find(NOTICE_ID)


class Notices:
    """What a process knows of the notice of its store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.look_at = float("-inf")
        """Until then nobody looks, by the monotonic clock."""
        self._seen = False
        self.missed = False
        """The store did not answer when it was last asked, and did before."""
        self.amnesia: Amnesia | None = None

    def due(self, now: float, *, runs: bool) -> bool:
        """Whether it is time to look, by the monotonic clock. Who looks for the first time is not
        alone, nor who looks after somebody who could not: until one has seen the notice, nobody may
        go on without. Where it was only missed, that is for those who are about to run.
        """
        if now < self.look_at or (self.missed and not runs):
            return False
        if self.look_at > float("-inf"):
            self.look_at = now + LOOK_EVERY_S
        return True

    def record_miss(self, *, missed: bool = False) -> None:
        """Whoever looked has not seen it, or must not go on. `missed`: there was no answer."""
        self.look_at, self.missed = float("-inf"), missed and self._seen

    def record_look(self, found: Record | None, now: float) -> None:
        """Take note. Raises `StoreUnfit` where this process must not use the store as it does."""
        amnesia = read_notice(found)
        if amnesia is not None and self.amnesia is None:
            _log.warning(
                "the amnesia guard is raised: requests whose keys may have been used before the "
                "store lost records are not run, their outcome is unknown"
            )
        self.amnesia, self.look_at = amnesia, now + LOOK_EVERY_S
        self._seen, self.missed = True, False

    def may_have_forgotten(self, call: Call) -> bool:
        """Whether this call may have run before, and the store has lost what it knew of it."""
        if self.amnesia is None:
            return False
        return self.amnesia.covers(key_time(call.key, call.first_sent), self._clock.wall())
