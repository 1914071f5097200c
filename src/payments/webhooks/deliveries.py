"""Deliveries: one row for each event and endpoint, from the event's own transaction to its end.

    pending     due at some time; while a worker sends it, due again when the worker's lease is over
    delivered   the endpoint answered 2xx
    failed      the schedule is over
    canceled    its endpoint is gone or disabled

`attempts` rises with every claim, and what a claim writes later must present it: a worker whose
lease was over changes nothing that another has begun. An attempt that was sent but not recorded,
because its worker died, is sent again, under the same event id.

Sending again makes a new delivery of the same event, so nothing that has ended begins anew.
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
"""By one claim, of what waits for endpoints that are gone."""
ERROR_CHARS_MAX = 500
FAR_S = 2 * 86_400.0
"""Further away than any wait: what is due then was written while the machine's clock was wrong."""
DIED = "it was begun too often without an end: its workers died"


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery that is this worker's until its lease is over."""

    tenant: str
    id: str
    attempts: int
    """Which attempt this is, 1 for the first."""
    event: str
    endpoint: str
    url: str
    secrets: list[str]


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """What an attempt means for its delivery."""

    status: str
    due: float | None
    is_gone: bool = False
    """The endpoint asks to be sent nothing any more."""


# ------------------------------------------------------------------------------------- claiming

_e = webhook_endpoints.c
_PENDING = deliveries.c.status == "pending"
_IS_DUE = (_PENDING, deliveries.c.due <= sa.bindparam("now"))
_IS_FAR = (_PENDING, deliveries.c.due > sa.bindparam("now") + FAR_S)
_LOOK = sa.select(sa.exists().where(*_IS_DUE) | sa.exists().where(*_IS_FAR))


def _endpoints_with_something_due() -> sa.Select[Any]:
    """Those of whom something is due, whose turn it is first. Goes through an index from one to the
    next: what waits for one that hangs may be very much, and is not read.
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
    """Whether it is worth claiming: reads only."""
    return bool(connection.execute(_LOOK, {"now": now}).scalar_one())


def claim(
    connection: Connection,
    now: float,
    *,
    slots: DeliverySlots,
    lease_s: float,
    attempts_max: int,
) -> list[ClaimedDelivery]:
    """Take deliveries that are due, as far as there are `slots` for them, which are taken too.
    What cannot be sent any more ends here.
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
    """What is due, oldest first: a few of each endpoint that has a place, while there are places.
    What waits for one that is gone ends.
    """
    waiting = connection.execute(_WAITING, {"now": now}).all()
    having = [each.endpoint for each in waiting if slots.has_one(each.tenant, each.endpoint)]
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
        elif its:  # others have the rest
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
    """The secrets that an endpoint's deliveries are signed with now: while one is being replaced,
    both.
    """
    for each in secrets:
        if each["until"] is None or now < each["until"]:
            yield each["secret"]


def _change(connection: Connection, row: Any, known: int, **values: Any) -> int:
    """Change a delivery, if it is still the one that is known."""
    named = {"whose": row.tenant, "which": row.id, "known": known}
    return connection.execute(deliveries.update().where(*_THIS).values(**values), named).rowcount


# ------------------------------------------------------------------------------------- settling


def decide_outcome(
    sent: Sent, attempts: int, schedule: Schedule, now: float, chance: float
) -> DeliveryOutcome:
    """What becomes of a delivery after this attempt."""
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
    """Record an attempt, and what follows from it. False: another worker has begun it anew."""
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
    said = sent.excerpt.decode("utf-8", "replace").replace("\0", "")
    return f"it answered {sent.status}: {said}"[:ERROR_CHARS_MAX]


def _update_endpoint(
    connection: Connection,
    claimed: ClaimedDelivery,
    ending: DeliveryOutcome,
    now: float,
    dead_s: float,
) -> None:
    """How the endpoint fares: one that fails for too long, or asks for it, is sent nothing more."""
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
        shown = objects.webhook_endpoint(disabled)
        events.record(connection, claimed.tenant, "webhook_endpoint.disabled", shown, None)


# ---------------------------------------------------------------------------------- sending again


def send_again(
    connection: Connection, tenant: str, event: Row[Any], endpoint: str | None, now: float
) -> list[str]:
    """Deliver an event once more, to one endpoint or to all that want it: new deliveries' ids."""
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
