"""Access middleware: what every request passes before oncekey and the handlers see it.

From the outside in: health check, request id, API key and rate limits, body size. A request refused
here has changed nothing and spent no idempotency key. All of it is plain ASGI.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

import oncekey
from payments import clock
from payments.access.accounts import Account, Accounts
from payments.access.auth import InvalidKey, Keys, read_key
from payments.access.rate_limits import READS, Counters, LimitExceeded, RateLimits
from payments.settings import API_VERSION, Settings
from payments.storage import ids
from payments.storage.database import Database

log = logging.getLogger("payments")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
StateOf = Callable[[Scope], Awaitable[str | None]]
Header = tuple[bytes, bytes]

API = "/v1"
REQUEST_ID_CHARS = 14

_VERSION = (b"stripe-version", API_VERSION.encode())
_REPLAYED = (b"idempotent-replayed", b"true")
_ACTS_FOR = (b"stripe-account", b"stripe-context")


def guard_access(app: App, settings: Settings, database: Database, state_of: StateOf) -> App:
    """Wrap an application in all access middleware.

    `state_of` is the method of oncekey's middleware that returns the state of a key without
    claiming it.
    """
    keys = Keys(Accounts(database), local=settings.takes_local_key)
    limits = RateLimits(settings.rates, Counters(settings.redis_url))
    guarded = BodyLimit(app, settings.body_bytes_max)
    return Health(RequestIds(Admission(guarded, keys=keys, limits=limits, state_of=state_of)))


def in_api(scope: Scope) -> bool:
    """Whether this is a request to the API, not for a page or documentation."""
    path: str = scope.get("path", "")
    return scope["type"] == "http" and (path == API or path.startswith(f"{API}/"))


def account_of(scope: Scope) -> Account:
    """Return the account of a request: authenticated or, during recovery, stored by oncekey."""
    account = scope.get("state", {}).get("account")
    if isinstance(account, Account):
        return account
    return Account.of(oncekey.current().tenant)


# ------------------------------------------------------------------------------- health check


class Health:
    """Answers 200 on `/healthz`, for load balancers.

    It does not query the database: if that is down, it is down for all servers, and replacing this
    one would not help.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/healthz":
            await _send_json(send, 200, {"status": "ok"})
        else:
            await self._app(scope, receive, send)


# ------------------------------------------------------------------------------- request ids


class RequestIds:
    """Gives each request an id, and each response the headers that Stripe's clients expect."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        await self._app(scope, receive, _with_headers(send, request_id))


def new_request_id() -> str:
    return f"req_{ids.random_letters(REQUEST_ID_CHARS)}"


def _with_headers(send: Send, request_id: str) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[Header] = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            for line in ((b"request-id", request_id.encode()), _VERSION):
                if line[0] not in names:
                    headers.append(line)
            message["headers"] = headers
        await send(message)

    return send_with_headers


# ------------------------------------------------------------------------ API key and rate limits


class Admission:
    """Authenticates requests to the API and applies rate limits. Pages and docs need no key."""

    def __init__(self, app: App, *, keys: Keys, limits: RateLimits, state_of: StateOf) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits
        self._state_of = state_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._closing_limits(send))
            return
        if not in_api(scope):
            await self._app(scope, receive, send)
            return
        try:
            account = await self._identify(scope)
        except SQLAlchemyError as error:
            log.error("cannot look up API keys: %s", error)
            message = "Keys cannot be looked up at the moment. Nothing was done; try again."
            await refuse(send, 503, message, type="api_error")
            return
        if isinstance(account, InvalidKey):
            await refuse(send, 401, account.message, code=account.code, headers=[_CHALLENGE])
        elif isinstance(account, LimitExceeded):
            await _refuse_full(send, account)
        elif (other := _other_account(scope, account)) is not None:
            message = f"This key acts for {account.id} alone, not for {other[:100]!r}."
            await refuse(send, 403, message, code="account_invalid")
        elif not scope["path"].isprintable():
            # The router ignores a newline at the end of a path; oncekey and the rate limits do not:
            # they would apply the rules of another endpoint.
            message = f"Unrecognized request URL ({scope['method']}: {scope['path'][:200]!r})."
            await refuse(send, 404, message)
        else:
            scope.setdefault("state", {})["account"] = account
            await self._admit(account.tenant, scope, receive, send)

    async def _identify(self, scope: Scope) -> Account | InvalidKey | LimitExceeded:
        key = read_key(scope["headers"])
        if isinstance(key, InvalidKey):
            return await self._limits.admit_stranger(_address(scope)) or key
        account = self._keys.recall(key, scope)
        if account is None:
            # Guesses must not cost a query each. Keys that were valid may be looked up again.
            if not self._keys.was_valid(key):
                full = await self._limits.look_at_stranger(_address(scope))
                if full is not None:
                    return full
            account = await self._keys.look_up(key)
        if isinstance(account, InvalidKey):
            return await self._limits.admit_stranger(_address(scope)) or account
        return account

    async def _admit(self, tenant: str, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        full = await self._limits.admit(tenant, method, path)
        may_replay = method not in READS and _brings_key(scope)
        if full is not None:
            # Count it before looking up its key: that query needs a limit too.
            spent = await self._limits.admit_replay(tenant) if may_replay else full
            if spent is None and not await self._is_completed(scope):
                spent = full
            if spent is not None:
                await _refuse_full(send, spent)
            else:
                await self._app(scope, receive, send)
        elif may_replay:
            answered, began = _ReplayDetector(send), clock.monotonic()
            await self._app(scope, receive, answered)
            if answered.replayed:
                took_s = clock.monotonic() - began
                await self._limits.was_replay(tenant, method, path, took_s)
        else:
            await self._app(scope, receive, send)

    async def _is_completed(self, scope: Scope) -> bool:
        """Whether the request can only be replayed or refused, because its key is completed."""
        try:
            return await self._state_of(scope) == "completed"
        except oncekey.StoreError:
            return False

    def _closing_limits(self, send: Send) -> Send:
        async def send_and_close(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                await self._limits.close()
            await send(message)

        return send_and_close


class _ReplayDetector:
    """A `send` that notes whether the response is a replay."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.replayed = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.replayed = _REPLAYED in message.get("headers", ())
        await self._send(message)


