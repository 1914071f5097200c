"""A database with transactions, as atomic mode meets it: the real `Work` asks, this answers.

It stands for PostgreSQL. The id is taken by a try-lock that ends with the transaction; a statement
sees what is committed when it begins; what is written is locked, and seen by others only from the
commit on, which carries out all of it in one moment. Messages of one connection keep their order
and never come twice. Where a connection breaks, or a process dies, the server hears of it only
after what was already on its way: so a COMMIT that nobody acknowledged may have happened or not,
or may be about to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncekey.atomic._transaction import Begin, Commit, Flush, Outside, Rollback
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import Ticket
from oncekey.stores.postgres.verbs import Question
from simulator.faults import Fault
from simulator.ghost import Note
from simulator.statements import Look, is_look
from simulator.task import Task
from simulator.transaction import Asked, Connection, Transaction, Write
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.worker import Worker
    from simulator.world import World


class Database:
    """The connections that atomic requests have to the store's database."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kernel = world.kernel
        self._faults = world.faults
        self._statements = world.parts.statements(world.store, world.oracle, world.marks)
        self.marks = world.marks.atomic
        self.open: list[Transaction] = []
        """In the order in which they were begun."""

    # ------------------------------------------------------------------- on the client's side

    def asked(self, task: Task, question: Any) -> Any:
        """Take a question that belongs into the task's transaction; give back any other."""
        match question:
            case Outside(outside):
                return outside
            case Begin():
                self._begin(task)
            case Rollback():
                self._roll_back(task)
            case Flush():  # there is no connection that holds anything back
                self._kernel.post(0.0, task.worker, task.worker.resume, task, None)
            case Commit():
                connection, task.connection = task.connection, None
                task.commit = None if connection is None else connection.transaction
                self._send(task, connection, question)
            case Question() | Asked() | Write():
                self._send(task, task.connection, question)
            case _:
                return question
        return None

    def _begin(self, task: Task) -> None:
        """A connection of a pool, and BEGIN: of this the server keeps nothing that matters."""
        worker, faults = task.worker, self._faults
        task.asks += 1
        fault = faults.of_message(self._kernel.now)
        if fault is None or fault is Fault.DUPLICATE:
            both_s = faults.latency_s() + faults.latency_s()
            self._kernel.post(both_s, worker, self._begun, task)
            return
        faults.note(fault, self._kernel.now)
        error = StoreUnavailable("no connection", sent=False)
        self._kernel.post(faults.timeout_s(), worker, worker.fail, task, error)

    def _begun(self, task: Task) -> None:
        if self._world.wire.down:
            task.worker.fail(task, StoreUnavailable("no connection", sent=False))
            return
        if task.over:  # cancelled meanwhile: its connection goes back
            return
        transaction = Transaction(task)
        self.open.append(transaction)
        task.connection = Connection(transaction)
        task.worker.resume(task, True)

    def _send(self, task: Task, connection: Connection | None, question: Any) -> None:
        if connection is None:
            raise Violation("P2", f"{task} asks {type(question).__name__} without a transaction")
        kernel, faults = self._kernel, self._faults
        task.asks += 1
        fault = None if connection.broken else faults.of_message(kernel.now)
        if connection.broken:
            self._no_reply(connection)
            return
        after_s = faults.latency_s()
        if fault is None or fault is Fault.DUPLICATE:
            self._post(connection, after_s, question, answered=True)
            return
        if fault is Fault.DELAY:
            after_s = faults.delay_s()
        faults.note(fault, kernel.now + after_s)
        self._world.timeline.says(task, f"!! {fault.name.lower().replace('_', ' ')}")
        if fault is Fault.LOST_REQUEST:
            self.lose(connection, question)
        else:
            self.orphan(connection)
            self._post(connection, after_s, question, answered=False)

    def lose(self, connection: Connection, question: Any) -> None:
        """The connection breaks before this has arrived."""
        self.marks["its commit is lost"] += type(question) is Commit
        self._break(connection)
        self.orphan(connection)

    def orphan(self, connection: Connection) -> None:
        """The connection breaks, but what is on its way goes on."""
        connection.broken = True
        self._no_reply(connection)

    def _post(
        self, connection: Connection, after_s: float, question: Any, *, answered: bool
    ) -> None:
        connection.arrives_at = self._kernel.now + after_s
        server = self._world.wire.server
        self._kernel.post(after_s, server, self._arrive, connection, question, answered)

    def _no_reply(self, connection: Connection) -> None:
        task = connection.transaction.task
        error = StoreUnavailable("the connection is lost", sent=True)
        if task.life == task.worker.life:
            self._kernel.post(self._faults.timeout_s(), task.worker, task.worker.fail, task, error)

    def _roll_back(self, task: Task) -> None:
        """Never fails: whoever cannot say it hangs up."""
        kernel, faults, worker = self._kernel, self._faults, task.worker
        connection, task.connection = task.connection, None
        after_s = faults.latency_s()
        if connection is not None and not connection.broken:
            fault = faults.of_message(kernel.now)
            if fault is Fault.DELAY:
                after_s = faults.delay_s()
                faults.note(fault, kernel.now + after_s)
            self._hang_up(connection, after_s)
            if fault is Fault.DELAY:
                kernel.post(faults.timeout_s(), worker, worker.resume, task, None)
                return
        kernel.post(after_s + faults.latency_s(), worker, worker.resume, task, None)

    def _hang_up(self, connection: Connection, after_s: float) -> None:
        """The server hears of it after whatever is still on its way to it."""
        after_s = max(after_s, connection.arrives_at - self._kernel.now)
        transaction = connection.transaction
        self._kernel.post(after_s, self._world.wire.server, self.end, transaction)

    def _break(self, connection: Connection) -> None:
        """Nobody says good-bye: the server may hold on to the transaction for long."""
        faults = self._faults
        after_s = faults.latency_s() if faults.brief() else faults.delay_s()
        faults.lasts(self._kernel.now + after_s)
        self._hang_up(connection, after_s)

    def lost(self, worker: Worker) -> None:
        """A process died: the kernel closes its connections."""
        for transaction in self.open:
            task = transaction.task
            if task.worker is worker and task.connection is not None and not task.connection.broken:
                self._break(task.connection)

    def cancelled(self, task: Task) -> None:
        """A request was given up while it was decided."""
        if task.connection is not None and not task.connection.broken:
            self._hang_up(task.connection, self._faults.latency_s())
        task.connection = None

    # ---------------------------------------------------------------------------- the server

    def _arrive(self, connection: Connection, question: Any, answered: bool) -> None:
        wire, transaction = self._world.wire, connection.transaction
        wire.strike()
        if wire.down or not transaction.open:
            connection.broken = True
            if answered:
                self._no_reply(connection)
            return
        if is_look(question):
            looked = self._statements.look(transaction, question)
            if self._faults.slow_look():
                after_s = self._faults.latency_s()
                connection.arrives_at = max(connection.arrives_at, self._kernel.now + after_s)
                server = wire.server
                self._kernel.post(after_s, server, self._lock, connection, looked, answered)
                return
            self._lock(connection, looked, answered)
            return
        self._carry_out(connection, question, answered)

    def _lock(self, connection: Connection, looked: Look, answered: bool) -> None:
        if not connection.transaction.open:  # the server went down meanwhile
            connection.broken = True
            if answered:
                self._no_reply(connection)
            return
        answer, note = self._statements.lock(connection.transaction, looked, self.open)
        self._reply(connection, answer, note, answered)

    def _carry_out(self, connection: Connection, question: Any, answered: bool) -> None:
        transaction = connection.transaction
        if type(question) is Commit:
            self._statements.commit(transaction)
            self._world.timeline.says(transaction.task, "its transaction is committed")
            self.marks["committed" if answered else "committed unheard"] += 1
            self._close(transaction)
            self._reply(connection, None, None, answered)
            return
        answer = self._statements.answer(transaction, question, self.open)
        self._reply(connection, answer, self._statements.seen(transaction, question), answered)

    def _reply(
        self, connection: Connection, answer: Any, note: Note | None, answered: bool
    ) -> None:
        if not answered:
            self.end(connection.transaction)
            return
        task = connection.transaction.task
        if task.life == task.worker.life:
            after_s = self._faults.latency_s()
            self._kernel.post(after_s, task.worker, self._hear, connection, answer, note)

    def _hear(self, connection: Connection, answer: Any, note: Note | None) -> None:
        task = connection.transaction.task
        if note is not None:
            task.heard(note, not task.peeking)
        task.worker.resume(task, answer)

    def end(self, transaction: Transaction) -> None:
        """Nothing of it ever happened, unless it is committed."""
        if transaction.open:
            self.marks["rolled back"] += 1
            self._close(transaction)

    def _close(self, transaction: Transaction) -> None:
        """Its locks are free."""
        transaction.open = False
        self.open.remove(transaction)
        if transaction.writes:
            transaction.task.ghost.held = False

    def went_down(self) -> None:
        """The server stopped: it knows of no transaction any more."""
        for transaction in list(self.open):
            self.end(transaction)

    # ------------------------------------------------------------------- what the others meet

    def holds(self, tickets: list[Ticket[Task]]) -> list[Ticket[Task]]:
        """Those that want to write what a transaction has written and not committed."""
        written = {transaction.id for transaction in self.open if transaction.writes}
        if not written:
            return []
        return [ticket for ticket in tickets if ticket.changes in written]

    @contextmanager
    def rows_held(self) -> Iterator[None]:
        """A sweep leaves out what somebody holds."""
        kept = self._world.store._rows
        written = [transaction.id for transaction in self.open if transaction.writes]
        held = {record_id: kept.pop(record_id) for record_id in written if record_id in kept}
        try:
            yield
        finally:
            kept.update(held)
