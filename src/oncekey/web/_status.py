"""What became of a key: told to a client that asks within its own scope, or to other middleware."""

from __future__ import annotations

import json
from typing import Any

from oncekey._core import key as keys
from oncekey._core import refusals
from oncekey._core.canonical import BadBody, parse_query
from oncekey._core.key import BadKey, record_id
from oncekey._core.op import Op
from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Answer, Record, State
from oncekey._core.retention import answer_left_s
from oncekey._core.verbs import Find
from oncekey.errors import StoreError
from oncekey.web._edge import Edge, log
from oncekey.web._request import Request

METHODS = ("GET", "HEAD")
"""By which it is asked: such a query is one, even where requests of these methods are guarded."""
_HEADER = "idempotency-key"


def status(edge: Edge, request: Request, tenant: object) -> Op[Record | Problem | None]:
    """What the store knows about the key that a request names."""
    verb = _verb(edge, request, tenant)
    if isinstance(verb, Problem):
        return verb
    try:
        found: Record | None = yield verb
    except StoreError as error:
        log.error("a status query was refused: %s", error)
        return refusals.store_unavailable()
    return found


def _verb(edge: Edge, request: Request, tenant: object) -> Find | Problem:
    """What to ask the store: the key is in the header, the operation ("POST /orders") in the
    query.
    """
    found = keys.parse(request.headers.all(_HEADER))
    if isinstance(found, str):
        found = edge.profile.key(found)
    if isinstance(found, BadKey):
        return Problem(Kind.INVALID_KEY, found.reason)
    account = edge.check_tenant(tenant)
    if isinstance(account, Problem):
        return account
    pairs = parse_query(request.query)
    if isinstance(pairs, BadBody):
        return Problem(Kind.MALFORMED_REQUEST, pairs.reason)
    named = next((value for name, value in pairs if name == b"operation"), b"")
    method, _, path = named.decode("utf-8", "replace").partition(" ")
    if not path.startswith("/"):
        return Problem(
            Kind.MALFORMED_REQUEST,
            "Name the operation that the key was used for in the query: ?operation=POST%20/orders",
        )
    route = edge.routes.match(method.upper(), path, request.root)
    if route.is_unclear:
        return Problem(
            Kind.MALFORMED_REQUEST,
            "The operation's path can be read as that of another operation. Write it without "
            "repeated slashes, dots between slashes or a slash at the end.",
        )
    scoped = None if route.policy.scope == "tenant" else route.operation
    return Find(record_id(account, scoped, found))


def state_of(edge: Edge, request: Request, tenant: object) -> Op[str | None]:
    """What became of the key that a request itself brings; None where nothing is known of it."""
    route = edge.routes.match(request.method, request.path, request.root)
    if route.is_unclear or request.method not in route.policy.methods or edge.key_in_body:
        return None
    key, account = edge.key(request, route), edge.check_tenant(tenant)
    if not isinstance(key, str) or isinstance(account, Problem):
        return None
    scoped = None if route.policy.scope == "tenant" else route.operation
    found: Record | None = yield Find(record_id(account, scoped, key))
    return None if found is None or found.expired else _state(found)


def _state(record: Record) -> str:
    return "lapsed" if record.lapsed else str(record.state)


def status_answer(edge: Edge, found: Record | Problem | None) -> Answer:
    """What the client is told: never the kept answer itself, which only the same request gets."""
    if isinstance(found, Problem):
        return edge.refusal(found)
    if found is None or found.expired:
        return edge.refusal(
            Problem(Kind.NOT_FOUND, "No request with this key is known, or it has expired.")
        )
    body: dict[str, Any] = {
        "state": _state(found),
        "operation": found.operation,
        "attempt": found.attempt,
        "age_s": round(found.age_s, 3),
        "expires_in_s": round(max(answer_left_s(found), 0.0), 3),
    }
    if found.state is State.COMPLETED and found.answer is not None:
        body["status"] = found.answer.status
    if found.resource_id is not None:
        body["resource_id"] = found.resource_id
    told = json.dumps(body).encode()
    headers = (
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(told)),  # to HEAD as well, without which some send chunks
        (b"cache-control", b"no-store"),
    )
    return Answer(200, headers, told)
