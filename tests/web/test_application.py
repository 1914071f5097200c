"""Applications: the wrong kind is told when the middleware is built, not at the first request."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette
from werkzeug.wrappers import Request, Response

from oncekey import single_tenant
from oncekey.errors import Misuse
from oncekey.web import asgi, wsgi


async def on_asgi(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application."""


def on_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    return []


class OnAnything:
    def __call__(self, *given: Any) -> Any:
        """Nobody can tell what it is."""


@pytest.mark.parametrize("app", [Flask("shop"), Flask("shop").wsgi_app, on_wsgi, None, "shop:app"])
def test_what_is_no_asgi_application_is_refused_with_what_to_write(app: Any) -> None:
    with pytest.raises(Misuse, match=r"no ASGI application; .*oncekey\.web\.wsgi"):
        asgi.IdempotencyMiddleware(app, store="memory://", tenant=single_tenant)


@pytest.mark.parametrize("app", [Starlette(), on_asgi, None, "shop:app"])
def test_what_is_no_wsgi_application_is_refused_with_what_to_write(app: Any) -> None:
    with pytest.raises(Misuse, match=r"no WSGI application; .*oncekey\.web\.asgi"):
        wsgi.IdempotencyMiddleware(app, store="memory://", tenant=single_tenant)


@pytest.mark.parametrize("app", [OnAnything(), max])
def test_where_nobody_can_tell_it_is_taken(app: Any) -> None:
    asgi.IdempotencyMiddleware(app, store="memory://", tenant=single_tenant)
    wsgi.IdempotencyMiddleware(app, store="memory://", tenant=single_tenant).close()


def test_parts_of_an_application_may_be_given_before() -> None:
    async def app(settings: Any, scope: Any, receive: Any, send: Any) -> None:
        """An ASGI application, once it has its settings."""

    given = functools.partial(app, {})
    asgi.IdempotencyMiddleware(given, store="memory://", tenant=single_tenant)


def test_what_is_wrapped_is_called_as_its_wrapper_is() -> None:
    @Request.application
    def view(request: Request) -> Response:
        return Response()

    wsgi.IdempotencyMiddleware(view, store="memory://", tenant=single_tenant).close()
