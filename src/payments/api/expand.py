"""Expansion: replace ids with their objects, where a request asks for it with `expand[]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from payments.api import objects
from payments.api.errors import invalid
from payments.api.objects import Object
from payments.storage import rows
from payments.storage.tables import charges, customers, payment_intents, payment_methods

DEPTH_MAX = 4

_BEHIND: dict[str, tuple[sa.Table, Callable[[Row[Any]], Object]]] = {
    "charge": (charges, objects.charge),
    "customer": (customers, objects.customer),
    "payment_intent": (payment_intents, objects.payment_intent),
    "payment_method": (payment_methods, objects.payment_method),
}
_FIELDS: dict[str, dict[str, str]] = {
    "charge": {name: name for name in ("customer", "payment_intent", "payment_method")},
    "payment_intent": {
        "customer": "customer",
        "latest_charge": "charge",
        "payment_method": "payment_method",
    },
    "payment_method": {"customer": "customer"},
    "refund": {"charge": "charge", "payment_intent": "payment_intent"},
}
"""By kind of object: its fields that are ids, and of what."""


def check_paths(kind: str, paths: Sequence[str] | None) -> None:
    """Raise for paths that cannot be expanded, before anything is done."""
    for path in paths or ():
        parts, current = path.split("."), kind
        if len(parts) > DEPTH_MAX:
            raise invalid(f"You cannot expand more than {DEPTH_MAX} levels.", "expand")
        for part in parts:
            fields = _FIELDS.get(current, {})
            if part not in fields:
                raise invalid(f"This property cannot be expanded ({part[:100]}).", "expand")
            current = fields[part]


def expand(
    connection: Connection, tenant: str, body: Object, paths: Sequence[str] | None
) -> Object:
    """Replace the ids that `paths` name with their objects."""
    if paths:
        check_paths(body["object"], paths)
        for path in paths:
            _expand(connection, tenant, body, path.split("."))
    return body


def _expand(connection: Connection, tenant: str, body: Object, parts: list[str]) -> None:
    name, *rest = parts
    if isinstance(body[name], str):
        table, shape = _BEHIND[_FIELDS[body["object"]][name]]
        body[name] = shape(rows.get(connection, table, tenant, body[name]))
    if rest and body[name] is not None:
        _expand(connection, tenant, body[name], rest)
