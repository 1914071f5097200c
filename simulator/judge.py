"""The judge at the edge: what a client is told, and what the ghost held when the store answered.

It checks the promises that a client sees: the same answer again (P3), durable before said (P4), no
answer of another request (P5), never wedged (P6), refusals that spend nothing (P7), lost replies
that are harmless (P9), waits that end (P11); and that no handler runs without a claim of its own.
"""

from __future__ import annotations

from oncekey._core.policy import Learned
from oncekey._core.problems import Kind
from oncekey._core.record import Answer
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import (
    POLL_S_MIN,
    ROUNDS_MAX,
    Bypass,
    Decision,
    Execute,
    Finished,
    Refuse,
    Replay,
    Unstored,
)
from oncekey._engine.store_calls import ASKS_MAX, LEASE_MARGIN, PATIENCE_S
from simulator import expiry
from simulator.faults import Faults
from simulator.ghost import (
    ABSENT,
    BODILESS,
    COMPLETED,
    EXPIRED,
    GONE,
    IN_FLIGHT,
    LAPSED,
    NO_EFFECT,
    OVERLONG,
    RUNNING,
    UNKNOWN,
    WHOLE,
    Note,
)
from simulator.kernel import Kernel
from simulator.oracle import Oracle
from simulator.scenario import LEASE_S, WAITERS_MAX, WAITERS_PER_KEY_MAX
from simulator.schema import shown
from simulator.task import Task
from simulator.transaction import Transaction
from simulator.upgrade import reads
from simulator.violation import Violation

CALM_DECISION_S = 8.0
"""How long a decision may take beside its wait, when nothing goes wrong."""

AT_ONCE_S_MAX = 4.0
"""In atomic mode: how long it may take to be told that another transaction runs, if nothing goes
wrong. Most handlers take less, the slow ones much longer.
"""
BACKOFF_S_MAX = 1.0
"""Between two tries."""
LATE_FAILURES_MAX = 2
LATE_SIGNAL_S = 3.0
"""A handler learns soon after its lease ended that it did, unless its process stood still."""
IDLE_ROUNDS_MAX = 2
"""How often a task may ask again although nothing has changed."""

HASTY_PEEKS_MAX = 3
"""The last looks before the end of a wait may follow each other closely."""

# Whoever met one of these owns the record or may own it: only running it is right.
_FREE = (ABSENT, EXPIRED, NO_EFFECT)
_ENDED = (WHOLE, BODILESS, UNKNOWN, GONE)


