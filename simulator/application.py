"""The application in a simulated worker: handlers that follow a plan, and what clients are told.

The life of each attempt is the real `Session`; this only does what a form does around it: run the
handler, and send what the session lets out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from oncekey._core import endings
from oncekey._core.endings import End
from oncekey._core.op import Offload, Op, Pause
from oncekey._core.policy import Verdict
from oncekey._core.record import Record
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import (
    Execute,
    Finished,
    Given,
    GivenUp,
    Refuse,
    Replay,
    Stored,
    Unstored,
)
from oncekey.atomic._transaction import Rollback
from oncekey.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from simulator.endings import due
from simulator.plans import ERRORS, Broke, Plan
from simulator.steps import take_steps
from simulator.task import Task
from simulator.transaction import Write
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.worker import Worker


T = TypeVar("T")


class Application:
    """How a worker serves a request."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._judge = worker.world.judge

    def serve(self, task: Task) -> Op[None]:
        """One request, from decision to the last byte."""
        session = task.session
        decision = yield from self.drive(task, session.open())
        self._judge.decided(task, decision)
        if isinstance(decision, Execute):
            yield from self._run(task)
        elif isinstance(decision, Replay):
            self._worker.tell(task, "replayed")
        elif isinstance(decision, Refuse):
            self._worker.tell(task, decision.problem.kind.value)
        else:
            plan = self._worker.world.plan(task)
            yield Pause(plan.seconds)
            self._worker.tell(task, "unprotected")

    def take_up(self, task: Task, abandoned: Record, looked_at: float) -> Op[None]:
        """A record that no client comes back for."""
        taken = yield from self.drive(task, task.session.take_up(abandoned, looked_at))
        if taken is not None:
            yield from self._run(task)

    def _run(self, task: Task) -> Op[None]:
        """The handler, from its start to what becomes of its answer."""
        attempt = task.session.attempt
        try:
            if attempt.asks and (yield from self._settle(task, attempt)):
                pass
            elif task.work is None:
                yield from self._run_leased(task, attempt)
            else:
                yield from self._run_atomic(task, attempt)
        finally:
            task.session.close()
        if task.connection is not None:
            yield Rollback()

    def _settle(self, task: Task, attempt: Attempt) -> Op[bool]:
        """Ask the application what became of the attempt that died. False: the handler is to run.

        It is asked under the heartbeat, and takes its time.
        """
        worker = self._worker
        if task.work is not None:  # it is granted the record only with its commit
            task.book = task.ghost.book
        self._judge.asks(task, attempt)
        yield Pause(worker.world.asking_s())
        learned = worker.world.find_out(task)
        worker.world.timeline.says(task, f"asked the application: {learned!r}")
        self._judge.learns(task, attempt, learned)
        finished = yield from self.drive(task, task.session.learned(learned))
        if finished is not None:
            self._judge.settled(task, attempt, finished)
            self._tell(task, finished)
        return finished is not None

    def _run_leased(self, task: Task, attempt: Attempt) -> Op[None]:
        """The handler of an operation under a lease."""
        world = self._worker.world
        self._judge.runs(task, attempt)
        plan, stopped = world.plan(task), None
        stepping = plan.effect and world.scenario.steps(task.policy)
        if stepping:
            stopped = yield from self._take_steps(task, attempt)
        else:
            if plan.effect and plan.effect_first:
                world.effect(task)
            yield Pause(plan.seconds)
        self._ends(task, attempt)
        self._judge.ended(task, attempt)
        if stopped is None and plan.careful and attempt.lost:
            stopped = Broke()
        if stopped is not None:
            task.plan = plan._replace(said=None, raises="")
            yield from self._fail(task, attempt, stopped)
        elif plan.raises:
            if plan.leaves_s and not stepping:
                self._leave_thread(task, plan.leaves_s)
            yield from self._fail(task, attempt, ERRORS[plan.raises]())
        else:
            if plan.effect and not plan.effect_first and not stepping:
                world.effect(task)
            yield from self._conclude(task, attempt)

    def _leave_thread(self, task: Task, seconds: float) -> None:
        """The handler was cut off, and a thread of it goes on."""
        worker = self._worker
        task.leftover_until = worker.kernel.now + seconds
        worker.world.timeline.says(task, "leaves a thread behind")

    def _run_atomic(self, task: Task, attempt: Attempt) -> Op[None]:
        """The handler of an atomic operation: it writes its row into the transaction."""
        world = self._worker.world
        self._judge.runs_within(task, attempt, world.database.open)
        plan, stopped = world.plan(task), None
        try:
            if plan.effect_first:
                yield Write()
            yield Pause(plan.seconds)
            if not plan.effect_first:
                yield Write()
        except StoreUnavailable as error:  # the driver says so, the handler does not catch it
            stopped = error
        self._ends(task, attempt)
        if stopped is not None:
            task.plan = plan._replace(said=None, raises="")
            yield from self._fail(task, attempt, stopped)
        elif plan.raises:
            yield from self._fail(task, attempt, ERRORS[plan.raises]())
        else:
            yield from self._conclude(task, attempt)

    def _ends(self, task: Task, attempt: Attempt) -> None:
        task.ended_at, task.owned_until = self._worker.kernel.now, attempt.lease.until
        task.ended_failures = task.failures

    def drive(self, task: Task, op: Op[T]) -> Op[Any]:
        """An operation of the engine; in atomic mode within the request's transaction."""
        if task.work is None:
            return (yield from op)
        return (yield from task.work.drive(self._watched(task, op)))

    def _watched(self, task: Task, op: Op[T]) -> Op[T]:
        """What the engine asks, before it is answered in another way."""
        try:
            verb = next(op)
            while True:
                if type(verb) not in (Pause, Offload):
                    self._worker.looks(task, verb)
                try:
                    answer = yield verb
                except StoreUnavailable as error:
                    verb = op.throw(error)
                else:
                    verb = op.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            self._judge.decides(task)
            return result
        finally:
            op.close()

    def _conclude(self, task: Task, attempt: Attempt) -> Op[None]:
        """The handler has answered: record the answer, then let it go out."""
        plan, policy = task.plan, task.policy
        _say(attempt, plan)
        task.due = due(task, raised=False)
        if attempt.verdict is not None:
            end = endings.end_of_verdict(attempt.verdict)
        else:
            end = endings.end_of_status(policy.keep(plan.status), plan.status, policy)
        if end is End.KEPT:
            task.answer = self._worker.world.answer(task)
        yield from self._end(task, task.session.answered(end, task.answer))
        if plan.breaks_after:
            yield from self._break_after(task)

    def _break_after(self, task: Task) -> Op[None]:
        """It raises when it has answered, as in code that runs behind a response."""
        finished = yield from self.drive(task, task.session.failed(Broke()))
        if finished is not None:
            raise Violation("P2", f"{task} had ended, and ends again: {finished}")

    def _fail(self, task: Task, attempt: Attempt, error: BaseException) -> Op[None]:
        """The handler has raised, or was cut off."""
        _say(attempt, task.plan)
        task.due = due(task, raised=True)
        yield from self._end(task, task.session.failed(error))

    def _take_steps(self, task: Task, attempt: Attempt) -> Op[BaseException | None]:
        """What stopped the handler before its last step, if something did."""
        world = self._worker.world
        ownership, once = self._worker.guard.ownership, world.scenario.at_most_once
        try:
            yield from take_steps(task, attempt, ownership, world.downstream, once)
        except (Broke, LeaseLost, OutcomeUnknown, StoreUnavailable) as error:
            task.steps.doubts = attempt.doubted
            return error
        return None

    def _end(self, task: Task, op: Op[Finished | None]) -> Op[None]:
        finished = yield from self.drive(task, op)
        if finished is None:
            raise Violation("P6", f"{task} failed, and its session had ended before")
        if isinstance(finished, Given):
            self._judge.given(task)
        elif isinstance(finished, GivenUp):
            self._judge.gave_up(task)
        else:
            self._judge.finished(task, finished)
        self._tell(task, finished)

    def _tell(self, task: Task, finished: Finished) -> None:
        worker = self._worker
        match finished:
            case Given():
                worker.tell(task, "refused inside" if task.due == "free" else "failed")
            case GivenUp():
                worker.tell(task, "failed, outcome unknown")
            case Stored():
                self._judge.sends(task)
                worker.tell(task, "answered")
            case Unstored():
                worker.tell(task, "answered, unstored")
            case Replay():
                worker.tell(task, "replayed")
            case Refuse(problem):
                worker.tell(task, problem.kind.value)


def _say(attempt: Attempt, plan: Plan) -> None:
    """What the handler says itself of its answer."""
    match plan.said:
        case Verdict.KEEP:
            attempt.final()
        case Verdict.FAILED:
            attempt.transient()
        case Verdict.NO_EFFECT:
            attempt.no_effect()
        case Verdict.UNKNOWN:
            attempt.unknown()
