"""A task: one activity inside a worker, and what the simulator knows about it from the outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncekey._core.op import Op
from oncekey._core.policy import Policy
from oncekey._core.record import Answer, Claim
from oncekey._engine.guard import Call
from oncekey._engine.session import Session
from oncekey.atomic._transaction import AtomicOperation
from simulator.plans import Plan
from simulator.scenario import Intent

if TYPE_CHECKING:
    from simulator.clients import Client
    from simulator.endings import Due
    from simulator.ghost import Book, Ghost, Note
    from simulator.transaction import Connection, Transaction
    from simulator.worker import Worker


class StepsSeen:
    """What a task knows of its record's steps."""

    __slots__ = ("broke", "doubts", "known", "told")

    def __init__(self) -> None:
        self.known: dict[str, bytes | None] = {}
        """What was kept when it became the owner."""
        self.told: dict[str, bytes | None] = {}
        """What the store said when it asked; by then it may be a zombie."""
        self.doubts = False
        """It cannot tell how an earlier attempt's step ended."""
        self.broke = False
        """It began the step that must not be repeated, and has no result of it."""


class Task:
    """One request (or a piece of housekeeping) as it runs in a worker."""

    __slots__ = (
        "_round",
        "answer",
        "asked",
        "asks",
        "attempt",
        "book",
        "call",
        "claim",
        "client",
        "commit",
        "connection",
        "due",
        "earlier",
        "effects",
        "ended_at",
        "ended_failures",
        "failures",
        "fence",
        "ghost",
        "had_room",
        "hasty_peeks",
        "idle_rounds",
        "intent",
        "lapses",
        "late_failures",
        "leftover_until",
        "life",
        "must_ask",
        "name",
        "note",
        "op",
        "orphan",
        "over",
        "owned_until",
        "peeked_at",
        "peeking",
        "plan",
        "policy",
        "ran",
        "recorded",
        "rounds",
        "runs_at",
        "session",
        "shortened",
        "started_at",
        "steps",
        "version",
        "work",
        "worker",
        "wrote",
    )

    op: Op[None]
    claim: Claim
    plan: Plan
    session: Session
    """The real one: it carries a request through, or an abandoned record."""

    def __init__(
        self,
        name: str,
        worker: Worker,
        *,
        intent: Intent,
        ghost: Ghost,
        call: Call,
        policy: Policy,
        version: int,
        client: Client | None = None,
    ) -> None:
        self.name = name
        self.worker = worker
        self.life = worker.life
        self.intent = intent
        self.ghost = ghost
        self.call = call
        self.policy = policy
        self.version = version
        self.client = client
        self.earlier = worker.earlier
        """It runs in a process of the release before."""
        self.started_at = worker.kernel.now
        self.book: Book = ghost.book
        self.work: AtomicOperation | None = None
        """In atomic mode: what carries it through."""
        self.connection: Connection | None = None
        """Its transaction."""
        self.commit: Transaction | None = None
        """The one that it asked to be committed."""
        self.had_room = True
        """Few enough others were about, when it was decided, for it to wait too."""
        self._begin()

    def _begin(self) -> None:
        """Nothing has happened yet."""
        self.note: Note | None = None
        """What the ghost held when the store gave the latest reply that arrived."""
        self.fence = 0
        """Granted by the store, as the ghost saw it; 0 before. The next two likewise."""
        self.attempt = 0
        self.lapses = 0
        self.answer: Answer | None = None
        """What the handler answered."""
        self.must_ask = False
        """What it took over must not run before the application was asked."""
        self.asked = False
        """The application said that it was not done."""
        self.due: Due = ""
        """What must become of its record."""
        self.wrote = ""
        """The last change that the store accepted from it."""
        self.effects = 0
        self.runs_at = 0.0
        self.ended_at = 0.0
        """When the handler did."""
        self.ended_failures = 0
        """How many questions the store had not answered by then."""
        self.owned_until = 0.0
        """Until when its lease lasted then, by its own clock."""
        self.late_failures = 0
        self.asks = 0
        self.rounds = 0
        """Inserts and swaps that were answered."""
        self.idle_rounds = 0
        """How many of them in a row met what the one before had met."""
        self._round: Note | None = None
        self.failures = 0
        """Questions that the store did not answer."""
        self.ran = False
        """Its handler was started."""
        self.recorded = False
        """Its completion was carried out by the store."""
        self.steps = StepsSeen()
        self.orphan = False
        """No client waits: a recoverer took it up."""
        self.leftover_until = 0.0
        """Until when a thread runs that its handler has left behind."""
        self.peeking = False
        """It waits for the record to change."""
        self.peeked_at = -1.0
        self.hasty_peeks = 0
        self.shortened = False
        """It cut a deadline that was too far away."""
        self.over = False

    def heard(self, note: Note | None, changes: bool) -> None:
        """A reply arrived."""
        if changes:
            self.rounds += 1
            self.idle_rounds = self.idle_rounds + 1 if note == self._round else 0
            self._round = note
        self.note = note

    def __repr__(self) -> str:
        return f"{self.worker.name} {self.name}"
