"""One application in every form, whose handler tells what body it has got."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.http import HttpRequest, JsonResponse
from fastapi import Request as FastRequest
from flask import request as flask_request

from oncekey import Policy
from tests.web import asgi_world, fastapi_world, flask_world, wsgi_world
from tests.web.client import Reply, ask, ask_wsgi
from tests.web.django.site import Site

FORMS = ("asgi", "fastapi", "wsgi", "flask", "django, wsgi", "django, asgi", "django, async views")


class Form:
    """One of them. Everything that is asked runs to its end in this thread."""

    def __init__(self, name: str, world: Any) -> None:
        self.name = name
        self.world = world

    def ask(self, key: str | None, body: bytes, content_type: str, **more: Any) -> Reply:
        reply: Reply
        match self.name:
            case "asgi":
                sent = ask(self.world.app, key, body, content_type=content_type, **more)
                reply = asyncio.run(sent)
            case "fastapi":
                reply = asyncio.run(self.world.ask(key, body, content_type=content_type))
            case "wsgi":
                reply = ask_wsgi(self.world.app, key, body, content_type=content_type)
            case _:
                reply = self.world.ask(key, body, content_type=content_type)
        return reply


def seen(body: bytes) -> dict[str, Any]:
    """What the handler says of a body."""
    return {"size": len(body), "sha": hashlib.sha256(body).hexdigest()}


@contextmanager
def form_of(name: str, policy: Policy, **settings: Any) -> Iterator[Form]:
    match name:
        case "asgi":
            yield Form(name, _asgi(policy, settings))
        case "fastapi":
            yield Form(name, _fastapi(policy, settings))
        case "wsgi":
            world = _wsgi(policy, settings)
            yield Form(name, world)
            world.app.close()
        case "flask":
            flask = _flask(policy, settings)
            yield Form(name, flask)
            flask.extension.close()
        case _:
            handler = {"django, wsgi": "wsgi", "django, asgi": "asgi"}.get(name)
            with Site(handler or "asgi, async views") as site:
                site.oncekey |= {"policy": policy, **settings}
                site.route("orders", site.both(_django))
                yield Form(name, site)


def _asgi(policy: Policy, settings: Any) -> asgi_world.World:
    world = asgi_world.World(policy=policy, **settings)

    async def handler(receive: Any, send: Any) -> None:
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        await world.answer_with(seen(b"".join(parts)))(receive, send)

    world.handler = handler
    return world


def _fastapi(policy: Policy, settings: Any) -> fastapi_world.World:
    world = fastapi_world.World(policy=policy, **settings)

    @world.router.post("/orders", status_code=201)
    async def order(request: FastRequest) -> dict[str, Any]:
        return seen(await request.body())

    return world


def _wsgi(policy: Policy, settings: Any) -> wsgi_world.World:
    world = wsgi_world.World(policy=policy, **settings)

    def handler(environ: Any, start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        return world.answer_with(seen(body))(environ, start_response)

    world.handler = handler
    return world


def _flask(policy: Policy, settings: Any) -> flask_world.World:
    world = flask_world.World(policy=policy, **settings)

    @world.app.post("/orders")
    def order() -> tuple[dict[str, Any], int]:
        return seen(flask_request.get_data()), 201

    return world


def _django(request: HttpRequest) -> Any:
    return JsonResponse(seen(request.read()), status=201)
