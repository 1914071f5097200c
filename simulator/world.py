"""One schedule: a store, a few workers, a few clients, and whatever goes wrong between them."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from oncekey._core import lifecycle
from oncekey._core.op import Op
from oncekey._core.policy import Learned, Verdict
from oncekey._core.problems import Kind
from oncekey._core.record import Answer, Claim, State
from oncekey._core.verbs import Find, Verb
from oncekey._engine.guard import Call
from simulator import plans
from simulator import scenario as scenarios
from simulator.clients import Client
from simulator.coverage import Marks
from simulator.database import Database
from simulator.faults import Fault, Faults
from simulator.ghost import RUNNING, Ghost
from simulator.judge import Judge
from simulator.kernel import Kernel, Process, Restless
from simulator.oracle import Oracle
from simulator.parts import REAL, Parts
from simulator.plans import Plan
from simulator.previous_release import earlier
from simulator.recovery import Recovering
from simulator.scenario import (
    CALM_AFTER_S,
    HORIZON_S,
    LEASE_S,
    STILL_AFTER_S,
    Errand,
    Intent,
    Scenario,
)
from simulator.steps import Downstream
from simulator.store_link import StoreClock, Wire
from simulator.task import Task
from simulator.timeline import Timeline, Written
from simulator.upgrade import reads
from simulator.violation import Violation
from simulator.worker import Worker

ATOMIC_EVERY = 6
ENTOMBED_EVERY = 5
ASKED_EVERY = 7
CAREFUL_EVERY = 9
ROLLING_EVERY = 11
UPGRADED_EVERY = 17
FADE_EVERY_S = 8.0
DRAINED = 0.1
"""How many schedules restart a process as a deployment does."""
_PROBES_MAX = 3
_TOLD = (
    *(kind.value for kind in Kind),
    "answered",
    "answered, unstored",
    "failed",
    "failed, outcome unknown",
    "refused inside",
    "replayed",
    "unprotected",
)


class World:
    """Everything in one schedule."""

    def __init__(
        self,
        kernel: Kernel,
        scenario: Scenario,
        faults: Faults,
        chance: Callable[[], float],
        parts: Parts,
        marks: Marks,
        *,
        written: bool = False,
    ) -> None:
        self.kernel = kernel
        self.scenario = scenario
        self.faults = faults
        self.chance = chance
        self.parts = parts
        self.marks = marks
        self._build(written)

    def _build(self, written: bool) -> None:
        kernel, faults = self.kernel, self.faults
        self.timeline: Timeline = Written(kernel, self.scenario) if written else Timeline()
        self.outside = Process("outside")
        clock = StoreClock(kernel)
        self.oracle = Oracle(kernel, self.scenario, faults, self.marks, self.timeline, clock)
        self.judge = Judge(kernel, faults, self.oracle)
        self.store = self.parts.store(clock)
        self.wire = Wire(kernel, faults, self.store, clock, self.oracle, self.timeline)
        self.database = self.wire.database = Database(self)
        self.downstream = Downstream()
        rolling = self.scenario.earlier is not None
        self.guard_before = earlier(self.parts.guard) if rolling else self.parts.guard
        self.recovering = Recovering(self)
        self.graveyard: list[Any] = []
        """Dead generators: kept until the end, so that no `finally` of them runs."""
        self.over = False
        """What the dead leave behind does nothing any more."""
        self._tokens = 0
        self._answers = 0
        choices = zip(self.scenario.policies, self.scenario.versions, strict=True)
        self.workers = [
            Worker(self, index, policy, version, earlier=index == self.scenario.earlier)
            for index, (policy, version) in enumerate(choices)
        ]
        self.oracle.trace += self.scenario.cast()
        self.clients: list[Client] = []
        for errand in self.scenario.errands:
            self._client(errand)
        for worker, at in zip(self.workers, self.scenario.upgrades_at, strict=False):
            kernel.at(at, self.outside, worker.upgrade)
        if self.chance() < DRAINED:
            kernel.at(10.0 * self.chance(), self.outside, self.workers[0].drain)
        if self.scenario.recoverer:
            self.recovering.start()
        if self.scenario.sweep_every_s:
            kernel.at(self.scenario.sweep_every_s * self.chance(), self.outside, self._sweep)
        if any(policy.tombstone_s for policy in self.scenario.policies):
            kernel.at(FADE_EVERY_S * self.chance(), self.outside, self._fade)

    # ------------------------------------------------------------------------------- running

    def run(self) -> None:
        """Until everything has settled; raises `Violation`."""
        kernel = self.kernel
        try:
            kernel.run(HORIZON_S)
            if self.scenario.recoverer:
                self.recovering.check()
            for _ in range(_PROBES_MAX):
                if not self._probe():
                    break
                kernel.run(kernel.now + HORIZON_S)
        except Restless as restless:
            raise Violation("P11", str(restless)) from None
        for client in self.clients:
            if not client.done:
                raise Violation("P6", f"{client.name} still has no answer at {kernel.now:.0f} s")
            if self.scenario.upgrades_at and client.done == Kind.NEWER_RECORD.value:
                raise Violation("P6", f"{client.name} is refused for good after a deployment")
        for transaction in self.database.open:
            raise Violation("P6", f"{transaction.task} left its transaction open")
        for ghost in self.oracle.ghosts.values():
            forgotten = self.scenario.dated and ghost.expires <= self.store._now()  # but not swept
            if ghost.state is RUNNING and not forgotten:
                raise Violation("P6", f"{ghost} still runs, and nobody is there to end it")

    def _probe(self) -> bool:
        """Knock at every record that was left running: its owner is dead, so whoever comes after
        its lease must get through.
        """
        now = self.store._now()
        running = [g for g in self.oracle.ghosts.values() if g.state is RUNNING]
        for ghost in running:
            if ghost.intent is not None:
                at = self.kernel.now + max(ghost.lease_until - now, 0.0) + 0.01
                self._client(Errand(ghost.intent, max(at, STILL_AFTER_S), 0.0, ghost.version))
        return bool(running)

    def _client(self, errand: Errand) -> None:
        client = Client(self, len(self.clients), errand)
        self.clients.append(client)
        self.kernel.at(errand.starts_at, self.outside, client.send)

    def _sweep(self) -> None:
        busy = not self.settled
        up = [worker for worker in self.workers if worker.up]
        if up:
            worker = up[0]
            task = self.housekeeping(worker, "sweeper")
            task.op = worker.sweep()
            self.kernel.at(self.kernel.now, worker, worker.begin, task)
        if busy:
            every_s = self.scenario.sweep_every_s
            self.kernel.at(self.kernel.now + every_s, self.outside, self._sweep)

    def _fade(self) -> None:
        """Somebody blanks what is over."""
        busy = not self.settled
        up = [worker for worker in self.workers if worker.up]
        for ghost in list(self.oracle.ghosts.values()) if up else ():
            worker = up[int(self.chance() * len(up))]
            task = self.housekeeping(worker, "fader", ghost)
            task.claim = worker.guard.claim(task.call, worker.policy)
            task.op = worker.fade(task.claim)
            self.kernel.at(self.kernel.now, worker, worker.begin, task)
        if busy:
            self.kernel.at(self.kernel.now + FADE_EVERY_S, self.outside, self._fade)

    @property
    def settled(self) -> bool:
        """Whether every client has its answer."""
        return all(client.done for client in self.clients)

    def housekeeping(self, worker: Worker, name: str, ghost: Ghost | None = None) -> Task:
        """Work that is about no record in particular, or about one that somebody asked for."""
        intent = (ghost and ghost.intent) or self.scenario.errands[0].intent
        return worker.task_about(name, intent, self.oracle.ghost(intent, worker.policy))

    # ---------------------------------------------------------------- what the others ask for

    def token(self) -> bytes:
        self._tokens += 1
        return self._tokens.to_bytes(16, "big")

    def call(self, intent: Intent, version: int) -> Call:
        first_sent = 0.0 if self.scenario.dated else None
        with_path = self.parts.with_path
        return scenarios.call_of(intent, version, with_path=with_path, first_sent=first_sent)

    def group(self, verb: Verb) -> Hashable:
        """Which connection a verb takes."""
        if self.scenario.lanes == "one":
            return self.store.group(verb)
        return type(verb).__name__

    def route(self, client: Client) -> Worker | None:
        """A worker that takes a client's request, None if all are down."""
        version = client.errand.version
        up = [
            worker
            for worker in self.workers
            if worker.up and (not version or reads(worker.version, version))
        ]
        return up[int(self.chance() * len(up))] if up else None

    @property
    def calm(self) -> bool:
        return self.kernel.now > CALM_AFTER_S

    def plan(self, task: Task) -> Plan:
        """What the handler of a task is going to do."""
        plan = plans.draw(self.chance, self.scenario.slow, calm=self.calm)
        if task.earlier and plan.said is Verdict.UNKNOWN:  # that release does not have it
            plan = plan._replace(said=None)
        if task.earlier:  # nor does it look at threads
            plan = plan._replace(leaves_s=0.0)
        self.oracle.trace.append(plan.status & 0xFF)
        task.plan = plan
        return plan

    def asking_s(self) -> float:
        """How long the application takes to find out."""
        if self.calm or self.chance() < 0.8:
            return 0.1
        return LEASE_S * 2.0 * self.chance()

    def find_out(self, task: Task) -> object:
        """What the application says of an attempt that died. What it says is true, but now and then
        it says nothing.
        """
        chance = 1.0 if self.calm else self.chance()
        if chance < 0.1:
            return self._learned("unknown", Learned.UNKNOWN)
        if chance < 0.2:
            return self._learned("nothing", ConnectionError("who could tell does not answer"))
        if task.book.effects:
            return self._learned("an answer", self._found_out(task))
        return self._learned("not done", Learned.NOT_DONE)

    def _learned(self, what: str, learned: object) -> object:
        self.marks.learned[what] += 1
        return learned

    def effect(self, task: Task) -> None:
        self.timeline.says(task, "has its effect")
        self.judge.effect(task)

    def answer(self, task: Task) -> Answer:
        """What the handler answers: never the same twice."""
        self._answers += 1
        number = b"%d" % self._answers
        headers = ((b"x-run", number), (b"Content-Type", b"text/plain"), (b"x-run", b"again"))
        body = None if task.plan.large else repr(task.intent).encode() + number
        return Answer(task.plan.status, headers, body)

    def trace(self, fault: Fault, worker: Worker) -> None:
        self.oracle.trace.append(0xF0 | worker.index)
        self.oracle.trace.append(fault)

    def told(self, task: Task, what: str) -> None:
        self.marks.told[what] += 1
        self.oracle.trace.append(0x80 | _TOLD.index(what))
        self.timeline.says(task, f"tells its client: {what}")
        if task.client is not None:
            task.client.told(task, what)

    def died(self, worker: Worker, tasks: list[Task]) -> None:
        for task in sorted(tasks, key=lambda task: task.name):
            if task.client is not None:
                task.client.lost(task)

    # ------------------------------------------------------------------------------- operator

    def call_operator(self, task: Task) -> None:
        """Somebody looks into an unknown outcome, later, and finds out one thing or the other."""
        if self.scenario.operator:
            at = self.kernel.now + 8.0 * self.chance()
            self.kernel.at(at, task.worker, self._operate, task)

    def _operate(self, about: Task) -> None:
        worker = about.worker
        found_out = self._found_out(about) if self.chance() < 0.5 else None
        retry = Errand(about.intent, self.kernel.now + 5.0 * self.chance(), 0.0)
        self._client(retry)
        claim = worker.guard.claim(about.call, about.policy)
        worker.spawn_aside("operator", about, claim, self._resolve(claim, found_out), found_out)

    def _found_out(self, about: Task) -> Answer:
        self._answers += 1
        return Answer(200, ((b"x-found-out", b"%d" % self._answers),), repr(about.intent).encode())

    def _resolve(self, claim: Claim, answer: Answer | None) -> Op[None]:
        found = yield Find(claim.id)
        if found is not None and found.state is State.UNKNOWN and not found.expired:
            yield lifecycle.resolve(
                found,
                new_token=claim.token,
                answer=answer,
                retention_s=claim.retention_s,
            )


