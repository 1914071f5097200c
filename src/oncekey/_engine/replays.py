"""Answers from a record that another attempt ended: the stored response, or why there is none."""

from __future__ import annotations

import logging
from collections.abc import Collection

from oncekey import events
from oncekey._core import fingerprint as fingerprints
from oncekey._core import refusals
from oncekey._core.lifecycle import Action
from oncekey._core.op import Offload, Op
from oncekey._core.policy import Policy
from oncekey._core.printable import printable
from oncekey._core.record import Answer, Record
from oncekey._core.retention import answer_left_s, without_tombstone
from oncekey._engine.counters import TallyCounters
from oncekey._engine.decisions import Call, Refuse, Replay
from oncekey._engine.reports import Reports

_log = logging.getLogger("oncekey")


class Replays:
    """Answers requests without running anything."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self.counters = TallyCounters()

    def answer_from(
        self, record: Record, action: Action, call: Call, policy: Policy
    ) -> Replay | Refuse:
        """What a client gets that is told about a record without running anything."""
        match action:
            case Action.REPLAY:
                return self.replay(record, record.answer)
            case Action.UPCAST:
                return self._upcast(record, policy)
            case Action.STALE:
                return Refuse(refusals.stale_answer(record, policy.schema_version))
            case Action.MISMATCH:
                return Refuse(refusals.mismatch(_differing_fields(record, call)))
            case Action.UNKNOWN:
                return Refuse(refusals.outcome_unknown())
            case Action.GONE:
                return Refuse(refusals.key_expired())
            case Action.FACT_ONLY:
                return Refuse(refusals.answer_not_kept(record))
            case Action.NEWER:
                return Refuse(refusals.newer_record())
            case _:
                return Refuse(refusals.in_flight(record))

    def _upcast(self, record: Record, policy: Policy) -> Replay | Refuse:
        """The kept answer in the version of now. What is kept stays as it is."""
        old, new = record.schema_version, policy.schema_version
        kept, upcasts = record.answer, policy.upcasts
        if kept is None or upcasts is None:
            raise AssertionError(f"nothing to upcast: {record.id.hex()}")
        try:
            answer = upcasts.convert(without_tombstone(kept), old, new)
        except Exception:  # the function is the application's
            _log.exception(
                "an answer of %s cannot be upcast from version %d to %d; retries are refused until "
                "the function is put right",
                printable(record.operation),
                old,
                new,
            )
            return Refuse(refusals.upcast_failed(record, new))
        return self.replay(record, answer)

    def replay(self, record: Record, answer: Answer | None, ago_s: float = 0.0) -> Replay:
        """`answer` is the record's, read `ago_s` ago, as this client gets it: counted, and told to
        whoever listens.
        """
        if answer is None:
            raise AssertionError(f"a completed record without an answer: {record.id.hex()}")
        self.counters.count(self.counters.replays, record.id)
        if self._reports.hooks:
            self._reports.emit(
                events.Replayed,
                record,
                status=answer.status,
                first_attempt_age_s=record.age_s + ago_s,
                attempt=record.attempt,
                earlier_replays=record.replays,
            )
        return Replay(without_tombstone(answer), answer_left_s(record) - ago_s, record)


def compare_request(record: Record, call: Call) -> Op[fingerprints.Comparison]:
    """Whether the record is of this request: by the rules of the release that wrote it."""
    now = call.fingerprint
    if record.fingerprint_version < now.version and now.earlier is not None:
        earlier: Collection[bytes] = yield Offload(now.earlier)
        return fingerprints.compare_earlier(record.fingerprint, earlier)
    return fingerprints.compare(record.fingerprint_version, record.fingerprint, now)


def _differing_fields(record: Record, call: Call) -> tuple[str, ...]:
    return tuple(fingerprints.differing_fields(record.field_digests, call.field_digests))
