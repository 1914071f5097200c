"""Every schedule of a small world: two workers, one key, so many faults.

The same code runs as with seeds; only the kernel is another one. Where a seed would draw when a
message arrives, this kernel tries every order in which the store can be asked, and at every step
every fault that is still allowed. What a process does by itself between two questions is not
interleaved: it is seen by nobody until the next question arrives, so its moment changes nothing.

A schedule is a list of choices. All of them are visited depth first: run, then change the last
choice that has an alternative left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop
from typing import Any

from oncekey._core.policy import Learned
from simulator.bugs import BUGS
from simulator.clients import Client
from simulator.coverage import Marks
from simulator.faults import Fault, Faults
from simulator.kernel import Kernel, Process
from simulator.parts import REAL, Parts
from simulator.plans import GOOD, Plan
from simulator.scenario import LEASE_S, Errand, Intent, Recovery, Scenario, policy_of
from simulator.store_link import Message
from simulator.task import Task
from simulator.transaction import Connection
from simulator.upgrade import CURRENT
from simulator.worker import Worker
from simulator.world import Played, World, outcome, playing

_FIRST = Intent("acme", "charge", "k1", "a")
_LONG_S = 1.0
"""What takes longer does not happen while a message is on its way."""
_POSTPONED_S = 1.5
"""How much later than its sender believes a statement may arrive. Nobody waits for it to end, so
there is no other limit.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A small world."""

    name: str
    recovery: Recovery
    second: Intent
    first_plan: Plan
    atomic: bool = False


CASES = (
    Case("rerun", "rerun", _FIRST, GOOD),
    Case("block", "block", _FIRST, GOOD),
    Case("first try fails", "rerun", _FIRST, GOOD._replace(raises="error")),
    Case("block, cut off", "block", _FIRST, GOOD._replace(raises="cut off")),
    Case("block, answers 500", "block", _FIRST, GOOD._replace(status=500)),
    Case("ask, raises", "ask", _FIRST, GOOD._replace(raises="error")),
    Case("first try refuses", "block", _FIRST, GOOD._replace(status=403, effect=False)),
    Case("first try is slow", "rerun", _FIRST, GOOD._replace(seconds=LEASE_S / 2)),
    Case("another request", "rerun", _FIRST._replace(content="b"), GOOD),
    Case("atomic", "rerun", _FIRST, GOOD, atomic=True),
    Case("atomic, fails", "rerun", _FIRST, GOOD._replace(status=500), atomic=True),
)


class Choices:
    """A path through all choices, and the way to the next path."""

    def __init__(self) -> None:
        self._path: list[tuple[int, int]] = []
        self._at = 0

    def choose(self, count: int) -> int:
        """One of so many, in the end every one of them."""
        if count == 1:
            return 0
        if self._at == len(self._path):
            self._path.append((0, count))
        self._at += 1
        return self._path[self._at - 1][0]

    def advance(self) -> bool:
        """Whether there is another path."""
        self._at = 0
        while self._path:
            chosen, count = self._path.pop()
            if chosen + 1 < count:
                self._path.append((chosen + 1, count))
                return True
        return False

    def again(self) -> None:
        """The same path once more."""
        self._at = 0

    def __str__(self) -> str:
        return ".".join(str(chosen) for chosen, _ in self._path)


class Calm(Faults):
    """Faults come from choices alone."""

    def _mix(self) -> None:
        self._leg_s = 0.0

    def latency_s(self) -> float:
        return 0.0

    def holds_row(self) -> bool:
        return False

    def brief(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A message on its way to the store."""

    message: Message | Connection
    act: Callable[..., None]
    args: tuple[Any, ...]
    arrives_by: float = float("inf")

    @property
    def late(self) -> bool:
        message = self.message
        return message.broken if isinstance(message, Connection) else message.late


