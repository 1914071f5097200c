"""Wrong settings in an application that is already being started: it does not start, and whoever
asks it all the same is told why. What real servers do is seen in `tests/acceptance`.
"""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from oncekey import Misuse, single_tenant
from oncekey.web._lifespan import start_application
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.acceptance.serve import serving

pytestmark = pytest.mark.anyio

MISSPELT = r"^IdempotencyMiddleware has no setting 'polcy': did you mean 'policy'\?$"


def wrong(**settings: Any) -> Starlette:
    app = Starlette()
    given: dict[str, Any] = {"store": "memory://", "tenant": single_tenant, "polcy": 1, **settings}
    app.add_middleware(IdempotencyMiddleware, **given)
    return app


def test_a_test_client_is_told_by_an_exception_with_a_lifespan() -> None:
    with pytest.raises(Misuse, match=MISSPELT), TestClient(wrong()):
        pass


def test_a_test_client_is_told_by_an_exception_without_a_lifespan() -> None:
    client = TestClient(wrong())
    for _ in range(2):  # the second time it is made already
        with pytest.raises(Misuse, match=MISSPELT):
            client.get("/")


async def test_any_other_client_within_the_process_too() -> None:
    transport = httpx2.ASGITransport(app=wrong())
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as api:
        with pytest.raises(Misuse, match=MISSPELT):
            await api.get("/")


def test_a_websocket_gets_nowhere_either() -> None:
    with pytest.raises(Misuse, match=MISSPELT), TestClient(wrong()).websocket_connect("/"):
        pass


async def test_what_recovers_it_is_told_as_well() -> None:
    with pytest.raises(Misuse, match=r"the application did not start: Idempotency"):
        async with start_application(wrong()):
            pass


def test_a_server_in_a_thread_does_not_end_the_process() -> None:
    with serving(wrong(), lifespan="off") as client:
        assert client.ask("k").status == 500
        assert client.ask("k").status == 500


def test_middleware_that_is_given_as_a_list_is_made_as_late() -> None:
    given: dict[str, Any] = {"store": "memory://"}
    app = Starlette(middleware=[Middleware(IdempotencyMiddleware, **given)])
    with pytest.raises(Misuse, match="needs tenant=…: write tenant=account_of"), TestClient(app):
        pass


def test_a_defect_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(IdempotencyMiddleware):
        def __init__(self, app: Any) -> None:
            raise ZeroDivisionError("a defect")

    app = Starlette()
    app.add_middleware(Broken)
    with pytest.raises(Misuse, match=r"^ZeroDivisionError: a defect$"), TestClient(app):
        pass
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("made", "name"),
    ids=["asgi", "wsgi", "fastapi", "flask"],
    argvalues=[
        (lambda **given: IdempotencyMiddleware(wrong(), **given), "IdempotencyMiddleware"),
        (
            lambda **given: WsgiMiddleware(lambda environ, start: [], **given),
            "IdempotencyMiddleware",
        ),
        (Idempotency, "Idempotency"),
        (Oncekey, "Oncekey"),
    ],
)
def test_where_the_program_makes_it_it_is_raised_at_once(made: Any, name: str) -> None:
    given = {"store": "memory://", "tenant": single_tenant}
    with pytest.raises(Misuse, match=f"^{name} has no setting 'tennant': did you mean 'tenant'"):
        made(store="memory://", tennant=single_tenant)
    with pytest.raises(Misuse, match=rf"^{name} has no setting 'xyz': choose from .*store, "):
        made(**given, xyz=1)
    with pytest.raises(Misuse, match=f"^{name} needs tenant=…"):
        made(store="memory://")
    with pytest.raises(Misuse, match=f"^{name} needs store=…"):
        made(tenant=single_tenant)
