"""The application: access control outside, oncekey in the middle, the routes inside.

access (who, how often, how much)  →  card filter  →  generated keys  →  oncekey  →  routes
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import anyio.to_thread
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response

import oncekey
from oncekey import Policy, Recoverer, atomic
from oncekey.web.asgi import IdempotencyMiddleware
from payments.access.accounts import Account
from payments.access.concurrency_limit import ConcurrencyLimit
from payments.access.middleware import App, Receive, Scope, Send, guard_access, in_api
from payments.api import (
    balance,
    charges,
    customers,
    errors,
    events,
    openapi,
    payment_intents,
    payment_methods,
    reference,
    refunds,
    webhook_endpoints,
)
from payments.api.card_filter import CardFilter
from payments.background import PeriodicTask
from payments.demo import checkout, pages
from payments.demo.trace import TraceLog
from payments.money.finisher import Finisher
from payments.network import Network
from payments.settings import API_VERSION, Settings
from payments.storage import ids
from payments.storage.database import Database
from payments.webhooks.senders import Senders
from payments.webhooks.sweeper import EventSweeper
from payments.webhooks.worker import DeliveryWorker

ROWS_ONLY = (
    "POST /v1/charges/{id}",
    "POST /v1/customers",
    "POST /v1/customers/{id}",
    "POST /v1/payment_intents/{id}",
    "POST /v1/payment_methods",
    "POST /v1/payment_methods/{id}",
    "POST /v1/payment_methods/{id}/attach",
    "POST /v1/payment_methods/{id}/detach",
    "POST /v1/refunds/{id}",
    "POST /v1/tokens",
)
"""Routes whose only effects are rows: claim, rows and response commit in one transaction. Others
may move money: they consist of steps that a retry or the recoverer continues.
"""

ATOMIC_S_MAX = 5.0
LAPSES_MAX = 1000
"""Every operation can be resumed, however often that fails: no operator needs to look at it."""

MOVES_MONEY = (
    "POST /v1/charges",
    "POST /v1/charges/{id}/capture",
    "POST /v1/payment_intents",
    "POST /v1/payment_intents/{id}/cancel",
    "POST /v1/payment_intents/{id}/capture",
    "POST /v1/payment_intents/{id}/confirm",
    "POST /v1/refunds",
)

PARTS = (
    *(charges, payment_intents, refunds, customers, payment_methods),
    *(events, balance, webhook_endpoints),
)

NOT_SEARCHED = ("charges", "customers", "payment_intents")
"""What Stripe's clients can search and this API cannot."""


def create_app(settings: Settings, network: Network | None = None) -> App:
    """Build the payments API as an ASGI application. `payments migrate` creates its tables."""
    database = Database(settings)
    trace = TraceLog() if settings.shows_demo else None
    hooks = [trace] if trace else []
    api = create_api(settings, database, network or Network(settings.network_url, hooks=hooks))
    if trace is not None:
        checkout.add(api, trace)
    if not settings.idempotent:
        return guard_access(CardFilter(api), settings, database, _unknown_state)
    guarded = IdempotencyMiddleware(
        api,
        store=database.url,
        tenant=_tenant,
        profile="stripe",
        policy=Policy(
            recovery="resume",
            lease_s=settings.lease_s,
            wait_s=settings.wait_s,
            lapses_max=LAPSES_MAX,
        ),
        routes=_policies(settings.lease_s),
        hooks=hooks,
        atomic=atomic.SQLAlchemy(database.atomic_engine),
        inside=[ConcurrencyLimit.__name__],  # a replay takes no slot
    )
    filtered: App = CardFilter(GeneratedKeys(guarded, api))
    if trace is None:
        return guard_access(filtered, settings, database, guarded.state_of)
    return trace.wrap_outside(
        guard_access(trace.wrap_inside(filtered), settings, database, guarded.state_of)
    )


def _policies(lease_s: float) -> dict[str, Policy]:
    # While such a handler runs, SQLite renews no lease: it must end well before a lease expires.
    rows_only = Policy(atomic=True, atomic_s_max=min(ATOMIC_S_MAX, lease_s / 4))
    return dict.fromkeys(ROWS_ONLY, rows_only) | dict.fromkeys(MOVES_MONEY, Policy())


def _tenant(request: oncekey.Request) -> str:
    account: Account = request.scope["state"]["account"]
    return account.tenant


def create_api(settings: Settings, database: Database, network: Network) -> FastAPI:
    """Build the routes and put what they work with into the application's state."""
    api = FastAPI(
        title="payments",
        version=API_VERSION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    api.state.settings, api.state.database, api.state.network = settings, database, network
    api.state.closed_at_exit = [network, database]
    errors.add_handlers(api)
    api.add_middleware(ConcurrencyLimit, threads_max=settings.threads_max)
    api.state.senders = Senders(settings)
    for kind in NOT_SEARCHED:  # before the routes that take any name for an id
        api.add_route(f"/v1/{kind}/search", _not_found, include_in_schema=False)
    for part in PARTS:
        api.include_router(part.router)
    pages.add(api, settings)
    reference.add(api, openapi.document(api))
    return api


async def _not_found(_: Request) -> Response:
    raise HTTPException(404)


@contextlib.asynccontextmanager
async def _lifespan(api: FastAPI) -> AsyncIterator[None]:
    settings: Settings = api.state.settings
    anyio.to_thread.current_default_thread_limiter().total_tokens = settings.threads_max
    recovers = settings.recover and settings.idempotent
    recoverer = Recoverer(settings.database) if recovers else contextlib.nullcontext()
    try:
        async with recoverer, _background_tasks(api):
            yield
    finally:
        for resource in api.state.closed_at_exit:
            resource.close()


@contextlib.asynccontextmanager
async def _background_tasks(api: FastAPI) -> AsyncIterator[None]:
    """Run what the settings ask for beside the requests: send webhooks, delete old events, and
    finish what waits for the card network after its client has gone.
    """
    settings: Settings = api.state.settings
    database: Database = api.state.database
    tasks: list[PeriodicTask | DeliveryWorker] = []
    if settings.deliver:
        tasks += [
            DeliveryWorker(database, api.state.senders),
            EventSweeper(database, settings.events_kept_s),
        ]
    if settings.recover:
        tasks.append(Finisher(database, api.state.network, settings.patience_s))
    for task in tasks:
        task.start()
    try:
        yield
    finally:
        for task in tasks:
            await anyio.to_thread.run_sync(task.stop)


async def _unknown_state(_: Scope) -> str | None:
    """Know no key: without oncekey nothing is stored under one."""
    return None


class GeneratedKeys:
    """Adds a generated key to every POST to the API that has none.

    No client can retry under it, but money moves in one way only, and the recoverer also finishes
    what such a client abandons. Pages belong to no account and need no key.
    """

    def __init__(self, app: App, pages: App) -> None:
        self._app = app
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not in_api(scope):
            await self._pages(scope, receive, send)
            return
        if scope["type"] == "http" and scope["method"] == "POST":
            headers: list[tuple[bytes, bytes]] = scope["headers"]
            if not any(name == b"idempotency-key" for name, _ in headers):
                key = (b"idempotency-key", ids.generated_key().encode("ascii"))
                scope = {**scope, "headers": [*headers, key]}
        await self._app(scope, receive, send)
