"""The receiver: a webhook is verified, handled once per event, and answered so that its sender
knows whether to send it again.

    receiver = Receiver(runtime, name="billing", secrets=[secret])
    receipt = await receiver.receive(request.headers, await request.body(), on_event)
    return Response(receipt.body, receipt.status, receipt.headers)

Senders deliver at least once and repeat for days, so an event is remembered for a month. The
handler's exceptions are the caller's: whatever turns them into a 500 has the event sent again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from oncekey._core.policy import Policy, as_policy
from oncekey._core.validation import must_be_limits
from oncekey._core.values import value
from oncekey._engine.runtime import Runtime
from oncekey._system.clock import Clock, SystemClock
from oncekey.errors import Misuse
from oncekey.messaging import Busy, Inbox, Outcome, Then
from oncekey.webhooks._signatures import (
    TOLERANCE_S,
    Genuine,
    Lines,
    Refused,
    Scheme,
    must_be_raw,
    must_be_secrets,
    signed_headers,
    verify,
)

RETENTION_S = 30 * 86_400.0
"""Longer than any sender goes on by itself, and than most people take to press "send again"."""
BODY_BYTES_MAX = 1_048_576
EVENT_ID_CHARS_MAX = 255
RETRY_S = 5.0


@value
class Event:
    """A webhook that is what it says it is."""

    id: str
    body: bytes
    """As it was signed."""
    signed_at: int

    def json(self) -> Any:
        return json.loads(self.body)


@value
class Receipt:
    """What to answer."""

    status: int
    said: str
    outcome: Outcome | None = None
    """What the inbox made of the event; None where it did not get that far."""
    retry_after_s: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after_s)))
        return headers

    @property
    def body(self) -> bytes:
        return self.said.encode()


Handler = Callable[[Event], Any]


class _Events(Inbox):
    """Events as messages, known by ids that are the sender's."""

    kind = "a receiver"


class Receiver:
    """One endpoint at which a sender's webhooks arrive.

    `name` tells its events from those of other receivers on the same store. `secrets` may be
    several while one is being replaced.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        name: str,
        secrets: Sequence[str],
        scheme: Scheme = Scheme.STANDARD,
        tolerance_s: float = TOLERANCE_S,
        policy: Policy | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        must_be_secrets(secrets)
        numbers = {"tolerance_s": tolerance_s, "body_bytes_max": body_bytes_max}
        must_be_limits("Receiver", numbers)
        if not isinstance(scheme, Scheme):
            raise Misuse("scheme= is Scheme.STANDARD or Scheme.STRIPE")
        signed_headers("start", b"", secrets, 0.0, (scheme,))  # a bad secret is told now, not later
        rules = as_policy(policy).over(Policy(retention_s=RETENTION_S))
        self._inbox = _Events(runtime, name=name, policy=rules)
        self._secrets = tuple(secrets)
        self._scheme = scheme
        self._tolerance_s = tolerance_s
        self._body_bytes_max = body_bytes_max
        self._clock = clock or SystemClock()

    def open(self, headers: Lines, body: bytes) -> Event | Receipt:
        """The event, if this is one; else what to answer, which asks nobody to send it again."""
        must_be_raw(body)
        if len(body) > self._body_bytes_max:
            return Receipt(413, f"larger than {self._body_bytes_max} bytes")
        verified = verify(
            headers,
            body,
            self._secrets,
            self._clock.wall(),
            scheme=self._scheme,
            tolerance_s=self._tolerance_s,
        )
        match verified:
            case Refused(flaw):
                return Receipt(400, f"not accepted: {flaw.value}")
            case Genuine(signed_at, id):
                id = id or _id_within(body)
                if id is None:
                    return Receipt(400, "not accepted: the body has no `id` to know the event by")
                return Event(id, body, signed_at)

    # ------------------------------------------------------------------------------- handling

    async def receive(self, headers: Lines, body: bytes, handler: Handler) -> Receipt:
        """Verify, call `handler(event)`, sync or async, unless it was called for this event
        before, and tell what to answer. What the handler raises is raised.
        """
        event = self.open(headers, body)
        if isinstance(event, Receipt):
            return event
        return _receipt(await self._inbox.handle(event.id, handler, event))

    def receive_sync(self, headers: Lines, body: bytes, handler: Handler) -> Receipt:
        """`receive` for services that block."""
        event = self.open(headers, body)
        if isinstance(event, Receipt):
            return event
        return _receipt(self._inbox.handle_sync(event.id, handler, event))

    async def receive_in(
        self, transaction: Any, headers: Lines, body: bytes, handler: Handler
    ) -> Receipt:
        """`receive` within your transaction, in the runtime's own database: the event counts as
        handled if and only if you commit. Commit, then answer; roll back on every exception.
        """
        event = self.open(headers, body)
        if isinstance(event, Receipt):
            return event
        return _receipt(await self._inbox.handle_in(transaction, event.id, handler, event))

    def receive_in_sync(
        self, transaction: Any, headers: Lines, body: bytes, handler: Handler
    ) -> Receipt:
        """`receive_in` for services that block."""
        event = self.open(headers, body)
        if isinstance(event, Receipt):
            return event
        return _receipt(self._inbox.handle_in_sync(transaction, event.id, handler, event))


def _receipt(outcome: Outcome) -> Receipt:
    match outcome.then:
        case Then.ACKNOWLEDGE:
            return Receipt(200, "received", outcome)
        case Then.REDELIVER:
            wait_s = outcome.retry_after_s if isinstance(outcome, Busy) else RETRY_S
            return Receipt(503, "not now: send it again", outcome, wait_s)
        case Then.DEAD_LETTER:
            # An earlier delivery died half-way, and the policy says not to try again: the sender's
            # next attempts find out whether an operator has settled it.
            return Receipt(500, "an earlier delivery has no known end", outcome, RETRY_S)


def _id_within(body: bytes) -> str | None:
    """The id in the body of an event of Stripe's: it is signed with the rest."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    id = content.get("id") if isinstance(content, dict) else None
    return id if isinstance(id, str) and 0 < len(id) <= EVENT_ID_CHARS_MAX else None
