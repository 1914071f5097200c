"""Lists: newest first, a page at a time, from where a cursor stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from payments.errors import missing
from payments.parameters import Created, Page

Shape = Callable[[Row[Any]], dict[str, Any]]


def page(
    connection: Connection,
    table: sa.Table,
    tenant: str,
    asked: Page,
    shape: Shape,
    url: str,
    *conditions: sa.ColumnElement[bool],
) -> dict[str, Any]:
    """One page of a tenant's objects. Ids sort as the objects were made, so a cursor is an id."""
    query = sa.select(table).where(table.c.tenant == tenant, *conditions, *_span(table, asked))
    backwards = asked.ending_before is not None
    if asked.starting_after is not None:
        _check(connection, table, tenant, "starting_after", asked.starting_after)
        query = query.where(table.c.id < asked.starting_after)
    if asked.ending_before is not None:
        _check(connection, table, tenant, "ending_before", asked.ending_before)
        query = query.where(table.c.id > asked.ending_before)
    order = table.c.id.asc() if backwards else table.c.id.desc()
    rows = list(connection.execute(query.order_by(order).limit(asked.limit + 1)))
    more = len(rows) > asked.limit
    found = rows[: asked.limit]
    if backwards:
        found.reverse()
    return {
        "object": "list",
        "data": [shape(row) for row in found],
        "has_more": more,
        "url": url,
    }


def _check(connection: Connection, table: sa.Table, tenant: str, param: str, id_: str) -> None:
    known = sa.select(table.c.id).where(table.c.tenant == tenant, table.c.id == id_)
    if connection.execute(known).first() is None:
        raise missing(table.name.removesuffix("s"), id_, param)


def _span(table: sa.Table, asked: Page) -> list[sa.ColumnElement[bool]]:
    created = table.c.created
    match asked.created:
        case Created(gt=gt, gte=gte, lt=lt, lte=lte):
            limits = [
                (gt, created.__gt__),
                (gte, created.__ge__),
                (lt, created.__lt__),
                (lte, created.__le__),
            ]
            return [compare(limit) for limit, compare in limits if limit is not None]
        case int(moment):
            return [created == moment]
    return []
