"""Where an application is mounted: one route's rules, however much of that a path still has. Its
name is that of 0.1, which has as much of it as the path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from werkzeug.test import Client

from oncekey import Policy, single_tenant
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.acceptance.charging import build
from tests.web.client import ask

CHARGE = {"POST /charges": Policy(required=True, recovery="block")}
SETTINGS: Any = {"store": "memory://", "tenant": single_tenant, "routes": CHARGE}


def charging(runs: list[int], root_path: str = "") -> FastAPI:
    app = FastAPI()
    app.root_path = root_path  # as its parameter, which is deprecated

    @app.post("/charges", status_code=201)
    async def charge() -> dict[str, int]:
        runs.append(1)
        return {"run": len(runs)}

    return app


def within(runs: list[int]) -> Any:
    app = charging(runs, root_path="/shop")
    app.add_middleware(IdempotencyMiddleware, **SETTINGS)
    return app


def around(runs: list[int]) -> Any:
    return IdempotencyMiddleware(charging(runs, root_path="/shop"), **SETTINGS)


def by_its_server(runs: list[int]) -> Any:
    app = charging(runs)
    app.add_middleware(IdempotencyMiddleware, **SETTINGS)

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/shop"}, receive, send)

    return mounted


@pytest.mark.parametrize("build", [within, around, by_its_server])
@pytest.mark.parametrize("path", ["/shop/charges", "//charges", "/shop//charges"])
async def test_e16_a_root_that_may_be_left_out(
    build: Callable[[list[int]], Any], path: str
) -> None:
    runs: list[int] = []
    app = build(runs)
    assert (await ask(app, None, path="/charges")).status == 400
    assert (await ask(app, None, path=path)).status == 400
    assert (await ask(app, "k1", path="/charges")).status == 201
    again = await ask(app, "k1", path=path)
    if path == "//charges":
        assert (again.status, runs) == (422, [1])  # the path counts as it was sent


@pytest.mark.parametrize("named", [True, False], ids=["named", "not-named"])
@pytest.mark.parametrize(
    ("kind", "root", "path"),
    [
        ("quart", "/shop", "/shopcharges"),
        ("quart", "/shop/", "/shop/charges"),
        ("quart", "/shop", "http://host/shopcharges"),
        ("litestar", "/shop", "/shopcharges"),
        ("litestar", "/shop", "/x/shop/charges"),
        ("litestar", "/shop/", "/x/shop//charges"),
        ("litestar", "/shop", "http://host/shop/charges"),
    ],
)
async def test_e16_a_router_that_only_cuts_off_its_root(
    kind: str, root: str, path: str, named: bool, tmp_path: Path
) -> None:
    """Quart needs no slash behind it, and Litestar takes anything before it."""
    app = build(kind, f"sqlite:///{tmp_path / 'keys.db'}", named)

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root}, receive, send)

    assert (await ask(mounted, None, path=path)).status == 400
    assert (await ask(mounted, "k1", path="/shop/charges")).status == 201
    assert (await ask(mounted, "k1", path=path)).status in (201, 422)
    assert (await ask(mounted, "k2", path=path)).json()["run"] == 2


def test_e16_a_path_that_was_cut_off_from_its_root_without_a_slash() -> None:
    """gunicorn takes SCRIPT_NAME away from `/shopcharges` like this."""
    from flask import Flask

    runs: list[int] = []
    site = Flask("shop")

    @site.post("/charges")
    def charge() -> tuple[str, int]:
        runs.append(1)
        return "", 201

    guard = WsgiMiddleware(site.wsgi_app, **SETTINGS)
    client = Client(guard)

    def send(path: str, **headers: str) -> int:
        environ = {"SCRIPT_NAME": "/shop", "PATH_INFO": path}
        return client.post(environ_overrides=environ, headers=headers).status_code

    assert send("charges") == 400
    key = {"Idempotency-Key": "k1"}
    assert (send("/charges", **key), send("charges", **key)) == (201, 201)
    assert runs == [1]
    guard.close()
