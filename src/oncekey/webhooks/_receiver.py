"""Receive webhooks: verify the signature, handle each event once, and answer so that the sender
knows whether to retry.

    receiver = Receiver(runtime, name="billing", secrets=[secret])
    receipt = await receiver.receive(request.headers, await request.body(), on_event)
    return Response(receipt.body, receipt.status, receipt.headers)

Senders deliver at least once and retry for days, so events are remembered for a month (the
deduplication window). The handler's exceptions reach the caller: turned into a 500, they make the
sender retry.

A receiver takes one scheme of signatures. The two know an event by different ids: anyone who
repeats a captured message could otherwise choose, by leaving headers out, which id counts, and have
it handled twice.
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
"""Longer than any sender retries, and than most people wait before they press "resend"."""
BODY_BYTES_MAX = 1_048_576
EVENT_ID_CHARS_MAX = 255
RETRY_S = 5.0


@value
class Event:
    """A webhook whose signature was verified."""

    id: str
    body: bytes
    """As it was signed."""
    signed_at: int

    def json(self) -> Any:
        return json.loads(self.body)


@value
class Receipt:
    """The response to send."""

    status: int
    said: str
    outcome: Outcome | None = None
    """The inbox's outcome for the event; None if the event was refused before."""
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
    """An inbox whose message ids are the sender's event ids."""

    kind = "a receiver"


class Receiver:
    """One endpoint that receives a sender's webhooks.

    `name` separates its events from those of other receivers on the same store. `secrets` may hold
    several while you rotate them.
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
        signed_headers("start", b"", secrets, 0.0, (scheme,))  # a bad secret fails now, not later
        rules = as_policy(policy).over(Policy(retention_s=RETENTION_S))
        self._inbox = _Events(runtime, name=name, policy=rules)
        self._secrets = tuple(secrets)
        self._scheme = scheme
        self._tolerance_s = tolerance_s
        self._body_bytes_max = body_bytes_max
        self._clock = clock or SystemClock()

    def open(self, headers: Lines, body: bytes) -> Event | Receipt:
        """Verify a request and return its event; else the response, which asks for no retry."""
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
        """Verify, call `handler(event)` (sync or async) unless this event was handled before, and
        return the response. The handler's exceptions are raised.
        """
        event = self.open(headers, body)
        if isinstance(event, Receipt):
            return event
        return _receipt(await self._inbox.handle(event.id, handler, event))

    def receive_sync(self, headers: Lines, body: bytes, handler: Handler) -> Receipt:
        """Blocking `receive`."""
        event = self.open(headers, body)
        if isinstance(event, Receipt):
            return event
        return _receipt(self._inbox.handle_sync(event.id, handler, event))

    async def receive_in(
        self, transaction: Any, headers: Lines, body: bytes, handler: Handler
    ) -> Receipt:
        """`receive` inside your transaction, in the runtime's own database: the event counts as
        handled if and only if you commit. Commit, then respond; roll back on every exception.
        """
        event = self.open(headers, body)
        if isinstance(event, Receipt):
            return event
        return _receipt(await self._inbox.handle_in(transaction, event.id, handler, event))

    def receive_in_sync(
        self, transaction: Any, headers: Lines, body: bytes, handler: Handler
    ) -> Receipt:
        """Blocking `receive_in`."""
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
            # An earlier delivery died half-way, and the policy says not to run it again: the
            # sender's next attempts find out whether an operator has resolved it.
            return Receipt(500, "an earlier delivery has no known end", outcome, RETRY_S)


def _id_within(body: bytes) -> str | None:
    """Return the event id from a Stripe event's body, which is signed as a whole."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    id = content.get("id") if isinstance(content, dict) else None
    return id if isinstance(id, str) and 0 < len(id) <= EVENT_ID_CHARS_MAX else None
