"""Records in a dictionary: the executable specification that every other store is compared with.

For tests and single processes: its records are gone when the process ends.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import Answer, Claim, Glimpse, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Swap,
    Sweep,
    Tally,
    Verb,
    When,
)
from oncekey._system.clock import Clock, SystemClock
from oncekey.stores.base import Durability, Traits
from oncekey.stores.checks import Examination, Sample, Size, advice, first_by_id


@dataclass(slots=True)
class _Row:
    """A record with deadlines instead of the time left."""

    claim: Claim
    state: State
    fence: int
    token: bytes
    created: float
    lease_until: float
    expires: float
    attempt: int = 1
    lapses: int = 0
    beat: int = 0
    no_effect: bool = False
    answer: Answer | None = None
    resource_id: str | None = None
    replays: int = 0
    conflicts: int = 0
    steps: dict[str, Step] = field(default_factory=dict)

    def is_lapsed(self, now: float) -> bool:
        return self.state is State.RUNNING and self.lease_until <= now

    def is_abandoned(self, now: float) -> bool:
        return self.is_lapsed(now) and self.claim.recovery != "rerun"

    def is_overlong(self, now: float) -> bool:
        return self.state is State.RUNNING and self.lease_until > now + self.claim.lease_s * 1.001

    def holds(self, when: When, now: float) -> bool:
        match when:
            case When.ANY:
                return True
            case When.LAPSED:
                return self.is_lapsed(now)
            case When.EXPIRED:
                return self.expires <= now
            case When.OVERLONG:
                return self.is_overlong(now)

    def record(self, now: float, *, body: bool = True) -> Record:
        claim, answer = self.claim, self.answer
        if answer is not None and not body:
            answer = dataclasses.replace(answer, body=None)
        return Record(
            id=claim.id,
            token=self.token,
            tenant=claim.tenant,
            operation=claim.operation,
            key=claim.key,
            fingerprint=claim.fingerprint,
            fingerprint_version=claim.fingerprint_version,
            lease_s=claim.lease_s,
            retention_s=claim.retention_s,
            recovery=claim.recovery,
            schema_version=claim.schema_version,
            field_digests=claim.field_digests,
            state=self.state,
            fence=self.fence,
            attempt=self.attempt,
            lapses=self.lapses,
            beat=self.beat,
            no_effect=self.no_effect,
            answer=answer,
            resource_id=self.resource_id,
            age_s=now - self.created,
            lease_left_s=self.lease_until - now,
            expires_in_s=self.expires - now,
            replays=self.replays,
            conflicts=self.conflicts,
        )


class MemoryStore:
    """Records in a dictionary, safe for threads."""

    name = "memory"
    traits = Traits(in_process=True)
    transactions = None
    outbox = None
    durability = Durability(False, False, False, "kept in this process only")

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._now = self._clock.boot
        self._rows: dict[bytes, _Row] = {}
        # The highest fence that a sweep ever removed: new records start above it, so that no fence
        # is used twice.
        self._fence_floor = 0
        self._mutex = threading.Lock()

    def group(self, verb: Verb) -> Hashable:
        return "all"

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        yield from ()
        with self._mutex:
            now = self._now()
            return [_HANDLERS[type(verb)](self, verb, now) for verb in verbs]

    def prepare(self) -> Op[None]:
        yield from ()

    def migrate(self) -> Op[list[str]]:
        yield from ()
        return []

    def examine(self) -> Op[Examination]:
        yield from ()
        found = advice(
            "durability",
            self.durability.note,
            "a restart forgets everything, and another process knows nothing of it",
            "Use sqlite:///keys.db, or a database server, for anything but tests",
        )
        return Examination("memory", [found], Size(None, len(self._rows)))

    def now(self) -> Op[float | None]:
        yield from ()
        return None

    def sample(self, limit: int) -> Op[Sample]:
        return first_by_id(self, limit)

    def connect(self) -> MemoryConnection:
        return MemoryConnection()

    async def aconnect(self) -> AsyncMemoryConnection:
        return AsyncMemoryConnection()

    def _insert(self, verb: Insert, now: float) -> Inserted | Found:
        claim = verb.claim
        row = self._rows.get(claim.id)
        if row is not None:
            return Found(row.record(now))
        lease_until = now + claim.lease_s
        fence = self._fence_floor + 1
        self._rows[claim.id] = _Row(
            claim=claim,
            state=State.RUNNING,
            fence=fence,
            token=claim.token,
            created=now,
            lease_until=lease_until,
            expires=lease_until + claim.retention_s,
        )
        return Inserted(fence)

    def _swap(self, verb: Swap, now: float) -> Done | Refused:
        row = self._rows.get(verb.id)
        if row is None:
            return Refused(None)
        expected = (verb.state, verb.fence, verb.token)
        if (row.state, row.fence, row.token) != expected or not row.holds(verb.when, now):
            return Refused(row.record(now))
        if verb.fresh:
            row.created, row.replays, row.conflicts = now, 0, 0
            row.answer, row.resource_id = None, None
            row.steps.clear()
        if verb.state is State.UNKNOWN and verb.to is State.RELEASED:
            row.steps = {name: step for name, step in row.steps.items() if step.result is not None}
        if verb.claim is not None:
            row.claim = verb.claim
        self._apply(row, verb, now)
        return Done(row.fence)

    def _apply(self, row: _Row, verb: Swap, now: float) -> None:
        row.state = verb.to
        row.fence += verb.raise_fence
        row.token = verb.new_token or row.token
        row.lease_until = now + (verb.lease_s or 0.0)
        row.expires = row.lease_until + verb.retention_s
        row.beat += 1
        row.attempt = row.attempt if verb.attempt is None else verb.attempt
        row.lapses = row.lapses if verb.lapses is None else verb.lapses
        row.no_effect = verb.no_effect
        if verb.to is not State.RUNNING and row.claim.request is not None:
            row.claim = dataclasses.replace(row.claim, request=None)
        if verb.to is State.COMPLETED:
            row.answer, row.resource_id = verb.answer, verb.resource_id

    def _find(self, verb: Find, now: float) -> Record | None:
        row = self._rows.get(verb.id)
        return None if row is None else row.record(now)

    def _peek(self, verb: Peek, now: float) -> Glimpse | None:
        row = self._rows.get(verb.id)
        return None if row is None else Glimpse(row.state, row.fence, row.lease_until - now)

    def _append_step(self, verb: AppendStep, now: float) -> Done | Refused:
        row = self._rows.get(verb.id)
        if row is None:
            return Refused(None)
        if (row.state, row.fence, row.token) != (State.RUNNING, verb.fence, verb.token):
            return Refused(row.record(now))
        known = row.steps.get(verb.step.name)
        if known is None or known.result is None or verb.step.result is not None:
            row.steps[verb.step.name] = verb.step
        return Done(row.fence)

    def _steps(self, verb: Steps, now: float) -> list[Step]:
        row = self._rows.get(verb.id)
        return [] if row is None else list(row.steps.values())

    def _read_request(self, verb: Requested, now: float) -> bytes | None:
        row = self._rows.get(verb.id)
        return None if row is None else row.claim.request

    def _tally(self, verb: Tally, now: float) -> None:
        for record_id, count in verb.replays.items():
            if row := self._rows.get(record_id):
                row.replays += count
        for record_id, count in verb.conflicts.items():
            if row := self._rows.get(record_id):
                row.conflicts += count

    def _due(self, verb: Due, now: float) -> list[bytes]:
        due = [
            (row.lease_until if row.state is State.RUNNING else row.expires, record_id)
            for record_id, row in self._rows.items()
            if (
                row.is_abandoned(now)
                if verb.abandoned
                else row.is_lapsed(now) or row.expires <= now
            )
        ]
        return [record_id for _, record_id in sorted(due)[: verb.limit]]

    def _sweep(self, verb: Sweep, now: float) -> int:
        expired = [record_id for record_id, row in self._rows.items() if row.expires <= now]
        for record_id in expired[: verb.limit]:
            self._fence_floor = max(self._fence_floor, self._rows.pop(record_id).fence)
        return min(len(expired), verb.limit)

    def _scan(self, verb: Scan, now: float) -> list[Record]:
        ids = sorted(
            record_id
            for record_id, row in self._rows.items()
            if record_id > verb.after
            and verb.state in (None, row.state)
            and verb.tenant in (None, row.claim.tenant)
        )
        return [self._rows[record_id].record(now, body=False) for record_id in ids[: verb.limit]]

    def _count(self, verb: Count, now: float) -> dict[State, int]:
        counts = dict.fromkeys(State, 0)
        for row in self._rows.values():
            counts[row.state] += 1
        return counts

    def _purge(self, verb: Purge, now: float) -> int:
        rows = [
            row
            for row in self._rows.values()
            if row.claim.tenant == verb.tenant and row.state is not State.RUNNING and row.claim.key
        ][: verb.limit]
        for row in rows:
            row.claim = dataclasses.replace(row.claim, key="", field_digests={})
            row.resource_id = None
            if row.answer is not None:
                row.answer = Answer(row.answer.status, (), None)
            for name, step in row.steps.items():
                row.steps[name] = dataclasses.replace(step, result=None)
        return len(rows)


_HANDLERS: dict[type, Callable[[MemoryStore, Any, float], Any]] = {
    Insert: MemoryStore._insert,
    Swap: MemoryStore._swap,
    Find: MemoryStore._find,
    Peek: MemoryStore._peek,
    AppendStep: MemoryStore._append_step,
    Steps: MemoryStore._steps,
    Requested: MemoryStore._read_request,
    Tally: MemoryStore._tally,
    Due: MemoryStore._due,
    Sweep: MemoryStore._sweep,
    Scan: MemoryStore._scan,
    Count: MemoryStore._count,
    Purge: MemoryStore._purge,
}


class MemoryConnection:
    """Never asked: `MemoryStore.perform` yields no question."""

    def ask(self, question: Any) -> Any:
        raise AssertionError(f"the memory store asks nothing, got {question!r}")

    def close(self) -> None:
        """Nothing to close."""


class AsyncMemoryConnection:
    """The same for async callers."""

    async def ask(self, question: Any) -> Any:
        raise AssertionError(f"the memory store asks nothing, got {question!r}")

    async def close(self) -> None:
        """Nothing to close."""