class Judge:
    """Hears what every task decides and tells."""

    def __init__(self, kernel: Kernel, faults: Faults, oracle: Oracle) -> None:
        self._kernel = kernel
        self._faults = faults
        self._oracle = oracle

    # ----------------------------------------------------------------------------- decisions

    def decided(self, task: Task, decision: Decision) -> None:
        """Guard.begin came to an end."""
        self._in_time(task)
        ghost = task.ghost
        match decision:
            case Execute():
                return
            case Bypass() if task.work is not None:
                raise Violation("P1", f"{task} runs without a transaction")
            case Bypass():
                if task.asks or task.policy.store_down != "run":
                    raise Violation("P1", f"{task} runs unprotected, though the store was asked")
                return
            case Replay(answer):
                self._replays(task, answer)
            case Refuse():
                self._refuses(task, decision)
            case _:
                raise Violation("P11", f"{task} came to no decision")
        if ghost.state is RUNNING and ghost.token == task.claim.token:
            self._oracle.watch_orphan(task)

    def runs(self, task: Task, attempt: Attempt) -> None:
        """A handler starts."""
        if not task.fence:
            raise Violation("P1", f"{task} runs, but was never granted {task.ghost}")
        if attempt.fence != task.fence:
            raise Violation("P2", f"{task} believes in fence {attempt.fence}, not {task.fence}")
        if (attempt.attempt, attempt.lapses) != (task.attempt, task.lapses):
            raise Violation("P6", f"{task} believes to be {attempt}, lapses {attempt.lapses}")
        if task.ran:
            raise Violation("P1", f"{task} runs twice under one claim")
        if task.must_ask:
            raise Violation("P6", f"{task} runs {task.ghost} again, and nobody was asked")
        if attempt.lease.until <= task.worker.clock.monotonic():
            raise Violation("P1", f"{task} begins {task.ghost}, and knows that its lease is over")
        expiry.runs(task)
        if not task.asked:
            task.runs_at = self._kernel.now
        self._believes(task, attempt, renewing=task.asked)
        task.ran = True

    def runs_within(self, task: Task, attempt: Attempt, begun: list[Transaction]) -> None:
        """A handler starts within a transaction: it has the id, and nobody else runs it in another
        one that could still commit.
        """
        connection = task.connection
        if connection is None or not connection.transaction.locked:
            raise Violation("P1", f"{task} runs {task.ghost}, and does not have it")
        if task.ran:
            raise Violation("P1", f"{task} runs twice under one claim")
        ghost, note = task.ghost, task.note
        same = note is not None and note.situation is LAPSED and ghost.fence == note.fence
        if same and "ask" in (ghost.recovery, task.policy.recovery) and not task.asked:
            raise Violation("P6", f"{task} runs {ghost} again, and nobody was asked")
        # Where the server has ended its transaction, nothing that it does can count.
        for other in begun if connection.transaction.open else ():
            if other.task.ghost is ghost and other.runs:
                raise Violation("P1", f"{task} runs {ghost} while {other.task} does")
        task.runs_at = self._kernel.now
        task.ran = connection.transaction.runs = True

    def ended(self, task: Task, attempt: Attempt) -> None:
        """A handler ends. Was it told in time, and not without reason, that its record is lost?"""
        ran_s = self._kernel.now - task.runs_at
        hung_s = ran_s - task.policy.run_s_max
        if attempt.lost and self._faults.last_at < task.started_at and hung_s < -1.0:
            raise Violation("P2", f"{task} was told that it lost {task.ghost}; nothing was wrong")
        over_s = min(task.worker.clock.monotonic() - attempt.lease.until, ran_s)
        awake_s = self._kernel.now - task.worker.paused_until
        if max(over_s, hung_s - LEASE_S / 3) > LATE_SIGNAL_S < awake_s and not attempt.lost:
            raise Violation("P2", f"{task} was not told that its lease is over")

    def effect(self, task: Task) -> None:
        """A handler does what cannot be undone. Not more often than there are reasons for."""
        book = task.book
        book.effects += 1
        task.effects += 1
        if book.effects > 1 + book.excuses:
            raise Violation("P1", f"{task} has effect {book.effects} of {task.ghost}")

    def asks(self, task: Task, attempt: Attempt) -> None:
        """The application is asked what became of an attempt that died."""
        if attempt.lapses == 0:
            raise Violation("P6", f"{task} asks about {task.ghost}, which has not lapsed")
        task.runs_at = self._kernel.now

    def learns(self, task: Task, attempt: Attempt, learned: object) -> None:
        """The application said what became of an attempt that died, or could not be asked."""
        task.ended_at, task.owned_until = self._kernel.now, attempt.lease.until
        task.ended_failures = task.failures
        match learned:
            case Answer():
                task.answer, task.due = learned, "stored"
            case Learned.NOT_DONE:
                task.must_ask, task.asked = False, True
                task.owned_until = 0.0  # it goes on
                task.book.excuses += 1
            case Learned.UNKNOWN:
                task.due = "unknown"
            case _:
                task.due = "left"

    def settled(self, task: Task, attempt: Attempt, finished: Finished) -> None:
        """What the application said was the end of it; or its lease was over by then."""
        unsettled = isinstance(finished, Refuse) and finished.problem.kind is Kind.UNSETTLED
        if unsettled is not (task.due == "left" or (task.due == "" and attempt.lost)):
            raise Violation("P6", f"{task} is told {finished}; {task.due or 'it was to run'}")
        if not unsettled:
            self.finished(task, finished)

    def beaten(self, task: Task, attempt: Attempt, *, refused: bool) -> None:
        """A heartbeat heard what became of a renewal."""
        if not refused and not attempt.finished:
            self._believes(task, attempt)
        elif refused and not attempt.finished and not attempt.lost:
            raise Violation("P2", f"{task} lost {task.ghost}, and its handler was not told")

    def _believes(self, task: Task, attempt: Attempt, *, renewing: bool = False) -> None:
        """An owner never believes that its lease lasts longer than it does; nor much shorter, if
        nothing goes wrong and no renewal is on its way.
        """
        left_s = self._oracle.lease_left_s(task)
        if left_s is None:
            return
        believed_s = attempt.lease.until - task.worker.clock.monotonic()
        calm = self._faults.last_at < task.started_at
        short = calm and not renewing and believed_s < left_s - LEASE_S / 4
        if believed_s > left_s + 0.001 or short:
            raise Violation("P8", f"{task} believes in {believed_s:.3f} s; it has {left_s:.3f} s")

    def batched(self, verbs: int, rows_max: int) -> None:
        """So many verbs share a round trip."""
        if verbs > rows_max:
            raise Violation("P11", f"{verbs} verbs in a batch of at most {rows_max}")

    def peeks(self, task: Task, waiting: int, in_all: int) -> None:
        """One of so many tasks of this process that wait for the same record, or for any."""
        if task.policy.in_flight != "wait":
            raise Violation("P11", f"{task} waits, though its policy refuses")
        if waiting > WAITERS_PER_KEY_MAX or in_all > WAITERS_MAX:
            raise Violation("P11", f"{task}: {waiting} wait for {task.ghost}")
        now = self._kernel.now
        if now - task.peeked_at < POLL_S_MIN * 0.99 and not task.failures:
            task.hasty_peeks += 1
            if task.hasty_peeks > HASTY_PEEKS_MAX:
                raise Violation("P11", f"{task} looks again without a pause")
        task.peeked_at = now

    def _in_time(self, task: Task) -> None:
        took_s = self._kernel.now - task.started_at
        wait_s = task.policy.wait_s if task.policy.in_flight == "wait" else 0.0
        if task.idle_rounds > IDLE_ROUNDS_MAX:
            raise Violation("P11", f"{task} asked again and again, though nothing had changed")
        if took_s > wait_s + CALM_DECISION_S and self._faults.last_at < task.started_at:
            raise Violation("P11", f"{task} took {took_s:.1f} s to decide, and nothing was wrong")

    def _note(self, task: Task) -> Note:
        if task.note is None:
            raise Violation("P5", f"{task} decided without an answer from the store")
        return task.note

    def _replays(self, task: Task, answer: Answer) -> None:
        note = self._note(task)
        if note.intent != task.intent or not reads(task.version, note.version):
            raise Violation("P5", f"{task} replays the answer of another request")
        if note.situation is not WHOLE:
            raise Violation("P3", f"{task} replays where {task.ghost} was {note.situation}")
        if note.fate not in ("same", "upcast", "replay"):
            raise Violation("P3", f"{task} replays an answer of another version: {note.fate} it")
        if answer != shown(note.answer, note.schema, note.fate):
            raise Violation("P3", f"{task} replays {answer}; kept was {note.answer}")

    def decides(self, task: Task) -> None:
        """In atomic mode: the engine has decided, and the transaction is not closed yet."""
        task.peeking, task.had_room = False, self._has_room(task)

    def _refuses(self, task: Task, refusal: Refuse, *, superseded: bool = False) -> None:
        """A refusal must be right by what the task last met. `superseded`: it ran, and lost its
        record.
        """
        kind = refusal.problem.kind
        if kind is Kind.STORE_UNAVAILABLE:
            self._says_down(task, refusal, superseded=superseded)
            return
        if kind is Kind.TOO_OLD:
            known = task.note is not None and task.note.situation not in _FREE
            expiry.told_too_old(task, known=known and not self._oracle.was_clock_set)
            return
        note = self._note(task)
        situation = note.situation
        newer = not reads(task.version, note.version)
        other = note.intent != task.intent
        free = situation in _FREE or situation is GONE
        match kind:
            case Kind.IN_FLIGHT:
                self._in_flight(task, note, superseded=superseded)
                return
            case Kind.MISMATCH:
                right = other and not newer and not free
            case Kind.OUTCOME_UNKNOWN:
                right = not other and (situation is UNKNOWN or (note.own and situation is EXPIRED))
            case Kind.KEY_EXPIRED:
                right = situation is GONE
            case Kind.ANSWER_NOT_KEPT:
                right = situation is BODILESS and not other and not newer
            case Kind.STALE_ANSWER:
                right = situation is WHOLE and note.fate == "refuse" and not other and not newer
            case Kind.NEWER_RECORD:
                held_back = situation is WHOLE and note.fate == "newer" and not other
                right = (newer and not free) or held_back
            case _:
                right = False
        if not right:
            how = "another" if other else "the same"
            raise Violation(
                "P7" if free else "P5",
                f"{task} is told {kind.value}; it met {how} request, {situation}",
            )

    def _says_down(self, task: Task, refusal: Refuse, *, superseded: bool) -> None:
        took_s = self._kernel.now - task.started_at
        if refusal.lost_claim is not None and self._overslept(task, took_s):
            return
        if not task.failures:
            raise Violation("P6", f"{task} says that the store is down; it always answered")
        if task.failures < ASKS_MAX and took_s < PATIENCE_S - BACKOFF_S_MAX and not superseded:
            raise Violation("P9", f"{task} gave up after {task.failures} tries")
        if not task.asks and task.policy.store_down == "run" and task.work is None:
            raise Violation("P6", f"{task} was to run unprotected; the store heard nothing")

    def _overslept(self, task: Task, took_s: float) -> bool:
        """Whether what it claimed had lapsed before it could begin."""
        left_s = self._oracle.lease_left_s(task)
        return took_s >= task.policy.lease_s or left_s is None or left_s <= 0

    def _in_flight(self, task: Task, note: Note, *, superseded: bool) -> None:
        situation = note.situation
        took_s = self._kernel.now - task.started_at
        calm = self._faults.last_at < task.started_at
        refuses = task.policy.in_flight == "refuse" and not superseded
        if task.work is not None and refuses and calm and took_s > AT_ONCE_S_MAX:
            raise Violation("P11", f"{task} was told in flight only after {took_s:.1f} s")
        if superseded:
            self._superseded(task, note)
        elif task.rounds >= ROUNDS_MAX:
            return  # others changed the record under its hands, again and again
        elif note.own:
            raise Violation("P9", f"{task} is refused because of its own claim")
        elif not reads(task.version, note.version) or note.intent != task.intent:
            raise Violation("P5", f"{task} is told in flight; another request has the key")
        elif situation is OVERLONG and not (task.peeking or (task.work and task.peeked_at >= 0)):
            raise Violation("P8", f"{task} left a deadline alone that is too far away")
        elif situation is not IN_FLIGHT and situation is not OVERLONG:
            raise Violation("P6", f"{task} is told in flight where {task.ghost} is {situation}")
        elif task.policy.in_flight == "wait" and not task.shortened and not task.failures:
            self._waited(task)

    def _waited(self, task: Task) -> None:
        """It waited, unless enough others of its process do."""
        room = self._has_room(task) if task.work is None else task.had_room
        took_s = self._kernel.now - task.started_at
        if took_s < task.policy.wait_s and room:
            raise Violation("P6", f"{task} was to wait, and was refused after {took_s:.3f} s")

    @staticmethod
    def _has_room(task: Task) -> bool:
        """Whether so few others are about that it may wait too."""
        tasks = task.worker.tasks
        others = sum(other.ghost is task.ghost for other in tasks) - 1
        return others < WAITERS_PER_KEY_MAX and len(tasks) - 1 < WAITERS_MAX

    def _superseded(self, task: Task, note: Note) -> None:
        """An attempt that lost its record is told in flight unless there is more to tell."""
        if note.own and note.situation in _ENDED:
            raise Violation("P9", f"{task} recorded its answer and is told that it runs")
        foreign = not reads(task.version, note.version) or note.intent != task.intent
        if note.situation is WHOLE and note.fate == "rerun" and not foreign:
            return  # its retry runs it anew
        if note.situation not in _FREE and (foreign or note.situation in _ENDED):
            raise Violation(
                "P5", f"{task} is told in flight where {task.ghost} is {note.situation}"
            )

    # --------------------------------------------------------------------------------- the end

    def finished(self, task: Task, finished: Finished) -> None:
        """Guard.finish came to an end: may this be told?"""
        if task.work is not None:
            self._ended_within(task, finished)
        elif isinstance(finished, Unstored):
            if task.policy.recovery != "block" or not task.failures:
                raise Violation("P4", f"{task} sends an answer that was not recorded")
            self._persisted(task)
        elif isinstance(finished, Replay):
            self._replays(task, finished.answer)
            if self._note(task).own:
                raise Violation("P9", f"{task} recorded its answer and takes it for another's")
        elif isinstance(finished, Refuse) and self._gives_up(task):
            # Unless it lost its record over it: then what counts is what stands there.
            if finished.problem.kind is not Kind.OUTCOME_UNKNOWN:
                self._refuses(task, finished, superseded=True)
        elif isinstance(finished, Refuse):
            if finished.problem.kind is Kind.STORE_UNAVAILABLE:
                if task.policy.recovery == "block":
                    raise Violation("P6", f"{task} keeps an answer back that nobody else can give")
                self._persisted(task)
            self._refuses(task, finished, superseded=True)

    def _ended_within(self, task: Task, finished: Finished) -> None:
        """The same in atomic mode."""
        if isinstance(finished, Unstored):
            raise Violation("P4", f"{task} sends an answer that was not recorded")
        if isinstance(finished, Replay):
            self._replays(task, finished.answer)
            if self._note(task).own:
                raise Violation("P9", f"{task} recorded its answer and takes it for another's")
        elif isinstance(finished, Refuse) and not self._gives_up(task):
            if finished.problem.kind is not Kind.STORE_UNAVAILABLE:
                self._refuses(task, finished, superseded=True)
            elif not task.failures:
                raise Violation("P6", f"{task} says that the store is down; it always answered")
            elif "undone" in finished.problem.detail:
                self.given(task)
            else:
                self._persisted(task)

    def given(self, task: Task) -> None:
        """Its client is told that nothing was kept: in atomic mode, that nothing happened."""
        ghost = task.ghost
        heard = task.failures == task.ended_failures
        if task.due == "unknown" or (task.due == "stored" and task.work is None):
            raise Violation("P6", f"{task} is told that a retry may run; {task.due} is due")
        left = task.leftover_until > self._kernel.now  # it is given back when that has ended
        if task.due == "ask" and task.wrote != "lapse" and heard and not left:
            raise Violation("P6", f"{task} failed, and leaves its lease of {ghost} to run out")
        kept = ghost.state is COMPLETED and ghost.token == task.claim.token
        if task.work is not None and kept and ghost.expires > self._oracle.store_clock.boot():
            raise Violation("P9", f"{task} says that nothing happened; {ghost} is {ghost.state}")
        if task.commit is not None and task.commit.open:
            raise Violation("P9", f"{task} says that nothing happened; its commit is under way")

    def gave_up(self, task: Task) -> None:
        """Its client is told that no retry runs, since nobody knows what it did."""
        if not self._gives_up(task):
            raise Violation("P6", f"{task} is told that nobody knows; {task.due} is due")
        if task.wrote != "give up" and task.failures == task.ended_failures:
            raise Violation("P6", f"{task} is told that nobody knows; {task.ghost} does not say so")

    @staticmethod
    def _gives_up(task: Task) -> bool:
        """Nobody knows; or what refuses an orphan would refuse it for ever."""
        return task.due == "unknown" or (task.orphan and task.due == "free")

    def _persisted(self, task: Task) -> None:
        """What could not be recorded was tried until the lease was nearly over."""
        left_s = task.owned_until - task.worker.clock.monotonic()
        if left_s > LEASE_MARGIN * LEASE_S + BACKOFF_S_MAX:
            raise Violation(
                "P9", f"{task} gave its answer up {left_s:.1f} s before its lease ended"
            )

    def failed(self, task: Task) -> None:
        """A question got no answer. Nobody insists once the lease is over."""
        if task.owned_until and task.worker.clock.monotonic() > task.owned_until:
            task.late_failures += 1
            if task.late_failures > LATE_FAILURES_MAX:
                raise Violation("P11", f"{task} insists, though its lease is long over")

    def sends(self, task: Task) -> None:
        """The first byte of a handler's answer goes out, as one that is kept."""
        if not task.recorded:
            raise Violation("P4", f"{task} sends its answer; {task.ghost} is {task.ghost.state}")
