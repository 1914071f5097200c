"""The inbox: a handler runs once per message, however often the message arrives.

    inbox = Inbox(runtime, name="orders")
    outcome = await inbox.handle(message.id, ship, message.order, payload=message.body)
    if outcome.then is Then.ACKNOWLEDGE:
        await message.ack()

Brokers deliver at least once. What they deliver again is told apart by its id, so the consumer
acknowledges after the handler's result is recorded, and may then forget.
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
from oncekey.errors import Misuse


class Then(enum.Enum):
    """What the consumer does with the message now."""

    ACKNOWLEDGE = "acknowledge"
    """It is done, and recorded: the broker may forget it."""
    REDELIVER = "redeliver"
    """Not now: have it delivered again later."""
    DEAD_LETTER = "dead letter"
    """Delivering it again cannot help, and it must not be lost: put it where somebody looks."""


@value
class Handled:
    """The handler ran now."""

    then: ClassVar = Then.ACKNOWLEDGE
    result: Any = None
    stored: bool = True
    """False where that could not be recorded: if it is delivered again, it may run again."""


@value
class Duplicate:
    """The handler ran before, and gave this then; None where that was not kept."""

    then: ClassVar = Then.ACKNOWLEDGE
    result: Any = None


@value
class Busy:
    """Another delivery of this message is being handled right now."""

    then: ClassVar = Then.REDELIVER
    retry_after_s: float


@value
class Released:
    """The handler ran and said that it is not done (`transient()`, `no_effect()`)."""

    then: ClassVar = Then.REDELIVER
    result: Any = None


@value
class Unknown:
    """It was begun, by an earlier delivery most likely, and nobody knows how it ended: an operator
    must look.
    """

    then: ClassVar = Then.DEAD_LETTER
    problem: Problem
    of: str
    """Which inbox, and the short hash of the id, as `oncekey list` shows it, for your log."""


@value
class Rejected:
    """The handler does not run for this message: its id was used for another one, most likely."""

    then: ClassVar = Then.DEAD_LETTER
    problem: Problem
    of: str
    """As that of `Unknown`."""


Outcome = Handled | Duplicate | Busy | Released | Unknown | Rejected

_DONE = (Kind.ANSWER_NOT_KEPT, Kind.STALE_ANSWER, Kind.KEY_EXPIRED)
RETRY_S = 1.0


class Inbox:
    """The messages of one queue or topic. `name` tells its ids from those of other inboxes."""

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

        With `payload` another message under the same id is told apart, and rejected. What the
        handler raises is raised, and so is `StoreUnavailable`: have the message delivered again.
        """
        call = self._call(message_id, tenant, payload)
        return _told(await self._operation.run(call, _work(handler, args)))

    def handle_sync(
        self,
        message_id: str,
        handler: Callable[..., Any],
        *args: Any,
        tenant: str = SINGLE_TENANT,
        payload: bytes = b"",
    ) -> Outcome:
        """`handle` for consumers that block."""
        call = self._call(message_id, tenant, payload)
        return _told(self._operation.run_sync(call, _work(handler, args)))

    async def handle_in(
        self,
        transaction: Any,
        message_id: str,
        handler: Callable[..., Any],
        *args: Any,
        tenant: str = SINGLE_TENANT,
        payload: bytes = b"",
    ) -> Outcome:
        """`handle` within your transaction: the message counts as handled if and only if you
        commit, together with the rows that the handler wrote there.

        `transaction` is a connection or session with a transaction open, in the store's own
        database. Commit, then acknowledge; roll back on every exception. A crash leaves nothing.
        """
        call = self._call(message_id, tenant, payload)
        return _told(await self._operation.run_in(transaction, call, _work(handler, args)))

    def handle_in_sync(
        self,
        transaction: Any,
        message_id: str,
        handler: Callable[..., Any],
        *args: Any,
        tenant: str = SINGLE_TENANT,
        payload: bytes = b"",
    ) -> Outcome:
        """`handle_in` for consumers that block."""
        call = self._call(message_id, tenant, payload)
        return _told(self._operation.run_in_sync(transaction, call, _work(handler, args)))

    def _call(self, message_id: str, tenant: str, payload: bytes) -> Call:
        name = self._operation.name
        if not isinstance(message_id, str):
            raise Misuse(f"{name}: a message id is text, not {type(message_id).__name__}")
        key = keys.derive(message_id)
        if isinstance(key, BadKey):
            raise Misuse(
                f"{name}: this message has no id to know it by. {key.reason.partition('. ')[0]}. "
                "Have the producer set one, or make one of what the message is about"
            )
        if not tenant or not isinstance(tenant, str):
            raise Misuse(f"{name}: tenant={tenant!r} is no account; leave it out if there is one")
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise Misuse(
                f"{name}: payload= is the message's bytes as they came, not a "
                f"{type(payload).__name__}"
            )
        return Call(tenant, name, key, canonical.payload(payload))


def _work(handler: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    must_run_when_called(handler)
    return partial(handler, *args)


def _told(outcome: outcomes.Outcome) -> Outcome:
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
            return _declined(outcome, problem)


def _declined(declined: Declined, problem: Problem) -> Outcome:
    match problem.kind:
        case Kind.STORE_UNAVAILABLE:
            raise declined.error()
        case Kind.OUTCOME_UNKNOWN:
            return Unknown(problem, declined.of)
        case kind if kind in _DONE:
            return Duplicate()
        case _ if problem.retryable:
            return Busy(problem.retry_after_s or RETRY_S)
        case _:
            return Rejected(problem, declined.of)
