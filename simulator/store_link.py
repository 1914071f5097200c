"""The way to the store and the store at its end: real verbs, real semantics, unreliable legs.

A message is a batch of verbs. Its request leg can be lost or delayed past the lease, it can be
carried out twice, and its reply can be lost: the sender then learns only that it does not know. A
message that is on its way arrives even if its sender is dead by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oncekey._core.verbs import Sweep, Verb
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import AGAIN
from oncekey.stores.batching import Ticket
from oncekey.stores.memory import MemoryStore
from simulator.faults import Fault, Faults
from simulator.ghost import Note
from simulator.kernel import Kernel, Process
from simulator.oracle import Oracle
from simulator.task import Task
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from simulator.database import Database
    from simulator.worker import Worker

ROW_HELD_S_MAX = 3.75
"""How long a verb waits for a row that a transaction has written, before it is told so."""
ROW_POLL_S = 0.05
Reply = list[tuple[Any, Note | None]] | StoreUnavailable
Settle = Callable[[list[Ticket[Task]], Reply], None]


class StoreClock:
    """The store's own clock: it can be set."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.ahead_s = 1_000.0
        self.asker_ahead_s = 0.0
        """What the host believes that asks at the moment. Nothing may depend on it."""

    def boot(self) -> float:
        return self._kernel.now + self.ahead_s

    monotonic = wall = boot

    def boot_id(self) -> str:
        return "store"


class Message:
    """A batch on its way."""

    __slots__ = ("gives_up_at", "late", "life", "settle", "tickets", "worker")

    def __init__(self, worker: Worker, tickets: list[Ticket[Task]], settle: Settle) -> None:
        self.worker = worker
        self.life = worker.life
        """A reply is for the incarnation that asked."""
        self.tickets = tickets
        self.settle = settle
        self.late = False
        """Delayed, or a second copy: it arrives when its sender does not count on it any more."""
        self.gives_up_at = 0.0
        """Until when it waits for a row that a transaction holds, once it does."""


