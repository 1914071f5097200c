"""How a handler writes and responds: rows in one transaction, money in two around the network.

`write_rows` is for requests whose only effects are rows: they commit with the response, or not at
all. `ResumableRequest` is for requests that move money, so that a later attempt can continue them:

    begin    rows that say what will happen, a step that stores their ids: one transaction
    key      the key the card network recognises retries by, the same for all attempts
    end      rows that say what happened, and the response: one transaction

The network is called between the two. Its reply is not stored in a step: the network stores it
itself, under the key. So the process may die at any point; the client's retry or the recoverer
continues and ends up with the same charge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection

import oncekey
from payments.api.expand import check_paths, expand
from payments.api.objects import Object
from payments.api.parameters import Parameters
from payments.api.requests import tenant_of
from payments.api.responses import encode, header_lines, request_id, respond
from payments.network import Network
from payments.storage import ids
from payments.storage.database import Database
from payments.webhooks import events

T = TypeVar("T")

Write = Callable[[Connection, str], Object]
"""Takes a transaction and the tenant, writes the rows and returns the changed object."""


def write_rows(
    request: Request, params: Parameters, write: Write, event: str | None = None
) -> Response:
    """Write rows, record an `event` of this type about them, and respond with the changed object.

    The object has the fields expanded that the request asks for.
    """
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    with database.rows() as connection:
        body = write(connection, tenant)
        if event is not None:
            events.record(connection, tenant, event, body, request_id(request))
        expand(connection, tenant, body, params.expand)
    return respond(request, body)


class ResumableRequest:
    """One attempt at a request that moves money."""

    def __init__(self, request: Request, params: Parameters | None = None, kind: str = "") -> None:
        """`kind` is the object the response holds, whose ids `params` may want expanded."""
        self._expand = params.expand if params is not None else None
        check_paths(kind, self._expand)
        self.request = request
        self.tenant = tenant_of(request)
        self.database: Database = request.app.state.database
        self.network: Network = request.app.state.network
        self._attempt = oncekey.current_or_none()

    @property
    def request_id(self) -> str:
        return request_id(self.request)

    def key(self, name: str, id_: str) -> str:
        """Return the key for calling the network about the object with this id.

        A client may reuse its key after a day, when its record is gone. The network forgets
        nothing, so the charge of that day needs another key there.
        """
        name = f"{name}:{id_}"
        return ids.new(name) if self._attempt is None else self._attempt.child_key(name)

    def begin(self, name: str, write: Callable[[Connection], T]) -> T:
        """Write what is about to happen, once. Later attempts get the same result."""
        with self.database.begin() as connection:
            if self._attempt is None:
                return write(connection)
            result: T = self._attempt.step_sync(name, write, connection, within=connection)
            return result

    def end(self, write: Callable[[Connection], tuple[int, Object]]) -> Response:
        """Write what happened and the response to the client: both, or neither."""
        with self.database.begin() as connection:
            status, body = write(connection)
            if self._expand and status == 200:
                body = expand(connection, self.tenant, body, self._expand)
            encoded = encode(body)
            if self._attempt is not None:
                headers = header_lines(self.request)
                self._attempt.complete_in_sync(connection, status, encoded, headers)
        return respond(self.request, encoded, status)

    def set_resource_id(self, id_: str) -> None:
        """Let operators find the operation by the object it created."""
        if self._attempt is not None:
            self._attempt.resource_id = id_
