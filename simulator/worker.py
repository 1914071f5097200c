"""A worker: one simulated process of the application, with the real engine inside."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from oncekey._core import lifecycle
from oncekey._core.op import Offload, Op, Pause
from oncekey._core.policy import Policy
from oncekey._core.record import Answer, Claim, Record, State
from oncekey._core.retention import answer_left_s
from oncekey._core.verbs import Find, Insert, Peek, Refused, Sweep, Tally, Verb
from oncekey._engine.attempt import Attempt
from oncekey._engine.heartbeat import RETRY_S
from oncekey._engine.sweeper import SWEEP_ROWS_MAX
from oncekey.atomic._transaction import AtomicOperation
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import AGAIN
from oncekey.stores.batching import ALONE, Ticket
from simulator.application import Application
from simulator.faults import Fault
from simulator.ghost import Ghost, Note
from simulator.kernel import Kernel, Process
from simulator.ports import TaskPorts
from simulator.scenario import Intent
from simulator.store_link import Reply
from simulator.task import Task
from simulator.transaction import JOINED
from simulator.upgrade import CURRENT

if TYPE_CHECKING:
    from simulator.clients import Client
    from simulator.world import World


DRAIN_S_MAX = 12.0
"""How long a process that is to stop gives to the requests at hand."""


class ProcessClock:
    """A host's clocks: each process has its own idea of the time, and none of them may matter, but
    for the age of keys that tell it; there hosts agree as far as they must.
    """

    __slots__ = ("_ahead_s", "_kernel", "_wall_ahead_s")

    def __init__(self, kernel: Kernel, ahead_s: float, wall_ahead_s: float) -> None:
        self._kernel = kernel
        self._ahead_s = ahead_s
        self._wall_ahead_s = wall_ahead_s

    def monotonic(self) -> float:
        return self._kernel.now + self._ahead_s

    boot = monotonic

    def wall(self) -> float:
        return self._kernel.now + self._wall_ahead_s

    def boot_id(self) -> str:
        return "host"


class Lane:
    """One connection and the verbs that wait for it: the gatherer's loop as events."""

    __slots__ = ("_busy", "_queue", "_rows_max", "_worker")

    def __init__(self, worker: Worker, rows_max: int) -> None:
        self._worker = worker
        self._rows_max = rows_max
        self._queue = worker.world.parts.queue(rows_max=rows_max)
        self._busy = False

    def ask(self, verb: Any, task: Task) -> None:
        self._queue.add(Ticket(verb, task))
        if not self._busy:
            self._send()

    def _send(self) -> None:
        self._busy = False
        while len(self._queue):
            # A claim that nobody waits for any more is better not made.
            batch = self._queue.take()
            self._worker.world.judge.batched(len(batch), self._rows_max)
            wanted = [t for t in batch if not (t.waiter.over and type(t.verb) is Insert)]
            if wanted:
                self._busy = True
                self._worker.world.wire.send(self._worker, wanted, self.settle)
                return

    def settle(self, tickets: list[Ticket[Task]], reply: Reply) -> None:
        """A round trip is over: the next one leaves, and everybody gets what is theirs. An event
        loop sends first; threads do it in any order.
        """
        worker = self._worker
        life, chance = worker.life, worker.world.chance
        waiting = len(self._queue) and chance() < 0.3
        if not waiting:
            self._send()
        served = list(zip(tickets, _each(reply, len(tickets)), strict=True))
        if len(served) > 1 and chance() < 0.3:
            served.reverse()
        for ticket, (outcome, note) in served:
            if worker.life == life:  # it may die over any of them
                self._hand(ticket, outcome, note)
        if waiting and worker.life == life:
            self._send()

    def _hand(self, ticket: Ticket[Task], outcome: Any, note: Note | None) -> None:
        worker, task = self._worker, ticket.waiter
        if isinstance(outcome, StoreUnavailable):
            worker.fail(task, outcome)
        elif outcome is AGAIN:
            task.asks -= 1  # the store did nothing about it
            worker.lane(ALONE, 1).ask(ticket.verb, task)
        else:
            task.heard(note, ticket.changes is not None)
            worker.resume(task, outcome)


