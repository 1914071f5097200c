"""What happened, as frozen values, and the one protocol by which anybody can listen.

Events carry no key and no content, only the key's short hash. A hook that raises is reported once
and otherwise ignored: watching must not change what is watched.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from oncekey._core.reasons import GiveUpKind, LossKind
from oncekey.errors import Misuse

_log = logging.getLogger("oncekey")


@dataclass(frozen=True, slots=True)
class Event:
    """Where it happened."""

    operation: str
    key_hash: str
    """Empty where a request was refused before its key was looked up."""
    named: bool = field(default=True, kw_only=True, compare=False)
    """Whether the operation is one that the application knows: by a template, a rule of its
    framework, a decorator. Else its name is a path, which any client can choose.
    """


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A handler starts: the first attempt, or a later one."""

    attempt: int
    fence: int


@dataclass(frozen=True, slots=True)
class TakenOver(Event):
    """An attempt whose lease was over lost its record to a new one."""

    attempt: int
    lapses: int


@dataclass(frozen=True, slots=True)
class Completed(Event):
    """An answer is recorded."""

    status: int
    attempt: int
    run_s: float
    """From claim to record."""
    first_attempt_age_s: float
    """From the first attempt of all to this answer: how long the client waited in the end."""
    body_kept: bool


@dataclass(frozen=True, slots=True)
class Released(Event):
    """The record was given back; a retry may run."""

    no_effect: bool
    attempt: int


@dataclass(frozen=True, slots=True)
class Replayed(Event):
    """A retry got the kept answer."""

    status: int
    first_attempt_age_s: float
    """From the first attempt to this retry's answer."""
    attempt: int
    earlier_replays: int
    """As far as they were counted: how often this key was retried."""


@dataclass(frozen=True, slots=True)
class Declined(Event):
    """A request was refused; `reason` is a `Kind` of `oncekey._core.problems`."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseWasLost(Event):
    """An attempt learnt that it does not own its record any more, or cannot know."""

    attempt: int
    reason: str
    """In words."""
    kind: LossKind | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class OutcomeUnknown(Event):
    """Nobody knows how it ended: an operator must look."""

    attempt: int
    lapses: int


@dataclass(frozen=True, slots=True)
class Resolved(Event):
    """An operator found out how an unknown outcome ended, and said so."""

    to: str
    """completed, or released so that a retry runs."""
    status: int | None
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unprotected(Event):
    """A client got an answer that no record keeps, because the store did not answer."""

    ran: bool
    """True: its handler ran without a claim (`store_down="run"`). False: it ran under one, but its
    answer could not be recorded (`recovery="block"`).
    """


@dataclass(frozen=True, slots=True)
class NotAtomic(Event):
    """The handler of an atomic operation did not use its transaction: what it wrote, if anything,
    did not commit with its answer. Told once for each operation and process.
    """

    status: int


@dataclass(frozen=True, slots=True)
class StoreAsked(Event):
    """A verb went to the store and came back."""

    verb: str
    seconds: float
    error: str | None
    """A `StoreFailure`: "lost" or "not sent". None if the store answered."""


@dataclass(frozen=True, slots=True)
class Attempted(Event):
    """A client's: one attempt at delivering a request ended. `operation` is the method and the
    host: paths and queries may name people.
    """

    attempt: int
    """Counted from 1."""
    status: int | None
    """None where no whole answer came."""
    error: str | None
    """The kind of network error."""
    seconds: float
    replayed: bool
    """The server said that this is the kept answer of an earlier attempt."""
    mismatch: bool
    retry_in_s: float | None
    """None where this was the last attempt."""
    gave_up: str | None
    """In words: why there is no further attempt, where a retry was in order."""
    gave_up_kind: GiveUpKind | None = field(default=None, kw_only=True)


class Hook(Protocol):
    """Called with every event, on the request path: be quick, hand slow work elsewhere."""

    def __call__(self, event: Event, /) -> None: ...


def as_hooks(given: Any) -> tuple[Hook, ...]:
    """What was given as hooks. Raises `Misuse` for what could not be told, or would not tell."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise Misuse(
            "hooks=… takes a list of functions, such as [LoggingHook()]; it was given a "
            f"{type(given).__name__}"
        )
    hooks = tuple(given)
    for hook in hooks:
        if isinstance(hook, type):  # calling it with an event makes one, and tells nobody
            raise Misuse(f"hooks=…: {hook.__name__} is a class; make one, {hook.__name__}()")
        if not callable(hook):
            raise Misuse(
                f"hooks=…: a {type(hook).__name__} cannot be called; a hook is a function that "
                "takes an event"
            )
        if any(map(inspect.iscoroutinefunction, (hook, getattr(hook, "__call__", None)))):  # noqa: B004
            raise Misuse(f"hooks=…: {hook!r} is async, and nobody awaits a hook: write it with def")
    return hooks


class Hooks:
    """Several hooks as one. Falsy when there are none, so that nobody builds events for nobody;
    `otherwise` is then for what somebody must act on.
    """

    def __init__(self, hooks: Iterable[Hook] = (), *, otherwise: Hook | None = None) -> None:
        self._hooks = as_hooks(hooks)
        self._told = self._hooks if self._hooks or otherwise is None else (otherwise,)
        self._broken: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def __call__(self, event: Event) -> None:
        for hook in self._told:
            try:
                hook(event)
            except (Exception, SystemExit):  # what it would end may serve everybody: the heartbeat
                if id(hook) not in self._broken:
                    self._broken.add(id(hook))
                    _log.exception("the hook %r failed; its further failures are not logged", hook)
