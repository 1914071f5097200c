"""The ghost: what each record must be, told only by what was asked of the store and what it said.

A ghost never looks into the store or the engine. It is kept per scope and key as the *client* named
them, and it knows requests and answers from the client's and the handler's side. So it notices when
the system confuses two records, forgets a fence or keeps another answer than the one given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oncekey._core.record import Answer
from simulator.scenario import Intent
from simulator.schema import Fate, fate

if TYPE_CHECKING:
    from simulator.task import Task

ABSENT, RUNNING, COMPLETED, RELEASED, UNKNOWN = (
    "absent",
    "running",
    "completed",
    "released",
    "unknown",
)

# What a request can meet. The names are the simulator's own; they are compared with nothing of the
# system's.
IN_FLIGHT, OVERLONG, LAPSED, WORN_OUT, EXPIRED, FAILED, NO_EFFECT, WHOLE, BODILESS, GONE = (
    "in flight",
    "overlong",
    "lapsed",
    "worn out",
    "expired",
    "failed",
    "no effect",
    "completed whole",
    "completed without body",
    "completed, its answer over",
)


class Note(NamedTuple):
    """What a request met, at the moment the store answered it."""

    situation: str
    fence: int
    intent: Intent | None
    version: int
    answer: Answer | None
    own: bool
    """Held, or ended, by the asker's own claim."""
    schema: int
    fate: Fate
    """What the asker must make of the answer, by its version."""


class Book:
    """Effects since a record's first use, and the reasons why there may be more than one."""

    __slots__ = ("cleared", "effects", "excuses", "once_begun", "step_effects", "steps")

    def __init__(self) -> None:
        self.steps: dict[str, bytes | None] = {}
        """Those that are kept, in order; None for one that was only begun."""
        self.step_effects: dict[str, int] = {}
        self.once_begun = 0
        """How often the step was begun that must not be repeated."""
        self.cleared = 0
        """How often an operator said that it had not happened."""
        self.effects = 0
        self.excuses = 0
        """Effects of attempts that failed and may be repeated, lapses after which nobody is asked,
        and every time that an operator or the application said that it had not happened.
        """

    def clear(self) -> None:
        """An operator found out that what was begun had not happened: it may be tried again."""
        self.excuses += 1
        self.cleared += 1
        self.steps = {name: result for name, result in self.steps.items() if result is not None}


class Ghost:
    """One record as it must be."""

    __slots__ = (
        "answer",
        "answer_until",
        "attempt",
        "begun_at",
        "book",
        "claimed_at",
        "expires",
        "faded",
        "fence",
        "fence_high",
        "first_use",
        "held",
        "intent",
        "lapses",
        "lease_s",
        "lease_until",
        "owner",
        "recovery",
        "renewed_at",
        "retention_s",
        "schema",
        "scope",
        "spoiled",
        "state",
        "token",
        "version",
    )

    def __init__(self, scope: tuple[str, ...]) -> None:
        self.scope = scope
        self.state = ABSENT
        self.token = b""
        self.fence = 0
        self.fence_high = 0
        """The highest fence that was ever given out, also over removals."""
        self.lease_s = 0.0
        self.retention_s = 0.0
        self.lease_until = 0.0
        self.expires = 0.0
        self.answer_until = 0.0
        """When a completed record becomes a tombstone, if it has not expired by then."""
        self.faded = False
        """Its content was blanked."""
        self.begun_at = 0.0
        """When nothing was known of it for the last time; not by the store's clock."""
        self.first_use = 0.0
        self.intent: Intent | None = None
        self.version = 0
        self.schema = 0
        self.recovery = "rerun"
        self.attempt = 0
        self.lapses = 0
        self.spoiled = False
        """Some attempt since the first use may have had an effect without saying how it ended: only
        the same request may go on.
        """
        self.book = Book()
        self.answer: Answer | None = None
        self.owner: Task | None = None
        self.claimed_at = 0.0
        self.renewed_at = 0.0
        self.held = False
        """A transaction has changed it, and is not over."""

    def __repr__(self) -> str:
        return "/".join(self.scope)

    @property
    def repeatable(self) -> bool:
        """Whether who ran it allowed that it runs again."""
        return self.recovery in ("rerun", "resume")

    def situation(self, now: float, lapses_max: int) -> str:
        """What somebody meets who comes at `now` by the store's clock."""
        state = self.state
        if state is ABSENT:
            return ABSENT
        if self.expires <= now:
            return EXPIRED
        if state is COMPLETED:
            if self.faded or self.answer_until <= now:
                return GONE
            answer = self.answer
            return WHOLE if answer is not None and answer.body is not None else BODILESS
        if state is RELEASED:
            return FAILED if self.spoiled else NO_EFFECT
        if state is UNKNOWN:
            return UNKNOWN
        if self.lease_until <= now:
            return WORN_OUT if self.lapses + 1 >= lapses_max else LAPSED
        return OVERLONG if self.overlong(now) else IN_FLIGHT

    def overlong(self, now: float) -> bool:
        """The deadline is further away than one lease: the clock was set back."""
        return self.lease_until > now + self.lease_s * 1.001

    def note(self, task: Task, now: float) -> Note:
        """What this task meets."""
        own = self.token == task.claim.token
        situation = self.situation(now, task.policy.lapses_max)
        return Note(
            situation,
            self.fence,
            self.intent,
            self.version,
            self.answer,
            own,
            self.schema,
            fate(self.schema, self.repeatable, task.policy),
        )

    def grant(self, task: Task, fence: int, now: float, kernel_now: float) -> None:
        """The task becomes the owner."""
        policy = task.policy
        self.state = RUNNING
        self.token = task.claim.token
        self.fence = self.fence_high = fence
        self.lease_s = policy.lease_s
        self.lease_until = now + policy.lease_s
        self.retention_s = policy.retention_s + policy.tombstone_s
        self.expires = self.lease_until + self.retention_s
        self.intent = task.intent
        self.version = task.version
        self.schema = policy.schema_version
        self.recovery = policy.recovery
        self.answer = None
        self.owner = task
        self.claimed_at, self.renewed_at = kernel_now, 0.0
        task.fence, task.attempt, task.lapses = fence, self.attempt, self.lapses
        task.book = self.book
        task.steps.known = dict(self.book.steps)

    def begin_anew(self, now: float, kernel_now: float, *, remembered: bool) -> None:
        """Nothing that happened before counts; but where it must never be forgotten what was done,
        effects do.
        """
        before, self.book = self.book, Book()
        if remembered:
            self.book.effects, self.book.excuses = before.effects, before.excuses
        self.first_use, self.begun_at = now, kernel_now
        self.attempt = 1
        self.lapses = 0
        self.spoiled = False