def _each(reply: Reply, count: int) -> list[tuple[Any, Note | None]]:
    """What each of those gets who shared a round trip. An error is one of its own for everybody."""
    if isinstance(reply, StoreUnavailable):
        return [(StoreUnavailable(str(reply), sent=reply.sent), None) for _ in range(count)]
    return reply


class Worker(Process):
    """One process. `life` counts its incarnations; all that it holds in memory dies with each."""

    __slots__ = (
        "_beating",
        "_beats",
        "_beats_at",
        "_lanes",
        "ahead_s",
        "application",
        "clock",
        "draining",
        "earlier",
        "guard",
        "heart",
        "index",
        "kernel",
        "policy",
        "tasks",
        "up",
        "version",
        "world",
    )

    def __init__(
        self, world: World, index: int, policy: Policy, version: int, *, earlier: bool = False
    ) -> None:
        super().__init__(f"w{index}")
        self.world = world
        self.kernel = world.kernel
        self.index = index
        self.policy = policy
        self.version = version
        self.earlier = earlier
        """Its engine is of the release before."""
        self.ahead_s = 0.6 * policy.lease_s * index
        """Of the host's wall clock, which nobody may trust."""
        self.start()

    def start(self) -> None:
        """A fresh process image."""
        world = self.world
        parts = world.parts
        ahead_s = 1_000.0 * self.index + 100.0 * self.life
        clock = self.clock = ProcessClock(self.kernel, ahead_s, self.ahead_s)
        guard = world.guard_before if self.earlier else parts.guard
        self.guard = guard(
            clock=clock,
            retention_from=world.scenario.retention_from,
            token=world.token,
            chance=world.chance,
        )
        self.heart = parts.heart(world.store, self.guard.ownership, clock)
        self.application = Application(self)
        self.tasks: set[Task] = set()
        self.up = True
        self.draining = False
        self._lanes: dict[Hashable, Lane] = {}
        self._beats: dict[Attempt, Task] = {}
        self._beats_at = float("inf")
        self._beating = False

    # --------------------------------------------------------------------------------- tasks

    def task(self, name: str, client: Client) -> Task:
        """A request arrives."""
        intent = client.errand.intent
        task = self.task_about(name, intent, self.world.oracle.ghost(intent, self.policy), client)
        self._open_session(task)
        self.world.recovering.knows(task)
        task.op = self.application.serve(task)
        return task

    def _open_session(self, task: Task) -> None:
        """What carries it through; in atomic mode within a transaction."""
        task.work = self._work()
        ports: Any = None if task.work is not None else TaskPorts(task)
        task.session = self.world.parts.session(self.guard, task.call, task.policy, ports)
        task.claim = task.session.claim

    def task_about(
        self, name: str, intent: Intent, ghost: Ghost, client: Client | None = None
    ) -> Task:
        """A task of this worker's about what somebody wants, under the policy that it has."""
        return Task(
            name,
            self,
            intent=intent,
            ghost=ghost,
            call=self.world.call(intent, self.version),
            policy=self.policy,
            version=self.version,
            client=client,
        )

    def spawn_aside(
        self, name: str, about: Task, claim: Claim, op: Op[None], answer: Answer | None = None
    ) -> None:
        """Something in the background, about the same record."""
        task = Task(
            f"{about.name} {name}",
            self,
            intent=about.intent,
            ghost=about.ghost,
            call=about.call,
            policy=about.policy,
            version=about.version,
        )
        task.claim = claim
        task.op = op
        task.answer = answer
        self.begin(task)

    def spawn_orphan(self, ghost: Ghost, work: Callable[[Worker, Task], Op[None]]) -> None:
        """Take up a record whose owner died: a task like a request's, but without a client."""
        if ghost.intent is None:
            raise AssertionError(f"{ghost} is due, though nobody ever asked for it")
        task = self.task_about("orphan", ghost.intent, ghost)
        self._open_session(task)
        task.orphan = True
        task.op = work(self, task)
        self.kernel.at(self.kernel.now, self, self.begin, task)

    def _work(self) -> AtomicOperation | None:
        """What carries a request of an atomic operation through."""
        policy = self.policy
        return self.world.parts.work(JOINED, policy.atomic_s_max) if policy.atomic else None

    def begin(self, task: Task) -> None:
        """Take a task's first step."""
        self.tasks.add(task)
        self.resume(task, None)

    def resume(self, task: Task, answer: Any) -> None:
        """Take a step with an answer in hand."""
        if task.over or self._struck(self.resume, task, answer):
            return
        try:
            question = task.op.send(answer)
        except StopIteration:
            self._end(task)
        else:
            self._ask(task, question)

    def fail(self, task: Task, error: StoreUnavailable) -> None:
        """Take a step with the news that there is no answer."""
        if task.over or self._struck(self.fail, task, error):
            return
        task.failures += 1
        self.world.timeline.failed(task)
        self.world.judge.failed(task)
        try:
            question = task.op.throw(error)
        except StopIteration:
            self._end(task)
        except StoreUnavailable:  # background work that gives up
            self._end(task)
        else:
            self._ask(task, question)

    def _end(self, task: Task) -> None:
        task.over = True
        task.peeking = False
        self.tasks.discard(task)

    def _ask(self, task: Task, question: Any) -> None:
        self.world.timeline.asked(task, question)
        if task.work is not None:
            question = self.world.database.asked(task, question)
            if question is None:
                return
        if type(question) is Pause:
            self.kernel.post(question.seconds, self, self.resume, task, None)
            return
        if type(question) is Offload:
            self.kernel.post(0.0, self, self.resume, task, question.work())
            return
        if task.work is None:  # else it was seen before it was answered in another way
            self.looks(task, question)
        self.lane(self.world.group(question), self.world.scenario.rows_max).ask(question, task)

    def looks(self, task: Task, verb: Verb) -> None:
        """Who waits looks again and again."""
        task.peeking = type(verb) is Peek
        if task.peeking:
            waiting = [other for other in self.tasks if other.peeking]
            here = sum(other.ghost is task.ghost for other in waiting)
            self.world.judge.peeks(task, here, len(waiting))

    def lane(self, group: Hashable, rows_max: int) -> Lane:
        lane = self._lanes.get(group)
        if lane is None:
            lane = self._lanes[group] = Lane(self, rows_max)
        return lane

    def tell(self, task: Task, what: str) -> None:
        """Something goes out to the client, if there still is one."""
        self.world.told(task, what)

    def cancel(self, task: Task) -> None:
        """The server drops a request whose client is gone. What was asked is asked; only while the
        engine still decides can there be something to forget.
        """
        task.op.close()
        self._end(task)
        if task.work is None:
            self.world.oracle.watch_orphan(task)
        else:  # what is not committed is gone
            self.world.database.cancelled(task)

    # -------------------------------------------------------------------------------- faults

    def _struck(self, step: Any, task: Task, value: Any) -> bool:
        """Whether something happens to this process just before this step."""
        world = self.world
        fault = world.faults.of_step(self.kernel.now)
        if fault is None:
            return False
        if fault is Fault.CRASH:
            self.crash()
        else:
            self.pause()
            self.kernel.at(self.paused_until, self, step, task, value)
        return True

    def pause(self) -> None:
        """As by SIGSTOP; SIGCONT follows."""
        faults = self.world.faults
        self.paused_until = max(self.paused_until, self.kernel.now + faults.pause_s())
        faults.note(Fault.PAUSE, self.paused_until)
        self.world.trace(Fault.PAUSE, self)
        self.world.timeline.process(self, f"paused until {self.paused_until:.3f}")

    def crash(self) -> None:
        """As by SIGKILL: nothing of it runs any more, no `finally` either."""
        world = self.world
        world.faults.note(Fault.CRASH, self.kernel.now)
        world.trace(Fault.CRASH, self)
        world.timeline.process(self, "killed")
        self.life += 1
        self.up = False
        self.paused_until = 0.0
        dead = [task for task in self.tasks if not task.over]
        world.graveyard.append((dead, self.tasks, self._lanes))
        world.database.lost(self)
        world.died(self, dead)
        self.kernel.at(self.kernel.now + world.faults.restart_s(), self, self._restart)

    def upgrade(self) -> None:
        """Its process is stopped, and comes back as one of the current release."""
        self.version, self.earlier = CURRENT, False
        self.world.timeline.process(self, "is of the current release from its next start on")
        if self.up and self.world.chance() < 0.5:
            self.drain()
        elif self.up:
            self.crash()

    def drain(self) -> None:
        """As by SIGTERM: take no more requests, and end when those at hand have, or were given
        time.
        """
        if not self.up:
            return
        self.up, self.draining = False, True
        self.world.timeline.process(self, "takes no more requests")
        in_s = DRAIN_S_MAX * self.world.chance()
        self.kernel.at(self.kernel.now + in_s, self, self._exit, self.life)

    def _exit(self, life: int) -> None:
        if self.life == life:  # else it was killed meanwhile
            self.crash()

    def _restart(self) -> None:
        self.world.timeline.process(self, "starts again")
        self.start()

    # ------------------------------------------------------------------------------ heartbeat

    def add_beat(self, task: Task, attempt: Attempt) -> None:
        """From here on the lease is renewed."""
        self.heart.add(attempt)
        self._beats[attempt] = task
        self._wake()

    def linger(self, task: Task, attempt: Attempt) -> None:
        """Its handler has ended, and a thread of it has not."""
        self.heart.linger(attempt)
        self._beats[attempt] = task
        self._wake()
        self.kernel.at(max(task.leftover_until, self.kernel.now), self, self._give_back, task)

    def _give_back(self, task: Task) -> None:
        """The last thread has ended: its record is given back, unless it was lost meanwhile."""
        for attempt, swap in self.heart.left_alone():
            if self._beats[attempt] is not task:
                continue
            if swap is None:
                self.heart.give_back(attempt, None)
            else:
                ticket = Ticket(swap, task)

                def settle(
                    tickets: list[Ticket[Task]], reply: Reply, attempt: Attempt = attempt
                ) -> None:
                    if isinstance(reply, StoreUnavailable):
                        at = self.kernel.now + RETRY_S
                        self.kernel.at(at, self, self._give_back, task)
                    else:
                        self.heart.give_back(attempt, reply[0][0])

                self.world.wire.send(self, [ticket], settle)

    def _wake(self) -> None:
        at = self.heart.next_at()
        if at is None or self._beating:
            return
        in_s = max(at - self.clock.monotonic(), 0.001)
        if self.kernel.now + in_s < self._beats_at:
            self._beats_at = self.kernel.now + in_s
            self.kernel.at(self._beats_at, self, self._beat)

    def _beat(self) -> None:
        self._beats_at = float("inf")
        if self._beating:
            return
        due = self.heart.due()
        if not due:
            self._wake()
            return
        self._beating = True
        tickets = [Ticket(verb, self._beats[attempt]) for attempt, verb in due]
        attempts = [attempt for attempt, _ in due]
        asked_at = self.clock.monotonic()

        def settle(tickets: list[Ticket[Task]], reply: Reply) -> None:
            self._beating = False
            if isinstance(reply, StoreUnavailable):
                self.heart.missed(attempts)
            else:
                outcomes = [outcome for outcome, _ in reply]
                self.heart.beaten(attempts, outcomes, asked_at)
                for ticket, attempt, outcome in zip(tickets, attempts, outcomes, strict=True):
                    refused = isinstance(outcome, Refused)
                    self.world.judge.beaten(ticket.waiter, attempt, refused=refused)
            self._wake()

        self.world.wire.send(self, tickets, settle)

    # ------------------------------------------------------------------------------- sweeping

    def fade(self, claim: Claim) -> Op[None]:
        """Blank a record whose answer is over."""
        found: Record | None = yield Find(claim.id)
        if found is None or found.state is not State.COMPLETED or found.expired or not found.key:
            return
        if answer_left_s(found) <= 0:
            yield lifecycle.fade(found, new_token=self.world.token())

    def sweep(self) -> Op[None]:
        """One round of the sweeper."""
        replays, conflicts = self.guard.replays.counters.take()
        if replays or conflicts:
            yield Tally(replays, conflicts)
        yield Sweep(SWEEP_ROWS_MAX)
