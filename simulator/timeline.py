"""The timeline: one schedule as somebody can read it, written only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncekey._core.op import Offload, Pause
from oncekey._core.record import Glimpse, Record
from oncekey._core.verbs import Done, Found, Insert, Inserted, Refused, Swap, Verb, When
from oncekey.atomic._transaction import Outside
from oncekey.stores.batching import Ticket
from oncekey.stores.postgres import transactions
from oncekey.stores.postgres.verbs import Question
from simulator.faults import Fault
from simulator.kernel import Kernel
from simulator.moves import name_of
from simulator.scenario import Scenario
from simulator.transaction import Asked

if TYPE_CHECKING:
    from simulator.task import Task
    from simulator.worker import Worker


class Timeline:
    """Nothing is written here; `Written` does."""

    def fault(self, fault: Fault, worker: Worker, tickets: list[Ticket[Task]]) -> None: ...
    def unsent(self, worker: Worker, tickets: list[Ticket[Task]]) -> None: ...
    def store(self, fault: Fault, ahead_s: float, down_until: float) -> None: ...
    def applied(self, task: Task, verb: Verb, outcome: Any, late: bool) -> None: ...
    def asked(self, task: Task, question: Any) -> None: ...
    def failed(self, task: Task) -> None: ...
    def process(self, worker: Worker, what: str) -> None: ...
    def says(self, task: Task, what: str) -> None: ...


class Written(Timeline):
    """Lines of time, place and event."""

    def __init__(self, kernel: Kernel, scenario: Scenario) -> None:
        self._kernel = kernel
        self.lines = scenario.describe()

    def _write(self, where: object, what: str) -> None:
        self.lines.append(f"{self._kernel.now:9.3f}  {where!s:<18} {what}")

    def fault(self, fault: Fault, worker: Worker, tickets: list[Ticket[Task]]) -> None:
        verbs = ", ".join(f"{t.waiter.name} {_verb(t.verb)}" for t in tickets)
        self._write(worker.name, f"!! {_fault(fault)}: {verbs}")

    def unsent(self, worker: Worker, tickets: list[Ticket[Task]]) -> None:
        verbs = ", ".join(f"{t.waiter.name} {_verb(t.verb)}" for t in tickets)
        self._write(worker.name, f"the store is down, not sent: {verbs}")

    def store(self, fault: Fault, ahead_s: float, down_until: float) -> None:
        until = f" until {down_until:.3f}" if fault is Fault.STORE_DOWN else f", {ahead_s:+.1f} s"
        self._write("store", f"!! {_fault(fault)}{until}")

    def applied(self, task: Task, verb: Verb, outcome: Any, late: bool) -> None:
        when = " (late)" if late else ""
        self._write("store", f"{task}: {_verb(verb)}{when} -> {_outcome(outcome)}")

    def asked(self, task: Task, question: Any) -> None:
        if isinstance(question, Pause):
            self._write(task, f"waits {question.seconds:.3f} s")
        elif isinstance(question, Offload):
            self._write(task, "looks at its request by earlier rules")
        else:
            self._write(task, f"asks {_verb(question)}")

    def failed(self, task: Task) -> None:
        self._write(task, "gets no answer")

    def process(self, worker: Worker, what: str) -> None:
        self._write(worker.name, f"!! {what}")

    def says(self, task: Task, what: str) -> None:
        self._write(task, what)


def _fault(fault: Fault) -> str:
    return fault.name.lower().replace("_", " ")


def _verb(verb: Any) -> str:
    match verb:
        case Insert(claim):
            return f"insert(token {_token(claim.token)})"
        case Swap():
            when = "" if verb.when is When.ANY else f" when {verb.when.value}"
            new = f", new token {_token(verb.new_token)}" if verb.new_token else ""
            how = " without effect" if verb.no_effect else ""
            how = ", lapsed" if name_of(verb) == "lapse" else how
            held = f"fence {verb.fence}, token {_token(verb.token)}"
            return f"swap({verb.state} -> {verb.to}{how}{when}, {held}{new})"
        case Question():
            return "of the database: " + _STATEMENTS.get(verb.sql, "something")
        case Outside(question):
            return f"outside its transaction: {_verb(question)}"
        case Asked(verbs):
            return "within its transaction: " + ", ".join(map(_verb, verbs))
        case _:
            return type(verb).__name__.lower()


_STATEMENTS = {
    transactions._CLAIM: "the id, and whether there is a record",
    transactions._HOLD: "the id, and what the record says",
    transactions._MARK.sql: "whether the transaction is still the same",
    transactions._INSERT_COMPLETED: "to write the record and its answer",
}


def _outcome(outcome: Any) -> str:
    match outcome:
        case Inserted(fence):
            return f"inserted, fence {fence}"
        case Done(fence):
            return f"done, fence {fence}"
        case Found(record):
            return f"found {_record(record)}"
        case Refused(None):
            return "refused: nothing there"
        case Refused(Record() as record):
            return f"refused: {_record(record)}"
        case Record():
            return _record(outcome)
        case Glimpse():
            return f"{outcome.state}, fence {outcome.fence}, {outcome.lease_left_s:.3f} s left"
        case _:
            return str(outcome)


def _record(record: Record) -> str:
    how = " without effect" if record.no_effect else ""
    return (
        f"{record.state}{how}, fence {record.fence}, token {_token(record.token)}, "
        f"lapses {record.lapses}, lease {record.lease_left_s:.3f} s, "
        f"expires {record.expires_in_s:.3f} s"
    )


def _token(token: bytes) -> str:
    return str(int.from_bytes(token, "big"))
