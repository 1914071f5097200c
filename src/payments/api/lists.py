"""Lists, newest first, in pages after or before a cursor; and single objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from fastapi import Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments.api.expand import check_paths, expand
from payments.api.parameters import Created, Page, Parameters
from payments.api.requests import tenant_of
from payments.api.responses import respond
from payments.storage import rows
from payments.storage.database import Database

Shape = Callable[[Row[Any]], dict[str, Any]]


def page(
    connection: Connection,
    table: sa.Table,
    tenant: str,
    params: Page,
    shape: Shape,
    url: str,
    *conditions: sa.ColumnElement[bool],
) -> dict[str, Any]:
    """Return a page of a tenant's objects. Ids sort by creation, so a cursor is an id."""
    paths = [path.removeprefix("data.") for path in params.expand or ()]
    check_paths(table.name.removesuffix("s"), paths)
    query = sa.select(table).where(table.c.tenant == tenant, *conditions, *_span(table, params))
    backwards = params.ending_before is not None
    if params.starting_after is not None:
        rows.get(connection, table, tenant, params.starting_after, "starting_after")
        query = query.where(table.c.id < params.starting_after)
    if params.ending_before is not None:
        rows.get(connection, table, tenant, params.ending_before, "ending_before")
        query = query.where(table.c.id > params.ending_before)
    order = table.c.id.asc() if backwards else table.c.id.desc()
    found = list(connection.execute(query.order_by(order).limit(params.limit + 1)))
    more = len(found) > params.limit
    del found[params.limit :]
    if backwards:
        found.reverse()
    return {
        "object": "list",
        "data": [expand(connection, tenant, shape(row), paths) for row in found],
        "has_more": more,
        "url": url,
    }


def list_objects(
    request: Request,
    params: Page,
    table: sa.Table,
    shape: Shape,
    *names: str,
    where: Sequence[sa.ColumnElement[bool]] = (),
    url: str | None = None,
) -> Response:
    """Respond with a page of an account's objects.

    `names` are columns that parameters of the same name filter by.
    """
    filters = ((table.c[name], getattr(params, name)) for name in names)
    wanted = [column == value for column, value in filters if value is not None]
    database: Database = request.app.state.database
    with database.read() as connection:
        found = page(
            connection,
            table,
            tenant_of(request),
            params,
            shape,
            url or f"/v1/{table.name}",
            *wanted,
            *where,
        )
    return respond(request, found)


def retrieve(
    request: Request, params: Parameters, table: sa.Table, id_: str, shape: Shape
) -> Response:
    """Respond with one object."""
    tenant = tenant_of(request)
    check_paths(table.name.removesuffix("s"), params.expand)
    database: Database = request.app.state.database
    with database.read() as connection:
        found = shape(rows.get(connection, table, tenant, id_))
        return respond(request, expand(connection, tenant, found, params.expand))


def _span(table: sa.Table, params: Page) -> list[sa.ColumnElement[bool]]:
    created = table.c.created
    match params.created:
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
