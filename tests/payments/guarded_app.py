"""A small API behind the real gate and the real middleware: what is let through is counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import oncekey
from oncekey.web.asgi import IdempotencyMiddleware
from payments.access.accounts import LOCAL, LOCAL_KEY, Account, Accounts
from payments.access.middleware import Scope, account_of, guard_access
from payments.access.rate_limits import Rates
from payments.settings import Settings
from payments.storage.database import Database
from tests.web.client import Reply, ask, scope_for

MANY = "1000/hour"
"""A rate that no test uses up; windows of an hour do not end during a test."""


def tenant_of(request: oncekey.Request) -> str | None:
    account = request.scope["state"].get("account")
    return account and str(account.tenant)


class GuardedApp:
    """An application that says whose request it ran, and how many it ran."""

    def __init__(self, data: Path, **settings: Any) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.settings = Settings(data=data, **settings)
        self.database = Database(self.settings)
        self.database.create_tables()
        self.accounts = Accounts(self.database)
        self.runs: list[str] = []
        self.status = 200
        self.started, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.middleware = IdempotencyMiddleware(
            self._handle, store=self.settings.database, tenant=tenant_of, profile="stripe"
        )
        self.app = guard_access(
            self.middleware, self.settings, self.database, state_of=self.middleware.state_of
        )

    async def _handle(self, scope: Scope, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        self.started.set()
        await self.go_on.wait()
        self.runs.append(scope["path"])
        account = account_of(scope).tenant if scope["path"].startswith("/v1/") else None
        content = {"account": account, "run": len(self.runs), "bytes": len(body)}
        lines = [
            (b"content-type", b"application/json"),
            (b"request-id", scope["state"]["request_id"].encode()),
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": lines})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})

    async def ask(
        self,
        idempotency_key: str | None = None,
        body: bytes = b"{}",
        *,
        key: str | None = LOCAL_KEY,
        method: str = "POST",
        path: str = "/v1/charges",
        host: str = "127.0.0.1:8000",
        headers: list[tuple[bytes, bytes]] | None = None,
        **scope: Any,
    ) -> Reply:
        lines = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        if method == "GET":
            body = b""

        async def app_with_host(inner: Scope, receive: Any, send: Any) -> None:
            others = [line for line in inner["headers"] if line[0] != b"host"]
            inner["headers"] = [(b"host", host.encode()), *others]
            await self.app(inner, receive, send)

        return await ask(
            app_with_host,
            idempotency_key,
            body,
            method=method,
            path=path,
            headers=[*lines, *(headers or [])],
            **scope,
        )

    async def state(self, idempotency_key: str, account: Account = LOCAL) -> str | None:
        """What became of a key; None if it is not spent."""
        headers = [(b"idempotency-key", idempotency_key.encode())]
        scope = scope_for("POST", "/v1/charges", headers, state={"account": account})
        return await self.middleware.state_of(scope)

    async def close(self) -> None:
        await self.middleware.close()
        self.database.close()


def rates(**changes: str) -> Rates:
    """Hardly any limit but those that a test names."""
    names = ("reads", "writes", "replays", "account", "total", "strangers")
    return Rates().but([f"{name}={changes.get(name, MANY)}" for name in names])
