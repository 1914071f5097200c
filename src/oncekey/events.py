"""Events, and the protocol of the hooks that receive them.

Events carry no key and no content, only the key's short hash. If a hook raises, the error is logged
once and otherwise ignored: hooks must not change what they observe.
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
    """The base of all events: where it happened."""

    operation: str
    key_hash: str
    """Empty if a request was refused before its key was looked up."""
    named: bool = field(default=True, kw_only=True, compare=False)
    """Whether the application names the operation: by a route template, a rule of its framework, a
    decorator. Otherwise its name is a path, which any client can choose.
    """


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A handler starts: the first attempt or a later one."""

    attempt: int
    fence: int


@dataclass(frozen=True, slots=True)
class TakenOver(Event):
    """A new attempt took the record of one whose lease was over."""

    attempt: int
    lapses: int


@dataclass(frozen=True, slots=True)
class Completed(Event):
    """A response is recorded."""

    status: int
    attempt: int
    run_s: float
    """From the claim until now."""
    first_attempt_age_s: float
    """From the first attempt to this response: how long the client waited in the end."""
    body_kept: bool


@dataclass(frozen=True, slots=True)
class Released(Event):
    """The record was released; a retry may run."""

    no_effect: bool
    attempt: int


@dataclass(frozen=True, slots=True)
class Replayed(Event):
    """A retry got the stored response."""

    status: int
    first_attempt_age_s: float
    """From the first attempt to this retry's response."""
    attempt: int
    earlier_replays: int
    """How often this key was replayed before, as far as that was counted."""


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
    """Nobody knows how a request ended: an operator must find out."""

    attempt: int
    lapses: int


@dataclass(frozen=True, slots=True)
class Resolved(Event):
    """An operator resolved an unknown outcome."""

    to: str
    """`completed`, or `released` so that a retry runs."""
    status: int | None
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unprotected(Event):
    """A client got a response that is not stored, because the store did not answer."""

    ran: bool
    """True: the handler ran without a claim (`store_down="run"`). False: it ran with one, but its
    response could not be recorded (`recovery="block"`).
    """


@dataclass(frozen=True, slots=True)
class NotAtomic(Event):
    """The handler of an atomic operation did not use its transaction: what it wrote, if anything,
    did not commit with its response. Emitted once per operation and process.
    """

    status: int


@dataclass(frozen=True, slots=True)
class StoreAsked(Event):
    """A store query ended."""

    verb: str
    seconds: float
    error: str | None
    """A `StoreFailure`: "lost" or "not sent". None if the store answered."""


@dataclass(frozen=True, slots=True)
class Attempted(Event):
    """A client's attempt to deliver a request ended. `operation` is the method and the host: paths
    and queries may name people.
    """

    attempt: int
    """Counted from 1."""
    status: int | None
    """None if no complete response came."""
    error: str | None
    """The kind of network error."""
    seconds: float
    replayed: bool
    """The server said that this is the stored response of an earlier attempt."""
    mismatch: bool
    retry_in_s: float | None
    """None if this was the last attempt."""
    gave_up: str | None
    """In words: why there is no further attempt, where a retry was in order."""
    gave_up_kind: GiveUpKind | None = field(default=None, kw_only=True)


class Hook(Protocol):
    """Called with every event, on the request path: be quick, and do slow work elsewhere."""

    def __call__(self, event: Event, /) -> None: ...


def as_hooks(given: Any) -> tuple[Hook, ...]:
    """Check the hooks of an application. Raises `Misuse` for hooks that would never be called."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise Misuse(
            "hooks=… takes a list of functions, such as [LoggingHook()], not a "
            f"{type(given).__name__}"
        )
    hooks = tuple(given)
    for hook in hooks:
        if isinstance(hook, type):  # calling it would only make an instance
            raise Misuse(f"hooks=…: {hook.__name__} is a class; make one, {hook.__name__}()")
        if not callable(hook):
            raise Misuse(
                f"hooks=…: a {type(hook).__name__} cannot be called; a hook is a function that "
                "takes an event"
            )
        if any(map(inspect.iscoroutinefunction, (hook, getattr(hook, "__call__", None)))):  # noqa: B004
            raise Misuse(
                f"hooks=…: {hook!r} is async, and hooks are not awaited: write it with def"
            )
    return hooks


class Hooks:
    """Several hooks as one. False if there are none, so that callers build no events in vain; then
    `otherwise` gets the events that somebody must act on.
    """

    def __init__(self, hooks: Iterable[Hook] = (), *, otherwise: Hook | None = None) -> None:
        self._hooks = as_hooks(hooks)
        self.are_wanted = bool(self._hooks)
        """Whether anybody listens: else callers build no events."""
        self._listeners = self._hooks if self._hooks or otherwise is None else (otherwise,)
        self._broken: set[int] = set()

    def __bool__(self) -> bool:
        return self.are_wanted

    def __call__(self, event: Event) -> None:
        for hook in self._listeners:
            try:
                hook(event)
            except (Exception, SystemExit):  # it could end a shared thread, such as the heartbeat
                if id(hook) not in self._broken:
                    self._broken.add(id(hook))
                    _log.exception(
                        "the hook %r failed; further failures of it are not logged", hook
                    )
