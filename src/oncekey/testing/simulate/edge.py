"""The edge of a simulated worker: what the middlewares do with the engine, without HTTP.

The order of things is that of `oncekey.web`: decide, run under a heartbeat, record, and only then
send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from oncekey.atomic.work import Rollback
from oncekey.attempt import Attempt
from oncekey.core.op import Op, Pause
from oncekey.core.policy import Verdict
from oncekey.core.record import Answer, Claim
from oncekey.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from oncekey.guard import Execute, Given, Refuse, Replay, Stored, Unstored
from oncekey.testing.simulate.stepping import take_steps
from oncekey.testing.simulate.task import Task
from oncekey.testing.simulate.transaction import Write

if TYPE_CHECKING:
    from oncekey.testing.simulate.worker import Worker


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
            plan = self._worker.world.plan()
            yield Pause(plan.seconds)
            self._worker.tell(task, "unprotected")

    def run(self, task: Task, attempt: Attempt) -> Op[None]:
        """The handler, from its start to what becomes of its answer."""
        worker = self._worker
        if task.work is not None:
            yield from self._run_atomic(task, attempt)
            return
        worker.add_beat(task, attempt)
        self._judge.runs(task, attempt)
        task.plan = plan = worker.world.plan()
        stepping = plan.effect and task.policy.recovery == "resume"
        stopped = False
        if stepping:
            stopped = yield from self._take_steps(task, attempt)
        else:
            if plan.effect and plan.effect_first:
                worker.world.effect(task)
            yield Pause(plan.seconds)
        task.ended_at, task.owned_until = worker.kernel.now, attempt.lease_until
        self._judge.ended(task, attempt)
        raises = stopped or plan.raises or (plan.careful and attempt.lost)
        if raises:
            task.plan = plan = plan._replace(verdict=Verdict.FAILED)
            yield from self._end(task, attempt, Verdict.FAILED, None)
            worker.drop_beat(attempt)
            return
        if plan.effect and not plan.effect_first and not stepping:
            worker.world.effect(task)
        yield from self._conclude(task, attempt)
        worker.drop_beat(attempt)

    def _run_atomic(self, task: Task, attempt: Attempt) -> Op[None]:
        """The handler of an atomic operation: it writes its row into the transaction."""
        world = self._worker.world
        self._judge.runs_within(task, attempt, world.database.open)
        task.plan = plan = world.plan()
        raises = plan.raises
        try:
            if plan.effect_first:
                yield Write()
            yield Pause(plan.seconds)
            if not plan.effect_first:
                yield Write()
        except StoreUnavailable:  # the driver says so, the handler does not catch it
            raises = True
        task.ended_at, task.owned_until = world.kernel.now, attempt.lease_until
        if raises:
            task.plan = plan._replace(verdict=Verdict.FAILED)
            yield from self._end(task, attempt, Verdict.FAILED, None)
        else:
            yield from self._conclude(task, attempt)
        if task.session is not None:
            yield Rollback()

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
                if type(verb) is not Pause:
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
        worker, plan = self._worker, task.plan
        match plan.said:
            case Verdict.KEEP:
                attempt.final()
            case Verdict.FAILED:
                attempt.transient()
            case Verdict.NO_EFFECT:
                attempt.no_effect()
        verdict = attempt.verdict or task.policy.keep(plan.status)
        if verdict is Verdict.KEEP:
            task.answer = worker.world.answer(task)
        yield from self._end(task, attempt, verdict, task.answer)

    def _take_steps(self, task: Task, attempt: Attempt) -> Op[bool]:
        """Whether the handler had to stop before its last step."""
        world = self._worker.world
        guard, once = self._worker.guard, world.scenario.at_most_once
        try:
            yield from take_steps(task, attempt, guard, world.downstream, once)
        except (LeaseLost, OutcomeUnknown, StoreUnavailable):
            task.steps.doubts = attempt.doubted
            return True
        return False

    def _end(
        self, task: Task, attempt: Attempt, verdict: Verdict, answer: Answer | None
    ) -> Op[None]:
        worker = self._worker
        op = worker.guard.conclude(attempt, verdict, answer, task.call)
        finished = yield from self.drive(task, op)
        if isinstance(finished, Given):
            self._judge.given(task)
            no_effect = verdict is Verdict.NO_EFFECT
            worker.tell(task, "refused inside" if no_effect else "failed")
            return
        self._judge.finished(task, finished)
        match finished:
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
