"""The oracle at the store: judges every write as it is carried out, against the ghosts.

It checks the promises that live in the store: one owner (P1), nothing stale is accepted (P2), kept
answers do not change (P3), nothing is taken over too early or too late (P6, P8), a repeated write
has the same outcome (P9), nothing live is swept (P10), batches are as promised (P11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncekey._core.policy import Policy
from oncekey._core.record import Record, State
from oncekey._core.retention import without_tombstone
from oncekey._core.verbs import (
    AppendStep,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Refused,
    Requested,
    Steps,
    Swap,
    Sweep,
    When,
)
from oncekey._system.clock import Clock
from oncekey.stores.batching import Ticket
from simulator import expiry, recovery, steps
from simulator.coverage import Marks
from simulator.faults import Faults
from simulator.ghost import ABSENT, COMPLETED, RELEASED, RUNNING, UNKNOWN, Ghost, Note
from simulator.kernel import Kernel, Process
from simulator.moves import name_of, tell
from simulator.scenario import Intent, Scenario
from simulator.schema import fate
from simulator.task import Task
from simulator.timeline import Timeline
from simulator.upgrade import reads
from simulator.violation import Violation

RENEWAL_S_MAX = 2.0
"""How long a renewal may be on its way."""

_STATES = {
    State.RUNNING: RUNNING,
    State.COMPLETED: COMPLETED,
    State.RELEASED: RELEASED,
    State.UNKNOWN: UNKNOWN,
}
_CODES = {Insert: 1, Swap: 2, Find: 3, Peek: 4, Sweep: 5, AppendStep: 6, Steps: 7}
_OUTCOMES = {Inserted: 1, Found: 2, Done: 3, Refused: 4}


class Oracle:
    """Sees everything that the store is asked and answers."""

    def __init__(
        self,
        kernel: Kernel,
        scenario: Scenario,
        faults: Faults,
        marks: Marks,
        timeline: Timeline,
        store_clock: Clock,
    ) -> None:
        self._kernel = kernel
        self.store_clock = store_clock
        self._scenario = scenario
        self._faults = faults
        self._marks = marks
        self._timeline = timeline
        self._watchers = Process("oracle")
        self.ghosts: dict[tuple[str, ...], Ghost] = {}
        self.trace = bytearray()
        self.was_clock_set = False
        """Ages that the store tells are of no use then."""

    def ghost(self, intent: Intent, policy: Policy) -> Ghost:
        """The record that this request is about."""
        scope = intent[:3] if policy.scope == "operation" else (intent.tenant, intent.key)
        ghost = self.ghosts.get(scope)
        if ghost is None:
            ghost = self.ghosts[scope] = Ghost(scope)
        return ghost

    def lease_left_s(self, task: Task) -> float | None:
        """How long the store will keep others away from this task's record; None if it cannot be
        said: it is not the owner any more, or the store's clock was set.
        """
        ghost = task.ghost
        owner = ghost.state is RUNNING and ghost.token == task.claim.token
        if not owner or self.was_clock_set:
            return None
        return ghost.lease_until - self.store_clock.boot()

    def clock_was_set(self) -> None:
        self.was_clock_set = True

    def sent(self, tickets: list[Ticket[Task]]) -> None:
        """A batch leaves its process."""
        for ticket in tickets:
            ticket.waiter.asks += 1
        if len(tickets) == 1:
            return
        self._marks.batches += 1
        ids = [t.verb.id for t in tickets if isinstance(t.verb, Insert | Swap)]
        if len(set(ids)) != len(ids):
            raise Violation("P1", "two verbs of one batch change the same id: both could win")
        if ids != sorted(ids):
            raise Violation("P11", "a batch is not in the order of ids: two could deadlock")

    def applied(self, ticket: Ticket[Task], outcome: Any, now: float, late: bool) -> Note | None:
        """The store carried out a verb: check it, and say what the asker met that matters to it."""
        verb, task = ticket.verb, ticket.waiter
        self._timeline.applied(task, verb, outcome, late)
        kind = type(verb)
        trace = self.trace
        trace.append(_CODES.get(kind, 0) << 4 | task.worker.index)
        trace.append(_OUTCOMES.get(type(outcome), 0))
        if isinstance(verb, Insert):
            self._insert(task, outcome, now, late)
            if type(outcome) is Inserted:
                return None
        elif isinstance(verb, Swap):
            self._swap(task, verb, outcome, now, late)
            kept = verb.claim is not None or verb.when is When.ANY
            if type(outcome) is Done and kept and verb.to is not State.UNKNOWN:
                return None
        elif kind is Find:
            self.agree(task.ghost, outcome, task)
        elif kind is Sweep:
            expiry.swept(self.ghosts.values(), outcome, now)
            return None
        elif isinstance(verb, AppendStep):
            steps.kept(task.ghost, task, verb, outcome)
            return None
        elif kind is Steps:
            steps.told(task.ghost, task, outcome)
            return None
        elif kind is Due:
            recovery.told(list(self.ghosts.values()), len(outcome), now)
            return None
        elif kind is Requested:
            recovery.requested(task.ghost, task, outcome)
            return None
        elif kind is not Peek:
            return None
        return task.ghost.note(task, now)

    # -------------------------------------------------------------------------------- insert

    def _insert(self, task: Task, outcome: Any, now: float, late: bool) -> None:
        ghost = task.ghost
        if isinstance(outcome, Inserted):
            if ghost.state is not ABSENT:
                raise Violation("P1", f"{task} inserted {ghost}, which was there and {ghost.state}")
            self._raises(ghost, task, outcome.fence)
            self._begin_anew(ghost, now)
            self._grant(task, outcome.fence, now, late)
            return
        self.agree(ghost, outcome.record, task)
        if ghost.token == task.claim.token and self._faults.last_at < task.started_at:
            raise Violation("P11", f"{task} asks for {ghost} again, which it was given")

    def agree(self, ghost: Ghost, record: Record | None, task: Task) -> None:
        """What the store returns is what was written."""
        if record is None:
            same = ghost.state is ABSENT
        else:
            same = (
                _STATES[record.state] is ghost.state
                and record.fence == ghost.fence
                and record.token == ghost.token
                and expiry.same_answer(ghost, record)
                and record.lapses == ghost.lapses
                and record.attempt == ghost.attempt
                and record.schema_version == ghost.schema
            )
        if not same:
            found = "nothing" if record is None else tell(record)
            differs = record is not None and not expiry.same_answer(ghost, record)
            promise = {ABSENT: "P5", COMPLETED: "P3"}.get(ghost.state, "P2")
            raise Violation(
                "P10" if record is None else promise,
                f"{task} found {found}; {ghost} is {tell(ghost)}"
                + (", with another answer" if differs else ""),
            )

    def _raises(self, ghost: Ghost, task: Task, fence: int) -> None:
        if fence <= ghost.fence_high:
            raise Violation(
                "P2", f"{task} was given fence {fence}; {ghost} had {ghost.fence_high} before"
            )

    def _grant(self, task: Task, fence: int, now: float, late: bool) -> None:
        task.ghost.grant(task, fence, now, self._kernel.now)
        if task.over and not late:
            self.watch_orphan(task)

    # ---------------------------------------------------------------------------------- swap

    def _swap(self, task: Task, verb: Swap, outcome: Any, now: float, late: bool) -> None:
        ghost = task.ghost
        current = verb.fence == ghost.fence and verb.token == ghost.token
        meant = current and _STATES[verb.state] is ghost.state
        if isinstance(outcome, Refused):
            if meant and self._holds(ghost, verb.when, now):
                raise Violation(
                    "P9", f"{task}: {name_of(verb)} was refused, though nothing spoke against it"
                )
            self.agree(ghost, outcome.record, task)
        else:
            name = name_of(verb)
            if ghost.state is ABSENT:
                raise Violation("P2", f"{task}: {name} changed {ghost}, which is not there")
            if not current:
                raise Violation(
                    "P2",
                    f"{task}: {name} was accepted with fence {verb.fence}; {ghost} has fence "
                    f"{ghost.fence} and another owner",
                )
            if not meant:
                raise Violation(
                    "P3" if ghost.state is COMPLETED else "P2",
                    f"{task}: {name} was accepted; {ghost} is {ghost.state}",
                )
            self._marks.transitions[name] += 1
            task.wrote = task.wrote if name == "renew" else name  # which may come late
            _ACCEPTED[name](self, task, verb, outcome, now, late)

    @staticmethod
    def _holds(ghost: Ghost, when: When, now: float) -> bool:
        match when:
            case When.ANY:
                return True
            case When.LAPSED:
                return ghost.lease_until <= now
            case When.EXPIRED:
                return ghost.expires <= now
            case When.OVERLONG:
                return ghost.overlong(now)

    def _renew(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        ran_s = self._kernel.now - ghost.claimed_at
        if task.ran and ran_s > task.policy.run_s_max + RENEWAL_S_MAX and not late:
            raise Violation("P11", f"{task} is renewed, though it has hung for {ran_s:.1f} s")
        since_s = self._kernel.now - ghost.renewed_at
        # Whose handler leaves a thread behind is renewed at once.
        calm = self._faults.last_at < task.started_at and not task.leftover_until
        if ghost.renewed_at and since_s < ghost.lease_s / 5 and calm:
            raise Violation("P11", f"{task} is renewed again after {since_s:.3f} s")
        ghost.renewed_at = self._kernel.now
        self._extend(ghost, now)

    def _shorten(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        if not task.ghost.overlong(now):
            raise Violation("P8", f"{task}: shortened a lease that was not too long")
        self._extend(task.ghost, now)
        task.shortened = True

    def _lapse(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        self._left_nothing(task)
        if task.due != "ask":
            raise Violation("P6", f"{task}: ended its lease of {ghost}, {_is_due(task)}")
        ghost.lease_until = now
        ghost.expires = now + verb.retention_s

    @staticmethod
    def _extend(ghost: Ghost, now: float) -> None:
        ghost.lease_until = now + ghost.lease_s
        ghost.expires = ghost.lease_until + ghost.retention_s

    def _left_nothing(self, task: Task) -> None:
        """Nobody is given a record beside a thread that still works for it."""
        if task.leftover_until > self._kernel.now and task.life == task.worker.life:
            raise Violation("P1", f"{task} gives {task.ghost} back, and a thread of it still runs")

    def _complete(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        if task.due != "stored":
            raise Violation("P6", f"{task}: completed {ghost}, {_is_due(task)}")
        kept = verb.answer and without_tombstone(verb.answer)
        if kept is None or kept != task.answer:
            raise Violation("P3", f"{task}: kept another answer than the handler gave")
        tombstone_s = task.policy.tombstone_s
        retention_s = verb.retention_s - tombstone_s
        left_s = task.policy.retention_s
        wrong = abs(retention_s - left_s) > 0.001
        if self._scenario.retention_from == "first use":
            since_s = self._kernel.now - task.ended_at
            left_s += ghost.first_use - (now - since_s)
            too_long = retention_s > max(left_s + 0.001, 1.0)
            too_short = retention_s < left_s - ghost.lease_s and self._faults.last_at < 0.0
            wrong = not self.was_clock_set and (too_long or too_short)
        if wrong:
            raise Violation("P3", f"{task}: kept for {retention_s} s, not {left_s} s")
        task.recorded = True
        expiry.kept(ghost, task.answer, verb, tombstone_s, now)

    def _release(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        self._left_nothing(task)
        if task.ran and task.due not in ("free", "retry"):
            raise Violation("P6", f"{task}: released {ghost}, {_is_due(task)}")
        if task.must_ask or (ghost.owner is not None and ghost.owner.must_ask):
            raise Violation("P6", f"{task}: released {ghost}, and nobody was asked about it")
        if task.ran and task.due == "retry":
            ghost.spoiled = True
            ghost.book.excuses += task.effects
        if verb.no_effect is ghost.spoiled:
            how = "without effect" if verb.no_effect else "after failure"
            raise Violation("P7", f"{task}: released {ghost} {how}, and that is not what happened")
        ghost.state = RELEASED
        expiry.given_back(task, verb, now)

    def _take_over(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        self._lapsed(task, "took over", now)
        declared = (ghost.recovery, task.policy.recovery)
        if _blocked(ghost, task.policy):
            raise Violation("P6", f"{task}: runs {ghost} again after a lapse, against {declared}")
        if ghost.lapses + 1 >= task.policy.lapses_max:
            raise Violation("P6", f"{task}: runs {ghost} again after {ghost.lapses + 1} lapses")
        if ghost.intent != task.intent or not reads(task.version, ghost.version):
            raise Violation("P5", f"{task}: took {ghost} over from another request")
        task.must_ask = "ask" in declared
        ghost.book.excuses += not task.must_ask
        ghost.attempt += 1
        ghost.lapses += 1
        ghost.spoiled = True
        self._raises(ghost, task, outcome.fence)
        self._grant(task, outcome.fence, now, late)

    def _lapsed(self, task: Task, what: str, now: float) -> None:
        ghost, owner = task.ghost, task.ghost.owner
        if ghost.lease_until > now:
            raise Violation("P1", f"{task}: {what} {ghost}, whose lease is live")
        healthy = (
            owner is not None
            and not owner.over
            and owner.life == owner.worker.life
            and owner.wrote != "lapse"
            and self._faults.last_at < owner.started_at
            and self._kernel.now < ghost.claimed_at + owner.policy.run_s_max - ghost.lease_s
        )
        if healthy:
            raise Violation("P1", f"{task}: {what} {ghost} from {owner}, which was in good health")

    def _doubt(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        self._lapsed(task, "doubted", now)
        worn_out = ghost.lapses + 1 >= task.policy.lapses_max
        if not (_blocked(ghost, task.policy) or worn_out):
            raise Violation("P6", f"{task}: declared {ghost} unknown, against {ghost.recovery}")
        self._raises(ghost, task, outcome.fence)
        ghost.state = UNKNOWN
        ghost.token = task.claim.token
        ghost.fence = ghost.fence_high = outcome.fence
        ghost.lapses += 1
        ghost.spoiled = True
        ghost.lease_until = now
        ghost.expires = now + expiry.unknown_s(task.policy)

    def _give_up(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        refused = task.orphan and task.due == "free"
        late = expiry.began_late(task) or (task.must_ask and expiry.is_late(task))
        if task.due != "unknown" and not refused and not late:
            raise Violation("P6", f"{task}: gave {ghost} up, {_is_due(task)}")
        self._raises(ghost, task, outcome.fence)
        ghost.state, ghost.token, ghost.spoiled = UNKNOWN, verb.new_token or b"", True
        ghost.fence = ghost.fence_high = outcome.fence
        ghost.lease_until, ghost.expires = now, now + expiry.unknown_s(task.policy)

    def _run_again(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        same = ghost.intent == task.intent and reads(task.version, ghost.version)
        if ghost.spoiled and not same:
            raise Violation("P5", f"{task}: runs {ghost}, which another request has begun")
        ghost.attempt = ghost.attempt + 1 if ghost.spoiled else 1
        self._raises(ghost, task, outcome.fence)
        self._grant(task, outcome.fence, now, late)

    def _start_over(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        if ghost.expires > now:
            raise Violation("P3", f"{task}: started {ghost} over, which is not expired")
        self._raises(ghost, task, outcome.fence)
        self._begin_anew(ghost, now)
        self._grant(task, outcome.fence, now, late)

    def _begin_anew(self, ghost: Ghost, now: float) -> None:
        remembered = self._scenario.dated and not self.was_clock_set
        ghost.begin_anew(now, self._kernel.now, remembered=remembered)

    def _fade(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        self._raises(task.ghost, task, outcome.fence)
        expiry.faded(task, verb, outcome.fence, now, clock_was_set=self.was_clock_set)
        task.ghost.fence_high = outcome.fence

    def _run_anew(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        if ghost.intent != task.intent or not reads(task.version, ghost.version):
            raise Violation("P5", f"{task}: runs {ghost} anew, which another request has begun")
        if fate(ghost.schema, ghost.repeatable, task.policy) != "rerun":
            raise Violation("P3", f"{task}: runs {ghost} anew, though its answer is not stale")
        ghost.book.excuses += 1
        ghost.book.steps = {}
        ghost.first_use = now
        ghost.attempt += 1
        ghost.lapses = 0
        ghost.spoiled = True
        self._raises(ghost, task, outcome.fence)
        self._grant(task, outcome.fence, now, late)

    def _resolve(self, task: Task, verb: Swap, outcome: Done, now: float, late: bool) -> None:
        ghost = task.ghost
        self._raises(ghost, task, outcome.fence)
        ghost.state, ghost.faded = RELEASED if task.answer is None else COMPLETED, False
        if task.answer is None:
            ghost.book.clear()
        ghost.answer = task.answer
        ghost.token = verb.new_token or ghost.token
        ghost.fence = ghost.fence_high = outcome.fence
        ghost.lease_until = now
        ghost.answer_until = ghost.expires = now + verb.retention_s

    # --------------------------------------------------------------------------------- orphans

    def watch_orphan(self, task: Task) -> None:
        """A claim was granted whose request is over: released soon, unless something is wrong."""
        at = self._kernel.now + 0.75 * task.policy.lease_s
        self._kernel.at(at, self._watchers, self._check_orphan, task, self._kernel.now)

    def _check_orphan(self, task: Task, since: float) -> None:
        ghost = task.ghost
        still = ghost.state is RUNNING and ghost.token == task.claim.token
        # Given back, nobody would finish it, or it would run unasked.
        left = ghost.lapses and ghost.recovery in ("resume", "ask")
        if still and not left and self._faults.last_at < since and task.life == task.worker.life:
            raise Violation("P7", f"{task} was refused and still holds {ghost}")


def _blocked(ghost: Ghost, policy: Policy) -> bool:
    """Whether a lapsed attempt must not run again, nor can anybody be asked about it."""
    declared = (ghost.recovery, policy.recovery)
    return "block" in declared or ("ask" in declared and policy.recovery != "ask")


def _is_due(task: Task) -> str:
    return f"where what is due is: {task.due or 'nothing yet'}"


_Accepted = Callable[[Oracle, Task, Swap, Done, float, bool], None]
_ACCEPTED: dict[str, _Accepted] = {
    "renew": Oracle._renew,
    "shorten": Oracle._shorten,
    "lapse": Oracle._lapse,
    "complete": Oracle._complete,
    "release": Oracle._release,
    "take over": Oracle._take_over,
    "doubt": Oracle._doubt,
    "give up": Oracle._give_up,
    "run again": Oracle._run_again,
    "start over": Oracle._start_over,
    "run anew": Oracle._run_anew,
    "fade": Oracle._fade,
    "resolve as completed": Oracle._resolve,
    "resolve as released": Oracle._resolve,
}
