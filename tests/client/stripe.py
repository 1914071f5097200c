"""Stripe's servers, as far as their behaviour is on record: what they say about keys, and how.

Not a payments API: one resource, which is created once per key. What goes wrong, and when, is a
script, as in `tests.client.scripted_server`; what a key then brings is Stripe's own way:

- the answer of a first request is kept with whatever status it has, 500s included, and comes back
  with `Idempotent-Replayed: true`;
- the same key with other parameters is a 400 of the type `idempotency_error`;
- while the first request runs it is a 409, `idempotency_key_in_use`;
- `Stripe-Should-Retry` says in both directions what the status does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl

from tests.client.scripted_server import ScriptedServer, scripted_server

REUSED = "This key came with other parameters before."


def error(kind: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message, **more}}


IN_USE = error(
    "invalid_request_error", "Another one is in progress.", code="idempotency_key_in_use"
)
LOCK_TIMEOUT = error("invalid_request_error", "This object is in use.", code="lock_timeout")
RATE_LIMIT = error("invalid_request_error", "Too many requests.", code="rate_limit")
DECLINED = error("card_error", "Your card was declined.", code="card_declined", param="")
BROKEN = error("api_error", "Something went wrong on our end.")

Turn = tuple[int, dict[str, str], dict[str, Any]]


class Stripe:
    """What is kept by key, and what was charged."""

    def __init__(self, wire: ScriptedServer) -> None:
        self._wire = wire
        self._kept: dict[str, tuple[Any, Turn]] = {}
        self.charges: list[dict[str, str]] = []
        self.turns: list[Any] = []
        """What befalls the next requests, in order:

        "ok"                   it is carried out and answered
        "lost"                 it is carried out, and the connection breaks before the answer
        ("refused", turn)      answered without being carried out, and not kept
        ("kept", turn)         answered so, and from now on under this key
        """
        wire.otherwise = self._answer
        self.url = wire.url

    @property
    def keys(self) -> list[str | None]:
        return self._wire.keys

    def _answer(self, handler: BaseHTTPRequestHandler) -> Any:
        seen = self._wire.seen[-1]
        assert seen.key is not None, "Stripe's own clients send a key with every POST"
        asked = seen.path, sorted(parse_qsl(seen.body.decode()))
        if seen.key in self._kept:
            before, (status, headers, body) = self._kept[seen.key]
            if before != asked:
                return 400, {"Stripe-Should-Retry": "false"}, error("idempotency_error", REUSED)
            return status, {**headers, "Idempotent-Replayed": "true"}, body
        turn = self.turns.pop(0) if self.turns else "ok"
        if isinstance(turn, tuple):
            how, answer = turn
            if how == "kept":
                self._kept[seen.key] = asked, answer
            return answer
        self.charges.append(dict(asked[1]))
        made = {"id": f"ch_{len(self.charges)}", "object": "charge"}
        headers = {"Request-Id": f"req_{len(self._wire.seen)}", "Idempotency-Key": seen.key}
        self._kept[seen.key] = asked, (200, headers, made)
        return "drop" if turn == "lost" else (200, headers, made)


@contextmanager
def stripe() -> Iterator[Stripe]:
    with scripted_server() as wire:
        yield Stripe(wire)


def body_of(response: Any) -> Any:
    return json.loads(response.content)
