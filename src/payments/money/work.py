"""Work: one attempt at moving money, in a form that a later attempt can continue.

    begin    rows that say what is about to happen, and a step that keeps their ids: one transaction
    key      what the card network tells retries by, the same over all attempts
    end      rows that say what happened, and the answer: one transaction

Between the two the network is asked. No step keeps what it says: the network itself does, under the
key. So a process may die at any point, and whoever comes next, the client's retry or the recoverer,
ends up with the same charge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection

import oncekey
from payments.api.expand import check, expanded
from payments.api.objects import Object
from payments.api.parameters import Parameters
from payments.api.reading import tenant
from payments.api.responses import answer, encode, lines, request_id
from payments.network import Network
from payments.storage import ids
from payments.storage.database import Database

T = TypeVar("T")


class Work:
    """What a handler that moves money works with."""

    def __init__(self, request: Request, asked: Parameters | None = None, kind: str = "") -> None:
        """`asked` may want ids expanded, in the kind of object that it is answered with."""
        self._expand = asked.expand if asked is not None else None
        check(kind, self._expand)
        self.request = request
        self.tenant = tenant(request)
        self.database: Database = request.app.state.database
        self.network: Network = request.app.state.network
        self._attempt = oncekey.current_or_none()

    @property
    def request_id(self) -> str:
        return request_id(self.request)

    def key(self, name: str, id_: str) -> str:
        """The key under which the network is asked to do this with what has this id.

        A client's key may be used anew after a day, when its record is gone. The network forgets
        nothing, so what is charged then must have another key there.
        """
        name = f"{name}:{id_}"
        return ids.new(name) if self._attempt is None else self._attempt.child_key(name)

    def begin(self, name: str, write: Callable[[Connection], T]) -> T:
        """Write what is about to happen, once; gives what was written, to later attempts too."""
        with self.database.begin() as connection:
            if self._attempt is None:
                return write(connection)
            kept: T = self._attempt.step_sync(name, write, connection, within=connection)
            return kept

    def end(self, write: Callable[[Connection], tuple[int, Object]]) -> Response:
        """Write what happened, and what the client is told of it: both, or neither."""
        with self.database.begin() as connection:
            status, body = write(connection)
            if self._expand and status == 200:
                body = expanded(connection, self.tenant, body, self._expand)
            encoded = encode(body)
            if self._attempt is not None:
                headers = lines(self.request)
                self._attempt.complete_in_sync(connection, status, encoded, headers)
        return answer(self.request, encoded, status)

    def made(self, id_: str) -> None:
        """Operators see, and may look for, what an operation made."""
        if self._attempt is not None:
            self._attempt.resource_id = id_
