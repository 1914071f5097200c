"""A Django site whose views a test can replace, under either handler."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import django
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test.utils import override_settings
from django.urls import clear_url_caches, path

from oncekey._core.record import Record
from oncekey._core.verbs import Scan
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.django import _claim as claim
from tests.web.client import Reply, ask, ask_wsgi

if not settings.configured:
    settings.configure()
    django.setup()

MIDDLEWARE = [
    "django.middleware.csrf.CsrfViewMiddleware",
    f"{__name__}.SignIn",
    "oncekey.web.django.IdempotencyMiddleware",
]

urlpatterns: list[Any] = []


class SignIn:
    """Authentication, as middleware does it: the account is the header."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        request.account = request.headers.get("Authorization")
        if request.account == "eve":
            raise PermissionDenied
        return self.get_response(request)


def account_of(request: HttpRequest) -> str | None:
    account: str | None = request.account
    return account


def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as Django's own are, for sync and async views."""

    @functools.wraps(view)
    def checked(request: HttpRequest, **kwargs: Any) -> Any:
        if request.account == "banned":
            raise PermissionDenied
        return view(request, **kwargs)

    if iscoroutinefunction(view):
        markcoroutinefunction(checked)
    return checked


class Site:
    """The site, its store, and how often its views ran."""

    def __init__(self, handler: str, **oncekey: Any) -> None:
        self.handler = handler
        self.store = MemoryStore(FakeClock())
        self.oncekey = {"store": self.store, "tenant": account_of, **oncekey}
        self.middleware = list(MIDDLEWARE)
        self.runs = 0
        self._open = ExitStack()
        self._app: Any = None

    def run(self) -> int:
        self.runs += 1
        return self.runs

    def route(self, template: str, view: Any) -> None:
        urlpatterns.append(path(template, view))

    def both(self, view: Callable[..., Any]) -> Any:
        """The view as it is, or as a coroutine function where views are such."""
        if "async" not in self.handler:
            return view

        async def awaited(request: HttpRequest, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return view(request, **kwargs)

        return awaited

    def __enter__(self) -> Site:
        urlpatterns.clear()
        clear_url_caches()
        self._open.enter_context(
            override_settings(
                ROOT_URLCONF=__name__,
                ALLOWED_HOSTS=["*"],
                MIDDLEWARE=self.middleware,
                ONCEKEY=self.oncekey,
                LOGGING_CONFIG=None,
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        if claim.views.cache_info().currsize:
            claim.views().close()
        claim.views.cache_clear()
        self._open.close()

    def ask(
        self, key: str | None, body: Any = b"{}", who: str | None = "ann", **more: Any
    ) -> Reply:
        headers = {"authorization": who, "x-csrftoken": "x" * 32, "cookie": f"csrftoken={'x' * 32}"}
        headers |= more.pop("headers", {})
        sent = {name: value for name, value in headers.items() if value is not None}
        if self.handler.startswith("wsgi"):
            self._app = self._app or WSGIHandler()
            variables = {f"HTTP_{n.upper().replace('-', '_')}": v for n, v in sent.items()}
            return ask_wsgi(self._app, key, body, **variables, **more)
        self._app = self._app or ASGIHandler()
        lines = [(name.encode(), value.encode()) for name, value in sent.items()]
        return asyncio.run(ask(patient(self._app), key, body, headers=lines, **more))

    def records(self) -> list[Record]:
        return list(Gatherer(self.store).ask(Scan(100)))


def patient(app: Any) -> Any:
    """A client that does not hang up while it waits for its answer."""

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        async def wait() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                await asyncio.Event().wait()
            return message

        await app(scope, wait, send)

    return waiting


@contextlib.contextmanager
def database(file: Path, **settings: Any) -> Iterator[str]:
    """A database of Django's on this file, by its alias."""
    alias = f"shop{uuid.uuid4().hex}"
    made = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), **settings}
    known = {**connections.settings, alias: made}
    connections.settings[alias] = connections.configure_settings(known)[alias]
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE TABLE orders (item TEXT)")
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


def told(body: Any, status: int = 200) -> HttpResponse:
    return JsonResponse(body, status=status)


def body_of(request: HttpRequest) -> Any:
    return json.loads(request.body)


def ordering(site: Site) -> Site:
    """With one view: `POST /orders`."""

    def order(request: HttpRequest) -> HttpResponse:
        response = told({"run": site.run()}, 201)
        response["Location"] = "/orders/1"
        response.set_cookie("basket", "1")
        return response

    site.route("orders", site.both(order))
    return site
