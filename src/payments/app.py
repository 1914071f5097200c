"""The application: what stands in front, oncekey in the middle, the routes inside.

gate (who, how often, how much)  →  known cards alone  →  a key for everybody  →  oncekey  →  routes
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
"""Routes whose only effects are rows: claim, rows and answer are one transaction. All others move
money, or may; they are made of steps, which a retry or the recoverer continues.
"""

ATOMIC_S_MAX = 5.0
LAPSES_MAX = 1000
"""Whatever is begun can be continued, however often that fails: nobody needs to look."""

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
"""What Stripe's clients can search, and this has no search for."""


def create_app(settings: Settings, network: Network | None = None) -> App:
    """The payments API as an ASGI application. Its tables must be there: `payments migrate`."""
    database = Database(settings)
    watch = TraceLog() if settings.shows_demo else None
    hooks = [watch] if watch else []
    api = create_api(settings, database, network or Network(settings.network_url, hooks=hooks))
    if watch is not None:
        checkout.add(api, watch)
    if not settings.idempotent:
        return guard_access(CardFilter(api), settings, database, _knows_nothing)
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
        inside=[ConcurrencyLimit.__name__],  # a replay needs no room
    )
    let_in: App = CardFilter(GeneratedKeys(guarded, api))
    if watch is None:
        return guard_access(let_in, settings, database, guarded.state_of)
    return watch.outside(guard_access(watch.inside(let_in), settings, database, guarded.state_of))


def _policies(lease_s: float) -> dict[str, Policy]:
    # While one such handler runs, SQLite renews no lease: it must be over well before one ends.
    rows_only = Policy(atomic=True, atomic_s_max=min(ATOMIC_S_MAX, lease_s / 4))
    return dict.fromkeys(ROWS_ONLY, rows_only) | dict.fromkeys(MOVES_MONEY, Policy())


def _tenant(request: oncekey.Request) -> str:
    account: Account = request.scope["state"]["account"]
    return account.tenant


def create_api(settings: Settings, database: Database, network: Network) -> FastAPI:
    """What is inside: the routes, and what they work with."""
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
    api.state.held = [network, database]
    errors.add_handlers(api)
    api.add_middleware(ConcurrencyLimit, threads_max=settings.threads_max)
    api.state.senders = Senders(settings)
    for kind in NOT_SEARCHED:  # before the routes to which any name is an id
        api.add_route(f"/v1/{kind}/search", _not_here, include_in_schema=False)
    for part in PARTS:
        api.include_router(part.router)
    pages.add(api, settings)
    reference.add(api, openapi.document(api))
    return api


async def _not_here(_: Request) -> Response:
    raise HTTPException(404)


@contextlib.asynccontextmanager
async def _lifespan(api: FastAPI) -> AsyncIterator[None]:
    settings: Settings = api.state.settings
    anyio.to_thread.current_default_thread_limiter().total_tokens = settings.threads_max
    recovers = settings.recover and settings.idempotent
    recoverer = Recoverer(settings.database) if recovers else contextlib.nullcontext()
    try:
        async with recoverer, _meanwhile(api):
            yield
    finally:
        for held in api.state.held:
            held.close()


@contextlib.asynccontextmanager
async def _meanwhile(api: FastAPI) -> AsyncIterator[None]:
    """What is done beside the requests, where the settings say so: webhooks are sent, old events
    are removed, and what waits for the network's word, and nobody else asks for, is asked for.
    """
    settings: Settings = api.state.settings
    database: Database = api.state.database
    chores: list[PeriodicTask | DeliveryWorker] = []
    if settings.deliver:
        chores += [
            DeliveryWorker(database, api.state.senders),
            EventSweeper(database, settings.events_kept_s),
        ]
    if settings.recover:
        chores.append(Finisher(database, api.state.network, settings.patience_s))
    for chore in chores:
        chore.start()
    try:
        yield
    finally:
        for chore in chores:
            await anyio.to_thread.run_sync(chore.stop)


async def _knows_nothing(_: Scope) -> str | None:
    """What became of a key, where none is looked at."""
    return None


class GeneratedKeys:
    """Gives a POST to the API that brings no key one of its own. Nobody can retry under it, but
    there is only one way to move money, and the recoverer finishes what such a client abandons too.
    Pages belong to no account, and need no key.
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
