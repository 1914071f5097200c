"""An attempt: one try at running a handler, as the handler and the engine see it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from oncekey._core.answer import Headers, answer_of
from oncekey._core.key import describe_call
from oncekey._core.lifecycle import Held
from oncekey._core.policy import Policy, Verdict
from oncekey._core.printable import printable
from oncekey._core.reasons import LossKind
from oncekey._core.record import Answer, Claim
from oncekey._core.response_headers import kept_answer
from oncekey._core.verbs import Refused, Swap
from oncekey._engine.handler_calls import Ports
from oncekey._engine.lease import CONCLUDED, RENEWED, Lease, Phase
from oncekey._engine.leftover_threads import Guests, still_running
from oncekey._engine.steps import AttemptSteps, Kept, child_key
from oncekey._engine.unawaited import Handed, must_run_when_called, not_awaitable
from oncekey.errors import LeaseLost, Misuse
from oncekey.stores import transactions

if TYPE_CHECKING:
    from oncekey.atomic._loans import Loan

T = TypeVar("T")

RESOURCE_ID_CHARS_MAX = 255

_log = logging.getLogger("oncekey")


class Attempt:
    """The attempt that runs now: `oncekey.current()` gives it to the handler."""

    __slots__ = (
        *("_guests", "_home", "_listeners", "created_id", "_steps", "age_s", "attempt", "claim"),
        *("claimed_at", "doubted", "handed", "held", "lapses", "lease", "loan", "outer", "policy"),
        *("ports", "protected", "recorded", "recovering", "verdict"),
    )

    def __init__(
        self,
        claim: Claim,
        policy: Policy,
        fence: int,
        claimed_at: float,
        attempt: int = 1,
        lapses: int = 0,
        age_s: float = 0.0,
        *,
        asks: bool = False,
    ) -> None:
        """`asks`: an earlier attempt died, and the application is asked first what became of it."""
        self.claim = claim
        self._listeners: list[Callable[[], None]] = []
        self.policy = policy
        self.held = Held(claim.id, fence, claim.token)
        self.attempt = attempt
        """1 for the first try."""
        self.lapses = lapses
        """How many earlier attempts died without finishing."""
        self.age_s = age_s
        """How long before this attempt the first one began."""
        self.claimed_at = claimed_at
        phase = Phase.ASKING if asks else Phase.RUNNING
        self.lease = Lease(claimed_at + claim.lease_s, phase)
        self._home = threading.get_ident()
        self._guests: Guests | None = None
        self.outer: Attempt | None = None
        """The attempt that was entered before this one."""
        self.handed: Handed | None = None
        """What the handler was given to await; most are given nothing."""
        self.verdict: Verdict | None = None
        self.ports: Ports | None = None
        """Set by the edge that runs the handler."""
        self.loan: Loan | None = None
        """In atomic mode, set by who lends: what `connection` gives."""
        self.protected = True
        """False where a request brought no key, or the policy lets it run without the store."""
        self.recovering = False
        """True when no client waits: the recoverer finishes what was abandoned."""
        self.doubted = False
        """Nobody can tell how this ended: it becomes unknown, whatever the handler answers."""
        self.recorded: Answer | None = None
        """What `complete_in` wrote into the caller's transaction."""
        self._steps: AttemptSteps | None = None
        self.created_id: str | None = None

    def __repr__(self) -> str:
        lost = ", lost" if self.lease.is_lost else ""
        return f"<Attempt {self.attempt} of {self.operation!r}, fence {self.held.fence}{lost}>"

    @property
    def key(self) -> str | None:
        """The key that the client sent; None if it sent none."""
        if threading.get_ident() != self._home:
            self._note_guest()
        return self.claim.key or None

    @property
    def fence(self) -> int:
        """Rises with every change of owner: hand it to systems that can fence."""
        if threading.get_ident() != self._home:
            self._note_guest()
        return self.held.fence

    @property
    def asks(self) -> bool:
        """For the engine: whether the application is to be asked before anything runs."""
        return self.lease.phase is Phase.ASKING

    @property
    def finished(self) -> bool:
        """For the engine: whether its handler has ended, and what that means is decided."""
        return self.lease.phase in CONCLUDED

    @property
    def tenant(self) -> str:
        return self.claim.tenant

    @property
    def operation(self) -> str:
        return self.claim.operation

    @property
    def connection(self) -> Any:
        """In atomic mode: the transaction that the claim and the answer are in; write your rows
        there. It ends with the answer, and is of no use to what runs on after it: then this raises
        `Misuse`. None in other modes.
        """
        return None if self.loan is None else self.loan.connection

    @property
    def lease_s(self) -> float:
        return self.claim.lease_s

    @property
    def retention_s(self) -> float:
        return self.claim.retention_s

    @property
    def resource_id(self) -> str | None:
        """The id of what the handler created, set by it: kept with the answer, for operators."""
        return self.created_id

    @resource_id.setter
    def resource_id(self, created: str | None) -> None:
        # Numbers and UUIDs are ids too. A store that refused one would refuse the whole answer,
        # after the effect.
        text = None if created is None else printable(str(created), RESOURCE_ID_CHARS_MAX)
        if threading.get_ident() != self._home:
            self._note_guest()
        self.created_id = text

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt died after it had begun: its effects may have happened."""
        return self.lapses > 0

    def final(self) -> None:
        """Keep this answer, whatever its status."""
        self._say(Verdict.KEEP)

    def transient(self) -> None:
        """Do not keep this answer: the same request may run again."""
        self._say(Verdict.FAILED)

    def no_effect(self) -> None:
        """Nothing happened: forget this try, even another request may use the key."""
        self._say(Verdict.NO_EFFECT)

    def unknown(self) -> None:
        """Nobody can tell what this did: a retry is refused until an operator has found out; where
        the policy has an `ask`, that is asked.
        """
        self._say(Verdict.UNKNOWN)

    def _say(self, verdict: Verdict) -> None:
        if threading.get_ident() != self._home:
            self._note_guest()
        self.verdict = verdict

    def _hand_out(self, what: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        if self.handed is None:
            self.handed = Handed()
        return self.handed.out(what, work)

    # ---------------------------------------------------------------------------------- steps

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        at_most_once: bool = False,
        within: Any = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        at_most_once: bool = False,
        within: Any = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        at_most_once: bool = False,
        within: Any = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call `function(*args, **kwargs)` once, and keep its result for later attempts.

        The result is what JSON gives back: of a tuple, a list. `at_most_once` never repeats a step
        that an earlier attempt began; where its end is not known the outcome becomes unknown.
        `within` is a connection or session on which the function writes its rows: the step is then
        kept in the same transaction, which is yours to commit before the next step, or to roll back
        if this one fails. It is one or the other: what commits with its record is never in doubt.
        """
        must_run_when_called(function)
        work = partial(function, *args, **kwargs)
        step = self._step(name, work, (args, kwargs), within, at_most_once=at_most_once)
        return self._hand_out(f"the step {name!r}", step)

    async def _step(
        self,
        name: str,
        work: Callable[[], Any],
        arguments: tuple[Any, ...],
        within: Any,
        *,
        at_most_once: bool,
    ) -> Any:
        """What `step` hands out to be awaited."""
        ports, steps = self._reach(), self.steps
        if asks := steps.asks_within(ports.store, name, within, at_most_once=at_most_once):
            steps.read(*await transactions.aperform(ports.store, within, asks))
        begun = await ports.drive(
            steps.begin(ports.ownership, name, arguments, at_most_once=at_most_once)
        )
        if isinstance(begun, Kept):
            return begun.result
        with steps.run(begun, undone=within is not None):
            result = work()
            if inspect.isawaitable(result):
                result = await result
        if within is None or not self.protected:
            try:
                return await ports.drive_to_end(steps.end(ports.ownership, begun, result))
            except asyncio.CancelledError:
                steps.cut_off(begun, result)
                raise
        verb = steps.end_with(begun, result)
        [outcome] = await transactions.aperform(ports.store, within, [verb])
        if isinstance(outcome, Refused):
            raise steps.report_loss(ports.ownership, name)
        return steps.end_step(verb.step.result)

    def step_sync(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        at_most_once: bool = False,
        within: Any = None,
        **kwargs: Any,
    ) -> T:
        """`step` for handlers that block."""
        must_run_when_called(function)
        ports, steps = self._reach(), self.steps
        if asks := steps.asks_within(ports.store, name, within, at_most_once=at_most_once):
            steps.read(*transactions.perform(ports.store, within, asks))
        begun = ports.drive_sync(
            steps.begin(ports.ownership, name, (args, kwargs), at_most_once=at_most_once)
        )
        if isinstance(begun, Kept):
            kept: T = begun.result
            return kept
        with steps.run(begun, undone=within is not None):
            result = not_awaitable(function(*args, **kwargs))
        if within is None or not self.protected:
            kept = ports.drive_sync(steps.end(ports.ownership, begun, result))
            return kept
        verb = steps.end_with(begun, result)
        [outcome] = transactions.perform(ports.store, within, [verb])
        if isinstance(outcome, Refused):
            raise steps.report_loss(ports.ownership, name)
        kept = steps.end_step(verb.step.result)
        return kept

    @property
    def steps(self) -> AttemptSteps:
        """What is known of this attempt's steps."""
        if self._steps is None:
            self._steps = AttemptSteps(self)
        return self._steps

    def child_key(self, name: str) -> str:
        """A key for a call to another service: the same over all attempts, and no other tenant's.

        See `oncekey._engine.steps.child_key`.
        """
        if threading.get_ident() != self._home:
            self._note_guest()
        return child_key(self.held.id, name)

    # ------------------------------------------------------------------ the caller's transaction

    def complete_in(
        self, transaction: Any, status: int, body: Any = b"", headers: Headers = ()
    ) -> Coroutine[Any, Any, Answer]:
        """Record the answer in a transaction of yours: it counts if and only if you commit.

        With records in DynamoDB `transaction` is a list of your own writes, as
        `TransactWriteItems` takes them: they are written with the answer, at once and all or none.

        `body` is bytes, or what JSON can write. Do this last: from here until your commit nobody
        can take the record over, and the heartbeat does not renew it any more. Raises `LeaseLost`
        if the record is not this attempt's any more: then roll back.
        """
        work = self._join(transaction, status, body, headers)
        return self._hand_out("complete_in(…)", work)

    async def _join(self, transaction: Any, status: int, body: Any, headers: Headers) -> Answer:
        if not self.protected:
            await transactions.awrite(self._reach().store, transaction, self.held.token)
            return answer_of(status, body, headers)
        ports, answer, completion = self._prepare_completion(status, body, headers)
        [outcome] = await transactions.aperform(ports.store, transaction, [completion])
        return self._finish_completion(ports, answer, outcome)

    def complete_in_sync(
        self, transaction: Any, status: int, body: Any = b"", headers: Headers = ()
    ) -> Answer:
        """`complete_in` for handlers that block."""
        if not self.protected:
            transactions.write(self._reach().store, transaction, self.held.token)
            return answer_of(status, body, headers)
        ports, answer, completion = self._prepare_completion(status, body, headers)
        [outcome] = transactions.perform(ports.store, transaction, [completion])
        return self._finish_completion(ports, answer, outcome)

    def _prepare_completion(
        self, status: int, body: Any, headers: Headers
    ) -> tuple[Ports, Answer, Swap]:
        ports, answer = self._reach(), answer_of(status, body, headers)
        kept = kept_answer(answer, self.policy, ports.profile)
        self.ensure_owned()
        ports.heartbeat.drop(self)
        return ports, answer, ports.ownership.completion(self, kept)

    def _finish_completion(self, ports: Ports, answer: Answer, outcome: Any) -> Answer:
        if isinstance(outcome, Refused):
            ports.ownership.lose(self, LossKind.REFUSED_AT_COMPLETION)
            self.ensure_owned()
        self.recorded = answer
        return answer

    def _reach(self) -> Ports:
        if self.policy.atomic and self.ports is None:
            raise Misuse(
                "an atomic handler takes no steps and needs no complete_in: all that it writes to "
                "oncekey.current().connection commits with its answer"
            )
        if threading.get_ident() != self._home:
            self._note_guest()
        if self.ports is None or self.lease.phase in CONCLUDED:
            raise Misuse("steps and complete_in belong into a guarded handler, while it runs")
        return self.ports

    # ------------------------------------------------------------------------------- ownership

    @property
    def lost(self) -> bool:
        """True once this attempt does not own its record any more, or cannot know: stop before the
        next effect. Also in a thread that goes on after its handler has ended.
        """
        if threading.get_ident() != self._home:
            self._note_guest()
        lease = self.lease
        if not lease.is_lost and lease.phase in RENEWED and self.ports is not None:
            self.ports.ownership.watch_lease(self)
        return lease.is_lost

    def ensure_owned(self) -> None:
        """Raise `LeaseLost` if this attempt should stop: call it before an effect in a long
        handler.
        """
        if self.lost:
            of = describe_call(self.operation, self.claim.key)
            raise LeaseLost(
                f"attempt {self.attempt} of {of} lost its record; another may be running: stop "
                "here, what this one answers will be discarded"
            )

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when the lease is lost, from the heartbeat's thread; at once if it
        is lost already.
        """
        if threading.get_ident() != self._home:
            self._note_guest()
        self._listeners.append(listener)
        if self.lease.is_lost:
            self._tell_listeners()

    def still_running(self) -> bool:
        """For the engine: whether another thread still runs for this attempt."""
        return still_running(self, self._guests, _current)

    def _note_guest(self) -> None:
        """Another thread than the one that its handler began in uses the attempt."""
        if self._guests is None:
            self._guests = Guests()
        self._guests.note()

    def give_back(self) -> None:
        """For the engine: from now on another may own the record. Whoever still works for this
        attempt is not its owner; nobody is told, since nothing went wrong.
        """
        self.lease.move(Phase.ENDED)
        self.lease.is_lost = True
        self._guests = None

    def mark_lost(self) -> bool:
        """For the engine: signal the loss, once. False if it was signalled before, or the attempt
        has ended.
        """
        if not self.lease.lose():
            return False
        self._tell_listeners()
        return True

    def _tell_listeners(self) -> None:
        """Each of them once: it is taken out first, since two threads may be here."""
        while True:
            try:
                listener = self._listeners.pop(0)
            except IndexError:
                return
            try:
                listener()
            except (Exception, SystemExit):  # whoever signals serves every other attempt too
                _log.exception("a listener failed when %r was lost", self)


_current: ContextVar[Attempt | None] = ContextVar("oncekey_attempt", default=None)


class Passing:
    """A request that is served and not protected; its attempt is made if it is asked for."""

    __slots__ = ("_attempt", "_make", "outer")

    def __init__(self, make: Callable[[], Attempt]) -> None:
        self._make = make
        self._attempt: Attempt | None = None
        self.outer = _current.get()
        """The attempt whose handler sent this request itself, if one did."""

    @property
    def attempt(self) -> Attempt:
        if self._attempt is None:
            self._attempt = self._make()
        return self._attempt


_passing: ContextVar[Passing | None] = ContextVar("oncekey_passing", default=None)


def current() -> Attempt:
    """The attempt that this code runs in.

    In a guarded application there always is one. Where nothing protects the request, as where it
    brought no key, it is one whose `protected` is False. Raises `Misuse` outside.
    """
    attempt, passing = _current.get(), _passing.get()
    if passing is not None and passing.outer is attempt:
        return passing.attempt
    if attempt is None:
        raise Misuse(
            "oncekey.current() was called outside a guarded application, or before its key was "
            "claimed, as while FastAPI's dependencies run; oncekey.current_or_none() allows for "
            "that"
        )
    return attempt


def current_or_none() -> Attempt | None:
    """The attempt that this code runs in; None outside one, and where nothing protects it."""
    attempt, passing = _current.get(), _passing.get()
    if attempt is None or (passing is not None and passing.outer is attempt):
        return None
    return attempt if attempt.protected else None


@contextmanager
def served(passing: Passing) -> Iterator[None]:
    """For the edges: nothing protects the request that is served inside."""
    outer = _passing.set(passing)
    try:
        yield
    finally:
        _passing.reset(outer)


def enter(attempt: Attempt) -> None:
    """For the edges: what `current()` gives from here on in this context."""
    attempt.outer = _current.get()
    _current.set(attempt)


def serve(passing: Passing) -> None:
    """For the edges: nothing protects what runs from here on in this context."""
    _passing.set(passing)


Position = tuple[Attempt | None, Passing | None]


def position() -> Position:
    """For the edges that share a context between requests (threads): what to `leave` to, since a
    handler may send a request to an application in its own thread.
    """
    return _current.get(), _passing.get()


def leave(outer: Position) -> None:
    """From here on `current()` gives what it gave before."""
    _current.set(outer[0])
    _passing.set(outer[1])


@contextmanager
def within(attempt: Attempt) -> Iterator[None]:
    """For guarded functions, which may call each other: `current()` gives this attempt inside."""
    attempt.outer = _current.get()
    token = _current.set(attempt)
    try:
        yield
    finally:
        _current.reset(token)
