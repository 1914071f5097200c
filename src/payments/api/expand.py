"""Expanding: an object in place of its id, where a request asks for it by `expand[]`."""

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
"""By kind of object: which of its fields are ids, and of what."""


def check(kind: str, paths: Sequence[str] | None) -> None:
    """Refuse what cannot be expanded, before anything is done."""
    for path in paths or ():
        parts, here = path.split("."), kind
        if len(parts) > DEPTH_MAX:
            raise invalid(f"You cannot expand more than {DEPTH_MAX} levels.", "expand")
        for part in parts:
            fields = _FIELDS.get(here, {})
            if part not in fields:
                raise invalid(f"This property cannot be expanded ({part[:100]}).", "expand")
            here = fields[part]


def expand(
    connection: Connection, tenant: str, shown: Object, paths: Sequence[str] | None
) -> Object:
    """The object, with what is asked for in place of its ids."""
    if paths:
        check(shown["object"], paths)
        for path in paths:
            _expand(connection, tenant, shown, path.split("."))
    return shown


def _expand(connection: Connection, tenant: str, shown: Object, parts: list[str]) -> None:
    name, *deeper = parts
    if isinstance(shown[name], str):
        table, shape = _BEHIND[_FIELDS[shown["object"]][name]]
        shown[name] = shape(rows.get(connection, table, tenant, shown[name]))
    if deeper and shown[name] is not None:
        _expand(connection, tenant, shown[name], deeper)
