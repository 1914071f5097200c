"""One route, one policy: however its path and method are spelt, on real servers and routers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey._core.record import State
from tests.acceptance.charging import ASGI, WSGI, build, close
from tests.acceptance.client import Client
from tests.acceptance.serve import serving
from tests.acceptance.serve_wsgi import SERVERS, serving_by_gunicorn
from tests.acceptance.shop import kept
from tests.web.client import Reply

pytestmark = pytest.mark.slow

SPELLINGS = (
    *("//charges", "///charges", "/charges/", "/charges//", "//charges/", "/./charges"),
    *("/charges/.", "/x/../charges", "/%63harges", "/%2Fcharges", "/charges%2f", "/charges%0a"),
    *("/Charges", "charges", "http://host/charges", "http://host//charges", "/charges#top"),
    "/charges;a=1",
)
METHODS = ("post", "Post", "pOST")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


def say(client: Client, method: str, target: str, key: str | None) -> Reply:
    key_line = "" if key is None else f"Idempotency-Key: {key}\r\n"
    lines = "Host: host\r\nConnection: close\r\nContent-Type: application/json\r\n"
    head = f"{method} {target} HTTP/1.1\r\n{lines}Content-Length: 2\r\n{key_line}\r\n"
    with client.open() as wire:
        wire.send(head.encode() + b"{}")
        return wire.read()


def has_run(reply: Reply) -> bool:
    return 200 <= reply.status < 300 and not reply.replayed


def assert_one_route(client: Client, store: str, mount: str = "") -> None:
    """Every spelling is refused without a key, and has the record of `POST /charges` with one."""
    spelt = [("POST", _mounted(mount, each)) for each in SPELLINGS]
    spelt += [(method, f"{mount}/charges") for method in METHODS]
    for n, (method, target) in enumerate(spelt):
        assert not has_run(say(client, method, target, None)), (method, target)
        assert has_run(say(client, "POST", f"{mount}/charges", f"key-{n}"))
        assert not has_run(say(client, method, target, f"key-{n}")), (method, target)
    done = [record for record in kept(store) if record.state is State.COMPLETED]
    assert {record.operation for record in done} == {f"POST {mount}/charges"}
    assert len(done) == len(spelt)


def _mounted(mount: str, target: str) -> str:
    if target.startswith("http:"):
        return target.replace("//host", f"//host{mount}")
    return f"{mount}{target}" if target.startswith("/") else f"{mount}/{target}"[1:]


@contextlib.contextmanager
def serving_flask(server: str, kind: str, store: str, named: bool) -> Iterator[Client]:
    if server == "gunicorn":
        factory = f"tests.acceptance.charging:build({kind!r}, {store!r}, {named})"
        with serving_by_gunicorn(factory) as client:
            yield client
        return
    app = build(kind, store, named)
    with SERVERS[server](app) as client:
        yield client
    close(app)


@pytest.mark.parametrize("named", [True, False], ids=["named", "not-named"])
@pytest.mark.parametrize("kind", WSGI)
@pytest.mark.parametrize("server", ["gunicorn", *SERVERS])
def test_e16_wsgi_routers_and_servers_find_one_record(
    server: str, kind: str, named: bool, store: str
) -> None:
    with serving_flask(server, kind, store, named) as client:
        assert_one_route(client, store, "/shop" if kind == "flask-mounted" else "")


@pytest.mark.parametrize("named", [True, False], ids=["named", "not-named"])
@pytest.mark.parametrize("kind", ASGI)
@pytest.mark.parametrize("parser", ["h11", "httptools"])
def test_e16_asgi_routers_and_servers_find_one_record(
    parser: str, kind: str, named: bool, store: str
) -> None:
    with serving(build(kind, store, named), http=parser, lifespan="auto") as client:
        assert_one_route(client, store)