class Wire:
    """Carries messages to the store and replies back."""

    def __init__(
        self,
        kernel: Kernel,
        faults: Faults,
        store: MemoryStore,
        clock: StoreClock,
        oracle: Oracle,
        timeline: Timeline,
    ) -> None:
        self.kernel = kernel
        self.server = Process("store")
        self._faults = faults
        self._store = store
        self._clock = clock
        self._oracle = oracle
        self._timeline = timeline
        self._down_until = -1.0
        self.database: Database

    @property
    def down(self) -> bool:
        return self.kernel.now < self._down_until

    def send(self, worker: Worker, tickets: list[Ticket[Task]], settle: Settle) -> None:
        """Send a batch; `settle` gets the reply, or that there is none."""
        kernel, faults = self.kernel, self._faults
        message = Message(worker, tickets, settle)
        if kernel.now < self._down_until:
            error = StoreUnavailable("the store is down", sent=False)
            kernel.post(faults.latency_s(), worker, self.deliver, message, error)
            self._timeline.unsent(worker, tickets)
            return
        self._oracle.sent(tickets)
        fault = faults.of_message(kernel.now)
        if fault is None:
            kernel.post(faults.latency_s(), self.server, self.arrive, message)
            return
        self._timeline.fault(fault, worker, tickets)
        match fault:
            case Fault.LOST_REQUEST:
                faults.note(fault, kernel.now)
                self.lose(message)
            case Fault.LOST_REPLY:
                faults.note(fault, kernel.now)
                self.orphan(message)
                message.late = False
                kernel.post(faults.latency_s(), self.server, self.arrive, message)
            case Fault.DUPLICATE:
                after = faults.delay_s() if faults.brief() else faults.latency_s()
                faults.note(fault, kernel.now + after)
                kernel.post(after, self.server, self.arrive, self.copy(message))
                kernel.post(faults.latency_s(), self.server, self.arrive, message)
            case _:  # delayed
                after = faults.delay_s()
                faults.note(fault, kernel.now + after)
                self.orphan(message)
                kernel.post(after, self.server, self.arrive, message)

    def lose(self, message: Message) -> None:
        """Its sender waits in vain, and then does not know whether it was carried out."""
        error = StoreUnavailable("no reply in time", sent=True)
        settle, tickets = message.settle, message.tickets
        if message.worker.life == message.life:
            self.kernel.post(self._faults.timeout_s(), message.worker, settle, tickets, error)

    def orphan(self, message: Message) -> None:
        """Its sender gives up, but it goes on."""
        self.lose(message)
        message.settle, message.late = _nobody, True

    def copy(self, message: Message) -> Message:
        """The same message a second time, as a network or a driver may send it."""
        copy = Message(message.worker, message.tickets, _nobody)
        copy.late = True
        return copy

    def arrive(self, message: Message) -> None:
        """At the store: carried out at once and as a whole, then the reply leaves."""
        self.strike()
        worker, tickets = message.worker, message.tickets
        if self.down:
            self.lose(message)
            return
        held = self.database.holds(tickets) if self.database.open else []
        if held and len(tickets) == 1:
            self._wait_for_row(message)
            return
        if len(tickets) > 1 and self._faults.holds_row() and tickets[0] not in held:
            held.append(tickets[0])
        # Somebody else holds these rows: those verbs must be asked again, alone.
        carried = iter(self._carry_out(message, [t for t in tickets if t not in held]))
        replies = [(AGAIN, None) if t in held else next(carried) for t in tickets]
        if message.settle is not _nobody:
            self.kernel.post(self._faults.latency_s(), worker, self.deliver, message, replies)

    def _wait_for_row(self, message: Message) -> None:
        """A transaction has written the row and is not over; nobody waits for that for long."""
        now = self.kernel.now
        if not message.gives_up_at:
            message.gives_up_at = now + ROW_HELD_S_MAX
            self.database.marks["a leased one waits for the row"] += 1
        if now < message.gives_up_at:
            self.kernel.post(ROW_POLL_S, self.server, self.arrive, message)
        elif message.settle is not _nobody:
            error = StoreUnavailable("another transaction holds the record", sent=True)
            after_s = self._faults.latency_s()
            self.kernel.post(after_s, message.worker, self.deliver, message, error)

    def deliver(self, message: Message, reply: Reply) -> None:
        """Back at the sender, if it still lives."""
        if message.worker.life == message.life:
            message.settle(message.tickets, reply)

    def _carry_out(
        self, message: Message, tickets: list[Ticket[Task]]
    ) -> list[tuple[Any, Note | None]]:
        outcomes = self.perform(message.worker, [ticket.verb for ticket in tickets])
        now = self._clock.boot()
        applied = self._oracle.applied
        late = message.late
        return [
            (outcome, applied(ticket, outcome, now, late))
            for ticket, outcome in zip(tickets, outcomes, strict=True)
        ]

    def perform(self, worker: Worker, verbs: Sequence[Verb]) -> list[Any]:
        """The real store's judgement."""
        self._clock.asker_ahead_s = worker.ahead_s
        if self.database.open and any(type(verb) is Sweep for verb in verbs):
            return [outcome for verb in verbs for outcome in self._beside_transactions(verb)]
        return self._perform(verbs)

    def _beside_transactions(self, verb: Verb) -> list[Any]:
        if type(verb) is not Sweep:
            return self._perform([verb])
        with self.database.rows_held():
            return self._perform([verb])

    def _perform(self, verbs: Sequence[Verb]) -> list[Any]:
        op = self._store.perform(verbs)
        try:
            question = next(op)
        except StopIteration as stop:
            outcomes: list[Any] = stop.value
            return outcomes
        raise AssertionError(f"the memory store asks nothing, got {question!r}")

    def strike(self) -> None:
        """Something may happen to the store itself."""
        kernel, faults = self.kernel, self._faults
        fault = faults.of_store(kernel.now)
        if fault is None:
            return
        if fault is Fault.STORE_DOWN:
            self._down_until = kernel.now + faults.down_s()
            faults.note(fault, self._down_until)
            self.database.went_down()
        else:
            jump_s = faults.jump_s()
            self._clock.ahead_s += jump_s if fault is Fault.CLOCK_FORWARD else -jump_s
            faults.note(fault, kernel.now)
            self._oracle.clock_was_set()
        self._timeline.store(fault, self._clock.ahead_s, self._down_until)


def _nobody(tickets: list[Ticket[Task]], reply: Reply) -> None:
    """Settles what nobody waits for."""
