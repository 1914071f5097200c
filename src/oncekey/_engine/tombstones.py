"""Fading: when the retention of an answer is over, and its record goes on as a tombstone, its
content is blanked.

No store has an index of that moment, and looking at all records for the few whose time has come
would cost more than they take. So what will have to be blanked is listed when it is completed: in
memory at first, then every minute in records of oncekey's own, one list for all that end within the
same ten minutes. Where such a list stands is known from the time alone, so any process finds it
when that time has come.

A list is a hint. Each record is judged by itself, by the store's clock, and one that is listed but
was rolled back, purged or run anew is left alone. What a process had only in memory when it died is
listed nowhere: it is kept until its tombstone ends, but no retry gets it (`_core.lifecycle`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from oncekey._core import lifecycle
from oncekey._core.batched import batched
from oncekey._core.record import Answer, Record, State
from oncekey._core.reserved_records import reserved_claim, reserved_id
from oncekey._core.retention import answer_left_s
from oncekey._core.verbs import Find, Insert, Inserted
from oncekey._system.clock import Clock
from oncekey.stores.base import AGAIN
from oncekey.stores.connection import StoreConnection

_log = logging.getLogger("oncekey")

OPERATION = "oncekey/fading"
EVERY_S = 60.0
SPAN_S = 600.0
"""Answers that end within one such span are listed together."""
MARGIN_S = 60.0
"""A span is looked at so long after its end: clocks differ."""
LOOK_BACK_S = 86_400.0
"""Lists are kept so long after their span, for the case that nobody was there."""
NOTED_MAX = 100_000
LIST_IDS_MAX = 1_000
LISTS_MAX = 10_000
TOGETHER = 20
"""Records that are read at once: each may bring a whole answer."""
_ID_BYTES = 32

Pause = Callable[[], bool]
"""Lets others have the store for a moment; True when it is time to stop."""


class Tombstones:
    """What this process has to blank, and what it knows of others."""

    every_s = EVERY_S

    def __init__(self, clock: Clock, token: Callable[[], bytes]) -> None:
        self._clock = clock
        self._token = token
        self._mutex = threading.Lock()
        self._noted: dict[int, list[bytes]] = {}
        self._count = 0
        self._missed = 0
        self._next_list: dict[int, int] = {}
        self._next_span: int | None = None
        """The first that may not be blanked yet; None until something was noted."""

    def note(self, record_id: bytes, left_s: float) -> None:
        """The answer of this record ends in `left_s`."""
        span = self._span(left_s)
        with self._mutex:
            if self._count >= NOTED_MAX:
                self._missed += 1
                return
            self._noted.setdefault(span, []).append(record_id)
            self._count += 1
            if self._next_span is None:
                self._next_span = self._span(-LOOK_BACK_S)
            self._next_span = min(self._next_span, span)  # a clock may have been set back

    def work(self, line: StoreConnection, pause: Pause) -> None:
        """Write down what is noted, then blank what is due."""
        self.finish(line)
        if self._next_span is None:
            return
        # Of spans before that no lists are left: a clock that is set ahead by years passes them.
        first = max(self._next_span, self._span(-LOOK_BACK_S))
        for span in range(first, self._span(-MARGIN_S)):
            if not self._blank_span(line, span, pause):
                return
            self._next_span = span + 1
            self._next_list.pop(span, None)

    def _span(self, from_now_s: float) -> int:
        return int((self._clock.wall() + from_now_s) // SPAN_S)

    # ------------------------------------------------------------------------------------ lists

    def finish(self, line: StoreConnection) -> None:
        """Write down what is noted: it must outlive this process."""
        with self._mutex:
            noted, self._noted = self._noted, {}
            missed, self._count, self._missed = self._missed, 0, 0
        if missed:
            _log.warning(
                "%d answers were completed faster than they could be listed: their content is "
                "blanked only when their tombstones end",
                missed,
            )
        try:
            for span in sorted(noted):
                while ids := noted[span][:LIST_IDS_MAX]:
                    self._list(line, span, ids)
                    del noted[span][:LIST_IDS_MAX]
        finally:  # whatever could not be written is for the next time
            with self._mutex:
                for span, ids in noted.items():
                    self._noted.setdefault(span, [])[:0] = ids
                    self._count += len(ids)

    def _list(self, line: StoreConnection, span: int, ids: list[bytes]) -> None:
        """Write one list, after those that others have written for the same span."""
        retention_s = (span + 1) * SPAN_S + LOOK_BACK_S - self._clock.wall()
        for number in range(self._next_list.get(span, 0), LISTS_MAX):
            token, list_id = self._token(), _list_id(span, number)
            claim = reserved_claim(list_id, OPERATION, token, retention_s)
            [outcome] = line.perform([Insert(claim)])
            if isinstance(outcome, Inserted):
                held = lifecycle.Held(list_id, outcome.fence, token)
                answer = Answer(200, (), b"".join(ids))
                line.perform([lifecycle.complete(held, answer, retention_s=retention_s)])
                self._next_list[span] = number + 1
                return
        _log.warning("the answers of one span fill %d lists: the rest is not listed", LISTS_MAX)

    # --------------------------------------------------------------------------------- blanking

    def _blank_span(self, line: StoreConnection, span: int, pause: Pause) -> bool:
        """Blank what is listed for a span; False if it was not finished."""
        for number in range(LISTS_MAX):
            [found] = line.perform_all([Find(_list_id(span, number))])
            if found is None:
                break
            if found is AGAIN or found.state is not State.COMPLETED or not _body(found):
                continue  # somebody was quicker, or died while writing it; or nobody can read it
            for ids in batched(sorted(set(_ids(_body(found)))), TOGETHER):
                self._blank(line, ids)
                if pause():
                    return False
            line.perform([lifecycle.fade(found, new_token=self._token())])
        return True

    def _blank(self, line: StoreConnection, ids: list[bytes]) -> None:
        due: list[Record] = []
        found = line.perform_all([Find(record_id) for record_id in ids])
        for record_id, record in zip(ids, found, strict=True):
            if record is AGAIN:  # it cannot be read: perhaps later, with the secret that it needs
                self.note(record_id, 0.0)
                continue
            if record is None or record.state is not State.COMPLETED or record.expired:
                continue
            if (left_s := answer_left_s(record)) > 0:
                self.note(record.id, left_s)
            elif record.key or record.answer.body is not None:
                due.append(record)
        outcomes = line.perform_all(
            [lifecycle.fade(record, new_token=self._token()) for record in due]
        )
        for record, outcome in zip(due, outcomes, strict=True):
            if outcome is AGAIN:  # somebody holds it at this moment
                self.note(record.id, 0.0)


def _list_id(span: int, number: int) -> bytes:
    return reserved_id(OPERATION, b"%d" % span, b"%d" % number)


def _body(listed: Record) -> bytes:
    return (listed.answer and listed.answer.body) or b""


def _ids(body: bytes) -> Iterator[bytes]:
    return (body[at : at + _ID_BYTES] for at in range(0, len(body), _ID_BYTES))
