"""Deliveries: one row per event and endpoint, written in the event's own transaction.

    pending     due at some time; while a worker sends it, due again when the worker's lease ends
    delivered   the endpoint answered 2xx
    failed      the schedule is over
    canceled    its endpoint is deleted or disabled

Every claim increments `attempts`, and recording an attempt compares it: a worker whose lease has
ended changes nothing that another one has begun. An attempt that was sent but not recorded, because
its worker died, is sent again with the same event id.

Sending an event again creates a new delivery, so a finished one never restarts.

oncekey's outbox would not do: it forgets a message once a broker has it, knows one broker, and
holds back what follows on the same key. A delivery is one event for one of many endpoints, is tried
for days, must be listed and sent again after it ended, and one endpoint that hangs must not delay
another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from oncekey.webhooks import Answered, Schedule, Sent
from payments.api import objects
from payments.storage import ids
from payments.storage.tables import deliveries, delivery_attempts, webhook_endpoints
from payments.webhooks import events
from payments.webhooks.delivery_slots import DeliverySlots

CANCELED_MAX = 256
"""How many deliveries to deleted or disabled endpoints one claim cancels."""
ERROR_CHARS_MAX = 500
FAR_S = 2 * 86_400.0
"""Longer than any wait: a later due time was written while the machine's clock was wrong."""
DIED = "it was begun too often without an end: its workers died"


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery that this worker owns until its lease ends."""

    tenant: str
    id: str
    attempts: int
    """The number of this attempt, from 1."""
    event: str
    endpoint: str
    url: str
    secrets: list[str]


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """What becomes of a delivery after an attempt."""

    status: str
    due: float | None
    is_gone: bool = False
    """The endpoint asked for nothing more (410)."""


# ------------------------------------------------------------------------------------- claiming

_e = webhook_endpoints.c
_PENDING = deliveries.c.status == "pending"
_IS_DUE = (_PENDING, deliveries.c.due <= sa.bindparam("now"))
_IS_FAR = (_PENDING, deliveries.c.due > sa.bindparam("now") + FAR_S)
_LOOK = sa.select(sa.exists().where(*_IS_DUE) | sa.exists().where(*_IS_FAR))


def _endpoints_with_something_due() -> sa.Select[Any]:
    """Select the endpoints that have due deliveries, longest due first.

    Skips through an index from one endpoint to the next, without reading the many deliveries that
    may wait for one that hangs.
    """
    first = sa.select(sa.func.min(deliveries.c.endpoint).label("endpoint")).where(_PENDING)
    each = first.cte("waiting", recursive=True)
    after = first.where(deliveries.c.endpoint > each.c.endpoint).scalar_subquery()
    each = each.union_all(sa.select(after).select_from(each).where(each.c.endpoint.is_not(None)))
    its = _PENDING, deliveries.c.endpoint == each.c.endpoint
    oldest = sa.select(sa.func.min(deliveries.c.due)).where(*its).scalar_subquery()
    whose = sa.select(deliveries.c.tenant).where(*its).limit(1).scalar_subquery()
    found = sa.select(each.c.endpoint, whose.label("tenant"), oldest.label("due")).subquery()
    return sa.select(found).where(found.c.due <= sa.bindparam("now")).order_by(found.c.due)


_WAITING = _endpoints_with_something_due()
_DUE = (
    sa.select(deliveries, _e.url, _e.secrets, _e.status.label("endpoint_status"))
    .outerjoin(
        webhook_endpoints,
        sa.and_(_e.tenant == deliveries.c.tenant, _e.id == deliveries.c.endpoint),
    )
    .where(*_IS_DUE, deliveries.c.endpoint == sa.bindparam("endpoint"))
    .order_by(deliveries.c.due)
    .with_for_update(skip_locked=True, of=deliveries)  # SQLite has one writer anyway
)
_THIS = (
    deliveries.c.tenant == sa.bindparam("whose"),
    deliveries.c.id == sa.bindparam("which"),
    deliveries.c.attempts == sa.bindparam("known"),
    deliveries.c.status == "pending",
)


def any_due(connection: Connection, now: float) -> bool:
    """Whether claiming is worthwhile. Reads only."""
    return bool(connection.execute(_LOOK, {"now": now}).scalar_one())


def claim(
    connection: Connection,
    now: float,
    *,
    slots: DeliverySlots,
    lease_s: float,
    attempts_max: int,
) -> list[ClaimedDelivery]:
    """Claim due deliveries, as far as there are free `slots`, and take those slots.

    Ends deliveries that cannot be sent any more.
    """
    taken: list[ClaimedDelivery] = []
    connection.execute(deliveries.update().where(*_IS_FAR).values(due=now), {"now": now})
    for row in _due(connection, now, slots):
        if row.attempts >= attempts_max:
            _end(connection, row, "failed", DIED)
        elif slots.take(row.tenant, row.endpoint):
            _change(connection, row, row.attempts, attempts=row.attempts + 1, due=now + lease_s)
            taken.append(_as_claimed(row, now))
    return taken


def _due(connection: Connection, now: float, slots: DeliverySlots) -> list[Row[Any]]:
    """Return due deliveries, oldest first: a few per endpoint, while there are slots.

    Cancels what waits for deleted or disabled endpoints.
    """
    waiting = connection.execute(_WAITING, {"now": now}).all()
    having = [each.endpoint for each in waiting if slots.has_free(each.tenant, each.endpoint)]
    found: list[Row[Any]] = []
    wanted, canceled = slots.free, 0
    for endpoint in having:
        values = {"endpoint": endpoint, "now": now}
        its = connection.execute(_DUE.limit(slots.per_endpoint_max), values).all()
        if any(row.endpoint_status != "enabled" for row in its):
            ending = connection.execute(_DUE.limit(CANCELED_MAX - canceled), values).all()
            canceled += len(ending)
            for row in ending:
                _end(connection, row, "canceled", "its endpoint is gone or disabled")
        elif its:  # else other workers have locked them
            found += its
            wanted -= 1
        if not wanted:
            break
    return sorted(found, key=lambda row: row.due)


def _end(connection: Connection, row: Row[Any], status: str, reason: str) -> None:
    _change(connection, row, row.attempts, due=None, status=status, last_error=reason)


def _as_claimed(row: Row[Any], now: float) -> ClaimedDelivery:
    return ClaimedDelivery(
        row.tenant,
        row.id,
        row.attempts + 1,
        row.event,
        row.endpoint,
        row.url,
        list(current_secrets(row.secrets, now)),
    )


def current_secrets(secrets: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    """Yield the secrets that sign an endpoint's deliveries now: in a replacement, old and new."""
    for each in secrets:
        if each["until"] is None or now < each["until"]:
            yield each["secret"]


