"""One middleware within another on one store would wait for itself, however each names it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import oncekey
from oncekey import Misuse, Policy
from oncekey._core.record import State
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.web.asgi import IdempotencyMiddleware as AsgiMiddleware
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.acceptance.shop import kept
from tests.web.client import ask, ask_wsgi


class Mine(SqliteStore):
    """A store that nobody knows, of the same records: it may as well be a server by its address."""

    name = "mine"


NAMES: dict[str, Callable[[Path], str | SqliteStore]] = {
    "another object": SqliteStore,
    "options": lambda path: f"sqlite:///{path}?timeout_s=4",
    "relative": lambda path: f"sqlite:///{os.path.relpath(path)}",
    "link": lambda path: f"sqlite:///{_linked(path)}",
    "unknown": Mine,
}


def _linked(path: Path) -> Path:
    other = path.with_name("other.db")
    other.symlink_to(path)
    return other


@pytest.fixture(params=["rerun", "block"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return Policy(recovery=request.param)


@pytest.mark.parametrize("name", NAMES)
async def test_it_is_told_under_asgi(name: str, tmp_path: Path, policy: Policy) -> None:
    path = tmp_path / "keys.db"
    runs = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(scope["path"])

    settings: Any = {"tenant": oncekey.single_tenant, "policy": policy}
    inner = AsgiMiddleware(app, store=NAMES[name](path), **settings)

    async def between(scope: Any, receive: Any, send: Any) -> None:  # nobody can look into it
        await inner(scope, receive, send)

    outer = AsgiMiddleware(between, store=f"sqlite:///{path}", **settings)
    try:
        with pytest.raises(Misuse, match="guarded twice"):
            await ask(outer, "k1")
        assert runs == []
        records = [(each.state, each.no_effect) for each in kept(f"sqlite:///{path}")]
        assert records == [(State.RELEASED, True)]
    finally:
        await outer.close()
        await inner.close()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_told_under_wsgi(name: str, tmp_path: Path, policy: Policy) -> None:
    path = tmp_path / "keys.db"
    settings: Any = {"tenant": oncekey.single_tenant, "policy": policy}
    inner = WsgiMiddleware(lambda *_: pytest.fail("ran"), store=NAMES[name](path), **settings)
    outer = WsgiMiddleware(lambda *sent: inner(*sent), store=f"sqlite:///{path}", **settings)
    try:
        with pytest.raises(Misuse, match="guarded twice"):
            ask_wsgi(outer, "k1")
        records = [(each.state, each.no_effect) for each in kept(f"sqlite:///{path}")]
        assert records == [(State.RELEASED, True)]
    finally:
        outer.close()
        inner.close()
