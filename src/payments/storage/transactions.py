"""Writing: what requests share whose only effects are rows. They commit with the answer, or not at
all.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection

from payments.api.expand import expanded
from payments.api.objects import Object
from payments.api.parameters import Parameters
from payments.api.reading import tenant
from payments.api.responses import answer, request_id
from payments.storage.database import Database
from payments.webhooks import events

Write = Callable[[Connection, str], Object]
"""Given a transaction and whose rows they are: writes them, and gives the object that changed."""


def written(
    request: Request, asked: Parameters, write: Write, tells: str | None = None
) -> Response:
    """The answer to a request: the object that it changed, with what is to be expanded. `tells` is
    the event that there is of it.
    """
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.rows() as connection:
        shown = write(connection, whose)
        if tells is not None:
            events.record(connection, whose, tells, shown, request_id(request))
        expanded(connection, whose, shown, asked.expand)
    return answer(request, shown)