def _change(connection: Connection, row: Any, known: int, **values: Any) -> int:
    """Change a delivery if it still has `known` attempts."""
    named = {"whose": row.tenant, "which": row.id, "known": known}
    return connection.execute(deliveries.update().where(*_THIS).values(**values), named).rowcount


# ------------------------------------------------------------------------------------- recording


def decide_outcome(
    sent: Sent, attempts: int, schedule: Schedule, now: float, chance: float
) -> DeliveryOutcome:
    """Decide what becomes of a delivery after this attempt."""
    asked_s = None
    if isinstance(sent, Answered):
        if sent.is_delivered:
            return DeliveryOutcome("delivered", None)
        if sent.is_gone:
            return DeliveryOutcome("failed", None, is_gone=True)
        asked_s = sent.retry_after_s
    wait_s = schedule.delay_s(attempts, chance, asked_s=asked_s)
    return (
        DeliveryOutcome("failed", None)
        if wait_s is None
        else DeliveryOutcome("pending", now + wait_s)
    )


def record_attempt(
    connection: Connection,
    claimed: ClaimedDelivery,
    sent: Sent,
    ending: DeliveryOutcome,
    now: float,
    *,
    dead_s: float,
) -> bool:
    """Record an attempt and its outcome. False: another worker has begun the delivery again."""
    status = sent.status if isinstance(sent, Answered) else None
    error = None if ending.status == "delivered" else _reason(sent)
    connection.execute(
        delivery_attempts.insert(),
        {
            "tenant": claimed.tenant,
            "id": ids.new("att"),
            "created": int(now),
            "delivery": claimed.id,
            "status": status,
            "error": error,
            "took_s": sent.seconds,
        },
    )
    changed = _change(
        connection,
        claimed,
        claimed.attempts,
        status=ending.status,
        due=ending.due,
        last_status=status,
        last_error=error,
    )
    if changed:
        _update_endpoint(connection, claimed, ending, now, dead_s)
    return changed == 1


def _reason(sent: Sent) -> str:
    if not isinstance(sent, Answered):
        return sent.reason
    body = sent.excerpt.decode("utf-8", "replace").replace("\0", "")
    return f"it answered {sent.status}: {body}"[:ERROR_CHARS_MAX]


def _update_endpoint(
    connection: Connection,
    claimed: ClaimedDelivery,
    ending: DeliveryOutcome,
    now: float,
    dead_s: float,
) -> None:
    """Note that the endpoint works or fails; disable it if it fails too long or asks for it."""
    this = webhook_endpoints.update().where(_e.tenant == claimed.tenant, _e.id == claimed.endpoint)
    if ending.status == "delivered":
        connection.execute(this.where(_e.failing_since.is_not(None)).values(failing_since=None))
        return
    connection.execute(this.where(_e.failing_since.is_(None)).values(failing_since=int(now)))
    is_dead = sa.true() if ending.is_gone else _e.failing_since <= now - dead_s
    disabled = connection.execute(
        this.where(_e.status == "enabled", is_dead)
        .values(status="disabled")
        .returning(webhook_endpoints)
    ).first()
    if disabled is not None:
        body = objects.webhook_endpoint(disabled)
        events.record(connection, claimed.tenant, "webhook_endpoint.disabled", body, None)


# ---------------------------------------------------------------------------------- sending again


def send_again(
    connection: Connection, tenant: str, event: Row[Any], endpoint: str | None, now: float
) -> list[str]:
    """Deliver an event again, to one endpoint or all subscribers; return the deliveries' ids."""
    query = sa.select(webhook_endpoints).where(_e.tenant == tenant, _e.status == "enabled")
    if endpoint is not None:
        query = query.where(_e.id == endpoint)
    found = connection.execute(query).all()
    made = [
        {
            "tenant": tenant,
            "id": ids.new("dlv"),
            "created": int(now),
            "event": event.id,
            "endpoint": row.id,
            "due": now,
        }
        for row in found
        if endpoint is not None or events.wants(row.enabled_events, event.type)
    ]
    if made:
        connection.execute(deliveries.insert(), made)
    return [row["id"] for row in made]