@dataclass(frozen=True, slots=True)
class Played:
    """How one schedule went."""

    seed: int
    violation: str
    """Empty if every promise was kept."""
    digest: bytes
    """Of who took part and what happened in which order, without times: equal digests are equal
    schedules.
    """
    faults: int
    events: int
    simulated_s: float
    timeline: tuple[str, ...] = ()


@contextmanager
def playing(parts: Parts, marks: Marks) -> Iterator[None]:
    """Within this, schedules run on these parts and are counted."""
    log = logging.getLogger("oncekey")
    spoke, log.disabled = log.disabled, True  # of what is undone, which is meant to be
    try:
        with parts.tables(), marks.watching():
            yield
    finally:
        log.disabled = spoke


def is_atomic(seed: int) -> bool:
    """Whether a schedule has workers in atomic mode. It goes by the seed, not by chance, so that
    the others are what they would be without.
    """
    return seed % ATOMIC_EVERY == ATOMIC_EVERY - 1


def is_entombed(seed: int) -> bool:
    """Whether a schedule has tombstones; by the seed likewise."""
    return seed % ENTOMBED_EVERY == ENTOMBED_EVERY - 1


def is_asked(seed: int) -> bool:
    """Whether the application can be asked what became of an attempt; by the seed likewise."""
    return seed % ASKED_EVERY == ASKED_EVERY - 1


