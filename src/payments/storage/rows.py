"""Rows: read by tenant and id, changed only if they are in an allowed state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from payments.api.errors import invalid, not_found
from payments.api.parameters import METADATA_MAX

_KINDS = {
    "charges": "charge",
    "customers": "customer",
    "deliveries": "webhook delivery",
    "events": "event",
    "payment_intents": "payment_intent",
    "payment_methods": "PaymentMethod",
    "refunds": "refund",
    "tokens": "token",
    "webhook_endpoints": "webhook endpoint",
}


def get(
    connection: Connection,
    table: sa.Table,
    tenant: str,
    id_: str,
    param: str = "id",
    *,
    lock: bool = False,
) -> Row[Any]:
    """Return the row; raise 404 if there is none, or 400 if a parameter named it.

    `lock`: nobody else changes it before this transaction ends.
    """
    query = sa.select(table).where(table.c.tenant == tenant, table.c.id == id_)
    if lock:
        query = query.with_for_update()
    # Text that no database accepts is no id either.
    found = connection.execute(query).first() if _is_valid_id(id_) else None
    if found is None:
        raise not_found(_KINDS[table.name], id_, param)
    return found


def _is_valid_id(id_: str) -> bool:
    return len(id_) <= 255 and id_.isascii() and id_.isprintable()


def change(
    connection: Connection,
    table: sa.Table,
    tenant: str,
    id_: str,
    *conditions: sa.ColumnElement[bool],
    **values: Any,
) -> Row[Any] | None:
    """Change a row and return it; None if it does not meet the conditions (any more)."""
    return connection.execute(
        sa.update(table)
        .where(table.c.tenant == tenant, table.c.id == id_, *conditions)
        .values(**values)
        .returning(table)
    ).first()


def update(
    connection: Connection, table: sa.Table, row: Row[Any], changes: Mapping[str, Any]
) -> Row[Any]:
    """Update a locked row; metadata is merged."""
    values = dict(changes)
    if "metadata" in values:
        values["metadata"] = merge_metadata(row.metadata, values["metadata"])
    if not values:
        return row
    changed = change(connection, table, row.tenant, row.id, **values)
    assert changed is not None  # noqa: S101  (it is locked)
    return changed


def merge_metadata(
    old: dict[str, str] | None, changes: dict[str, str | None] | None
) -> dict[str, str]:
    """Merge metadata: new values replace old ones, empty values delete them."""
    if changes is None:
        return {}
    result = {name: value for name, value in {**(old or {}), **changes}.items() if value}
    if len(result) > METADATA_MAX:
        raise invalid(f"An object has at most {METADATA_MAX} metadata keys.", "metadata")
    return result