def _other_account(scope: Scope, account: Account) -> str | None:
    """Return the other account that a request names in one of Stripe's headers for platforms.

    Platforms are not supported, and such a request must not run for the caller's own account.
    """
    for name, content in scope["headers"]:
        if name in _ACTS_FOR and content != account.id.encode():
            named: str = content.decode("latin-1")
            return named
    return None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _brings_key(scope: Scope) -> bool:
    return any(name == b"idempotency-key" for name, _ in scope["headers"])


# ------------------------------------------------------------------------------------ bodies


class BodyLimit:
    """Reads the whole body, or refuses it with 413."""

    def __init__(self, app: App, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READS:
            await self._app(scope, receive, send)
            return
        body = await self._read(scope, receive)
        if body is None:
            await refuse(
                send,
                413,
                f"The request's body is larger than {self._bytes_max} bytes.",
                code="request_too_large",
            )
        elif not isinstance(body, _Disconnected):
            await self._app(scope, replay_body(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | _Disconnected | None:
        for name, content in scope["headers"]:
            if name == b"content-length" and content.isdigit() and int(content) > self._bytes_max:
                return None
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return _Disconnected()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._bytes_max:
                return None
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Disconnected:
    """The client disconnected before sending its whole body."""


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields a body that was already read, then the following messages."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


# ---------------------------------------------------------------------------------- refusals

_CHALLENGE = (b"www-authenticate", b'Bearer realm="payments"')


async def _refuse_full(send: Send, full: LimitExceeded) -> None:
    message = (
        f"Request rate limit exceeded ({full.reason}). Nothing was done; try again with the same "
        f"idempotency key in {full.retry_after_s} s."
    )
    headers = [
        (b"retry-after", b"%d" % full.retry_after_s),
        (b"stripe-rate-limited-reason", full.reason.encode()),
    ]
    await refuse(send, 429, message, code="rate_limit", headers=headers)


async def refuse(
    send: Send,
    status: int,
    message: str,
    *,
    type: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
    headers: list[Header] | None = None,
) -> None:
    """Send an error in Stripe's format."""
    content = {"type": type, "code": code, "message": message, "param": param}
    error = {name: value for name, value in content.items() if value is not None}
    await _send_json(send, status, {"error": error}, headers)


async def _send_json(
    send: Send, status: int, content: object, headers: list[Header] | None = None
) -> None:
    body = json.dumps(content).encode()
    lines = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