def is_rolling(seed: int) -> bool:
    """Whether a process with the engine of the release before works beside the others; by the seed
    likewise.
    """
    return seed % ROLLING_EVERY == ROLLING_EVERY - 1


def is_careful(seed: int) -> bool:
    """Whether a step must not be repeated, whatever the recovery; by the seed likewise."""
    return seed % CAREFUL_EVERY == CAREFUL_EVERY - 1


def is_upgraded(seed: int) -> bool:
    """Whether all processes begin with the fingerprints of the release before, and each is replaced
    by one of this release; by the seed likewise.
    """
    return seed % UPGRADED_EVERY == UPGRADED_EVERY - 1


def keep_of(seed: int) -> Callable[[int], Verdict]:
    """What answers mean for their records; by the seed likewise."""
    return plans.KEEPS[seed % len(plans.KEEPS)]


def play(seed: int, marks: Marks, parts: Parts = REAL, *, written: bool = False) -> Played:
    """Run the schedule of a seed, within `playing(parts, marks)`."""
    chance = random.Random(seed).random
    scenario = scenarios.draw(
        chance,
        atomic=is_atomic(seed),
        entombed=is_entombed(seed),
        asked=is_asked(seed),
        rolling=is_rolling(seed),
        careful=is_careful(seed),
        upgraded=is_upgraded(seed),
        keep=keep_of(seed),
    )
    faults = Faults(chance)
    world = World(Kernel(), scenario, faults, chance, parts, marks, written=written)
    return outcome(world, seed)


def outcome(world: World, seed: int) -> Played:
    """Run a world and say how it went."""
    violation = ""
    try:
        world.run()
    except Violation as broken:
        violation = str(broken)
    world.over = True
    injected, marks = world.faults.injected, world.marks
    for fault in Fault:
        if injected[fault]:
            marks.faults[fault.name.lower().replace("_", " ")] += injected[fault]
    trace = world.oracle.trace
    lines = world.timeline.lines if isinstance(world.timeline, Written) else []
    return Played(
        seed=seed,
        violation=violation,
        digest=hashlib.blake2b(trace, digest_size=8).digest(),
        faults=sum(injected),
        events=world.kernel.events,
        simulated_s=world.kernel.now,
        timeline=tuple(lines),
    )