class Explorer(Kernel):
    """Lets everything happen in the order that the choices say."""

    def __init__(self, choices: Choices, faults_max: int) -> None:
        super().__init__()
        self._choices = choices
        self._faults_left = faults_max
        self._arrivals: list[_Arrival] = []
        self._steps: list[tuple[Process, int, Callable[..., None], tuple[Any, ...]]] = []
        self.world: World

    def post(self, delay_s: float, process: Process, act: Callable[..., None], *args: Any) -> None:
        if delay_s >= _LONG_S or (delay_s > 0.0 and _looks_for_its_commit(args)):
            self.at(self.now + delay_s, process, act, *args)
        elif (
            args and isinstance(args[0], Message | Connection) and process is self.world.wire.server
        ):
            self._arrivals.append(_Arrival(args[0], act, args[1:]))
        else:
            self._steps.append((process, process.life, act, args))

    def run(self, until: float) -> None:
        while self._take_steps() or self._next(until):
            self.events += 1

    def _take_steps(self) -> bool:
        """What processes do by themselves, and what is due."""
        if self._steps:
            process, life, act, args = self._steps.pop(0)
            if process.life == life:
                act(*args)
            return True
        if self._heap and self._heap[0][0] <= self.now:
            self._let_time_pass()
            return True
        return False

    def _next(self, until: float) -> bool:
        """One choice: which message arrives, what goes wrong, or that time passes."""
        timers = bool(self._heap) and self._heap[0][0] <= until
        if not self._arrivals and not timers:
            return False
        options: list[Callable[[], None]] = [
            partial(self._arrive, arrival) for arrival in self._arrivals
        ]
        if timers and self._may_wait(self._heap[0][0]):
            options.append(self._let_time_pass)
        if self._faults_left:
            options += self._mishaps()
        options[self._choices.choose(len(options))]()
        return True

    def _may_wait(self, until: float) -> bool:
        return all(arrival.late and until < arrival.arrives_by for arrival in self._arrivals)

    def _arrive(self, arrival: _Arrival) -> None:
        self._arrivals.remove(arrival)
        arrival.act(arrival.message, *arrival.args)

    def _let_time_pass(self) -> None:
        when, _, process, life, act, args = heappop(self._heap)
        self.now = max(self.now, when)
        if process.life == life:
            act(*args)

    # -------------------------------------------------------------------------- what goes wrong

    def _mishaps(self) -> list[Callable[[], None]]:
        mishaps: list[Callable[[], None]] = []
        for arrival in self._arrivals:
            if not arrival.late:
                mishaps.append(partial(self._lose, arrival))
                mishaps.append(partial(self._delay, arrival))
                if isinstance(arrival.message, Message):
                    mishaps.append(partial(self._duplicate, arrival, arrival.message))
        for worker in self.world.workers:
            if worker.tasks:
                mishaps.append(partial(self._kill, worker))
        if self._arrivals:
            mishaps.append(self._lapse)
        return mishaps

    def _spend(self, fault: Fault) -> None:
        self._faults_left -= 1
        self.world.faults.note(fault, self.now)

    def _lose(self, arrival: _Arrival) -> None:
        self._spend(Fault.LOST_REQUEST)
        self._arrivals.remove(arrival)
        message = arrival.message
        self._tell(Fault.LOST_REQUEST, message)
        if isinstance(message, Connection):
            self.world.database.lose(message, *arrival.args[:1])
        else:
            self.world.wire.lose(message)

    def _delay(self, arrival: _Arrival) -> None:
        """Its sender gives up; it arrives at any time later, or at once with its reply lost."""
        self._spend(Fault.DELAY)
        message = arrival.message
        self._tell(Fault.DELAY, message)
        if isinstance(message, Connection):
            self._arrivals.remove(arrival)
            unanswered = (*arrival.args[:-1], False)
            by = self.now + _POSTPONED_S
            self._arrivals.append(_Arrival(message, arrival.act, unanswered, by))
            self.world.database.orphan(message)
        else:
            self.world.wire.orphan(message)

    def _duplicate(self, arrival: _Arrival, message: Message) -> None:
        self._spend(Fault.DUPLICATE)
        self._tell(Fault.DUPLICATE, message)
        self._arrivals.append(_Arrival(self.world.wire.copy(message), arrival.act, ()))

    def _tell(self, fault: Fault, message: Message | Connection) -> None:
        timeline = self.world.timeline
        if isinstance(message, Connection):
            timeline.says(message.transaction.task, f"!! {fault.name.lower()}")
        else:
            timeline.fault(fault, message.worker, message.tickets)

    def _kill(self, worker: Worker) -> None:
        self._faults_left -= 1
        worker.crash()

    def _lapse(self) -> None:
        """Everything stands still for longer than a lease."""
        self._spend(Fault.PAUSE)
        self.now += 1.01 * LEASE_S
        for worker in self.world.workers:
            worker.paused_until = self.now
        self.world.timeline.process(self.world.workers[0], "everything stands still")


