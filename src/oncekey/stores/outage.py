"""An outage: told to the log once when it begins, with its reason, and once when it is over.

Whoever is refused meanwhile learns that the store does not answer, and not why: that is for the
operator, and a line for every request would bury it.
"""

from __future__ import annotations

import logging

from oncekey.core.printable import printable
from oncekey.errors import StoreUnavailable

_log = logging.getLogger("oncekey")
REASON_CHARS_MAX = 1000


class Outage:
    """Whether one connection's questions are answered."""

    __slots__ = ("_lasts", "_who")

    def __init__(self, who: str = "the store") -> None:
        self._who = who
        self._lasts = False

    def noticed(self, error: StoreUnavailable) -> None:
        if not self._lasts:
            self._lasts = True
            reason = printable(" ".join(str(error).split()), REASON_CHARS_MAX)
            _log.warning("%s does not answer: %s", self._who, reason)

    def over(self) -> None:
        if self._lasts:
            self._lasts = False
            _log.warning("%s answers again", self._who)
