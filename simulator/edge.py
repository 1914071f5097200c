"""The edge of a simulated worker: what the middlewares do with the engine, without HTTP.

The order of things is that of `oncekey.web`: decide, run under a heartbeat, record, and only then
send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from oncekey._core import endings
from oncekey._core.endings import End
from oncekey._core.op import Apart, Op, Pause
from oncekey._core.policy import Verdict
from oncekey._core.record import Claim
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

if TYPE_CHECKING:
    from simulator.worker import Worker


T = TypeVar("T")


class Edge:
    """How a worker serves a request."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._judge = worker.world.judge

    def serve(self, task: Task) -> Op[None]:
        """One request, from decision to the last byte."""
        guard = self._worker.guard
        decision = yield from self.drive(task, guard.begin(task.call, task.policy, task.claim))
        self._judge.decided(task, decision)
        if isinstance(decision, Execute):
            yield from self.run(task, decision.attempt)
        elif isinstance(decision, Replay):
            self._worker.tell(task, "replayed")
        elif isinstance(decision, Refuse):
            self._worker.tell(task, decision.problem.kind.value)
            if decision.lost_claim is not None:
                self.forget(task, decision.lost_claim)
        else:
            plan = self._worker.world.plan(task)
            yield Pause(plan.seconds)
            self._worker.tell(task, "unprotected")

    def run(self, task: Task, attempt: Attempt) -> Op[None]:
        """The handler, from its start to what becomes of its answer."""
        worker = self._worker
        if task.work is None:
            worker.add_beat(task, attempt)
        if attempt.asks and (yield from self._settle(task, attempt)):
            pass
        elif task.work is None:
            yield from self._run_leased(task, attempt)
        else:
            yield from self._run_atomic(task, attempt)
        if task.work is None:
            worker.drop_beat(attempt)
        elif task.session is not None:
            yield Rollback()

    def _settle(self, task: Task, attempt: Attempt) -> Op[bool]:
        """Ask the application what became of the attempt that died. False: the handler is to run.

        It is asked under the heartbeat, and takes its time.
        """
        worker = self._worker
        self._judge.asks(task, attempt)
        yield Pause(worker.world.asking_s())
        learned = worker.world.find_out(task)
        worker.world.timeline.says(task, f"asked the application: {learned!r}")
        self._judge.learns(task, attempt, learned)
        op = worker.guard.learned(attempt, learned, task.call)
        finished = yield from self.drive(task, op)
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
            yield from self._fail(task, attempt, ERRORS[plan.raises]())
        else:
            if plan.effect and not plan.effect_first and not stepping:
                world.effect(task)
            yield from self._conclude(task, attempt)

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
        task.ended_at, task.owned_until = self._worker.kernel.now, attempt.lease_until
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
                if type(verb) not in (Pause, Apart):
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
        op = self._worker.guard.conclude(attempt, end, task.answer, task.call)
        yield from self._end(task, op)

    def _fail(self, task: Task, attempt: Attempt, error: BaseException) -> Op[None]:
        """The handler has raised, or was cut off."""
        _say(attempt, task.plan)
        task.due = due(task, raised=True)
        yield from self._end(task, self._worker.guard.conclude_failed(attempt, error, task.call))

    def _take_steps(self, task: Task, attempt: Attempt) -> Op[BaseException | None]:
        """What stopped the handler before its last step, if something did."""
        world = self._worker.world
        guard, once = self._worker.guard, world.scenario.at_most_once
        try:
            yield from take_steps(task, attempt, guard, world.downstream, once)
        except (Broke, LeaseLost, OutcomeUnknown, StoreUnavailable) as error:
            task.steps.doubts = attempt.doubted
            return error
        return None

    def _end(self, task: Task, op: Op[Finished]) -> Op[None]:
        finished = yield from self.drive(task, op)
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

    def cancelled(self, task: Task) -> None:
        """The server gave the request up while the engine was still deciding."""
        if task.work is None:
            self.forget(task, task.claim)
        else:  # what is not committed is gone
            self._worker.world.database.cancelled(task)

    def forget(self, task: Task, claim: Claim) -> None:
        """Release, in the background, a claim that may have been granted unheard."""
        self._worker.spawn_aside("forget", task, claim, self._worker.guard.forget(claim))


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