def _looks_for_its_commit(args: tuple[Any, ...]) -> bool:
    """It asks again and again until others are done: that takes time."""
    return bool(args) and isinstance(args[0], Task) and args[0].commit is not None


class SmallWorld(World):
    """Clients and handlers without chance."""

    case: Case
    _plans = 0

    def route(self, client: Client) -> Worker | None:
        up = [worker for worker in self.workers if worker.up]
        return up[(client.index + client.tries) % len(up)] if up else None

    def plan(self, task: Task) -> Plan:
        self._plans += 1
        task.plan = self.case.first_plan if self._plans == 1 else GOOD
        return task.plan

    def asking_s(self) -> float:
        return 0.1

    def find_out(self, task: Task) -> object:
        return self._found_out(task) if task.book.effects else Learned.NOT_DONE


@dataclass(frozen=True, slots=True)
class Explored:
    """How a case went."""

    case: str
    schedules: int
    exhausted: bool
    """There are no others."""
    failed: Played | None
    path: str

    @property
    def end(self) -> str:
        """What came of so many schedules, in words."""
        if self.failed is not None:
            return self.failed.violation
        return "all of them" if self.exhausted else "no promise broken, and there are more"


def explore_named(name: str, faults_max: int, bug: str = "") -> Explored:
    """A case by its name, for processes that are told nothing else."""
    case = next(case for case in CASES if case.name == name)
    return explore(case, faults_max, Marks(), BUGS[bug].parts() if bug else REAL)


def explore(
    case: Case,
    faults_max: int,
    marks: Marks,
    parts: Parts = REAL,
    *,
    schedules_max: int = 10_000_000,
) -> Explored:
    """Run every schedule of a case, or as many as allowed, or until one breaks a promise."""
    choices = Choices()
    count = 0
    with playing(parts, marks):
        while count < schedules_max:
            count += 1
            if _play(case, choices, faults_max, parts, marks).violation:
                choices.again()
                failed = _play(case, choices, faults_max, parts, marks, written=True)
                return Explored(case.name, count, False, failed, str(choices))
            if not choices.advance():
                return Explored(case.name, count, True, None, "")
    return Explored(case.name, count, False, None, "")


def _play(
    case: Case,
    choices: Choices,
    faults_max: int,
    parts: Parts,
    marks: Marks,
    *,
    written: bool = False,
) -> Played:
    kernel, even = Explorer(choices, faults_max), _even
    world = SmallWorld(kernel, scenario(case), Calm(even), even, parts, marks, written=written)
    world.case = case
    kernel.world = world
    return outcome(world, 0)


def scenario(case: Case) -> Scenario:
    """Two workers and two clients that start together."""
    policy = policy_of(case.recovery, "refuse", 5, 120.0, "refuse", "operation")
    policy = replace(policy, atomic=case.atomic)
    return Scenario(
        policies=(policy, policy),
        versions=(CURRENT, CURRENT),
        retention_from="completion",
        lanes="one",
        rows_max=128,
        errands=(Errand(_FIRST, 0.0, 0.0), Errand(case.second, 0.0, 0.0)),
        operator=False,
        sweep_every_s=0.0,
        slow=0.0,
    )


def _even() -> float:
    return 0.5
