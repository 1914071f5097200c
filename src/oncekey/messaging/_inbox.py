"""The inbox runs a handler once per message, however often the message is delivered.

    inbox = Inbox(runtime, name="orders")
    outcome = await inbox.handle(message.id, ship, message.order, payload=message.body)
    if outcome.then is Then.ACKNOWLEDGE:
        await message.ack()

Brokers deliver at least once. The inbox recognizes a redelivery by its message id (deduplication),
and the consumer acknowledges only after the handler's result is recorded.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from oncekey._core import arguments as canonical
from oncekey._core import key as keys
from oncekey._core.key import BadKey
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem
from oncekey._core.values import value
from oncekey._engine import outcomes
from oncekey._engine.decisions import Call
from oncekey._engine.function_call import SINGLE_TENANT
from oncekey._engine.operation import Operation
from oncekey._engine.outcomes import Declined, Ran, Replayed
from oncekey._engine.runtime import Runtime
from oncekey._engine.unawaited import must_run_when_called
from oncekey.atomic._caller_transaction import run_in, run_in_sync
from oncekey.errors import Misuse


class Then(enum.Enum):
    """What the consumer should do with the message now."""

    ACKNOWLEDGE = "acknowledge"
    """Done and recorded: the broker may forget the message."""
    REDELIVER = "redeliver"
    """Not now: let the broker deliver it again later."""
    DEAD_LETTER = "dead letter"
    """A redelivery cannot help, and the message must not be lost: move it to a dead letter queue
    for an operator.
    """


@value
class Handled:
    """The handler ran now."""

    then: ClassVar = Then.ACKNOWLEDGE
    result: Any = None
    stored: bool = True
    """False if the result could not be recorded: a redelivery may run the handler again."""


@value
class Duplicate:
    """The handler ran before. `result` is its stored result, or None if that was not stored."""

    then: ClassVar = Then.ACKNOWLEDGE
    result: Any = None


@value
class Busy:
    """Another delivery of this message is being handled now."""

    then: ClassVar = Then.REDELIVER
    retry_after_s: float


@value
class Released:
    """The handler ran and reported that it is not done (`transient()`, `no_effect()`)."""

    then: ClassVar = Then.REDELIVER
    result: Any = None


@value
class Unknown:
    """An earlier delivery (most likely) began, and its outcome is unknown: an operator must
    resolve it.
    """

    then: ClassVar = Then.DEAD_LETTER
    problem: Problem
    of: str
    """The inbox and the id's short hash, as `oncekey list` shows them, for your log."""


@value
class Rejected:
    """The handler does not run: most likely another message used this id before."""

    then: ClassVar = Then.DEAD_LETTER
    problem: Problem
    of: str
    """As in `Unknown`."""


Outcome = Handled | Duplicate | Busy | Released | Unknown | Rejected

_ALREADY_HANDLED = (Kind.ANSWER_NOT_KEPT, Kind.STALE_ANSWER, Kind.KEY_EXPIRED)
RETRY_S = 1.0


class Inbox:
    """The messages of one queue or topic. `name` separates its ids from those of other inboxes."""

    kind = "an inbox"

    def __init__(self, runtime: Runtime, *, name: str, policy: Policy | None = None) -> None:
        if not name:
            raise Misuse("Inbox(runtime, name=…) needs a name, such as the queue's or topic's own")
        self._operation = Operation(runtime, name, policy, kind=self.kind, redelivered=True)

    async def handle(
        self,
        message_id: str,
        handler: Callable[..., Any],
        *args: Any,
        tenant: str = SINGLE_TENANT,
        payload: bytes = b"",
    ) -> Outcome:
        """Call `handler(*args)`, sync or async, unless it was called for this message before.

        With `payload`, a different message with the same id is detected and rejected. The
        handler's exceptions are raised, and so is `StoreUnavailable`: let the broker redeliver.
        """
        call = self._call(message_id, tenant, payload)
        return _to_outcome(await self._operation.run(call, _bind_handler(handler, args)))

    def handle_sync(
        self,
        message_id: str,
        handler: Callable[..., Any],
        *args: Any,
        tenant: str = SINGLE_TENANT,
        payload: bytes = b"",
    ) -> Outcome:
        """Blocking `handle`."""
        call = self._call(message_id, tenant, payload)
        return _to_outcome(self._operation.run_sync(call, _bind_handler(handler, args)))

    async def handle_in(
        self,
        transaction: Any,
        message_id: str,
        handler: Callable[..., Any],
        *args: Any,
        tenant: str = SINGLE_TENANT,
        payload: bytes = b"",
    ) -> Outcome:
        """`handle` inside your transaction: the message counts as handled if and only if you
        commit, together with the rows the handler wrote there.

        `transaction` is a connection or session with an open transaction, in the store's own
        database. Commit, then acknowledge; roll back on every exception. A crash leaves nothing.
        """
        call = self._call(message_id, tenant, payload)
        work = _bind_handler(handler, args)
        return _to_outcome(await run_in(transaction, self._operation, call, work))

    def handle_in_sync(
        self,
        transaction: Any,
        message_id: str,
        handler: Callable[..., Any],
        *args: Any,
        tenant: str = SINGLE_TENANT,
        payload: bytes = b"",
    ) -> Outcome:
        """Blocking `handle_in`."""
        call = self._call(message_id, tenant, payload)
        work = _bind_handler(handler, args)
        return _to_outcome(run_in_sync(transaction, self._operation, call, work))

    def _call(self, message_id: str, tenant: str, payload: bytes) -> Call:
        name = self._operation.name
        if not isinstance(message_id, str):
            raise Misuse(f"{name}: a message id must be text, not {type(message_id).__name__}")
        key = keys.derive(message_id)
        if isinstance(key, BadKey):
            raise Misuse(
                f"{name}: this message has no usable id. {key.reason.partition('. ')[0]}. "
                "Let the producer set one, or derive one from the message's content"
            )
        if not tenant or not isinstance(tenant, str):
            raise Misuse(
                f"{name}: tenant={tenant!r} is not an account; leave it out if you have only one"
            )
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise Misuse(
                f"{name}: payload= must be the message's raw bytes, not a {type(payload).__name__}"
            )
        return Call(tenant, name, key, canonical.payload(payload))


def _bind_handler(handler: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    must_run_when_called(handler)
    return partial(handler, *args)


def _to_outcome(outcome: outcomes.Outcome) -> Outcome:
    match outcome:
        case Ran(result, stored):
            return Handled(result, stored)
        case Replayed(result):
            return Duplicate(result)
        case outcomes.Released(result):
            return Released(result)
        case outcomes.Doubted(_, problem, of):
            return Unknown(problem, of)
        case Declined(problem):
            return _outcome_of_refusal(outcome, problem)


def _outcome_of_refusal(refusal: Declined, problem: Problem) -> Outcome:
    match problem.kind:
        case Kind.STORE_UNAVAILABLE:
            raise refusal.error()
        case Kind.OUTCOME_UNKNOWN:
            return Unknown(problem, refusal.of)
        case kind if kind in _ALREADY_HANDLED:
            return Duplicate()
        case _ if problem.retryable:
            return Busy(problem.retry_after_s or RETRY_S)
        case _:
            return Rejected(problem, refusal.of)
