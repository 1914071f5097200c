"""What checks who sends a request must run before the key is claimed: what stands inside is told of
at the start, or refused.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Annotated, Any

import flask
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException
from fastapi.security import HTTPBearer
from quart import Quart
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend, requires
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient

from oncekey import Misuse, Request, single_tenant
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency
from oncekey.web.flask import Oncekey, idempotent, not_idempotent
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware


class Unchecked(AuthenticationBackend):
    pass


def by_header(request: Request) -> str | None:
    return request.headers.get("x-account")


async def secret(request: StarletteRequest) -> JSONResponse:
    return JSONResponse({"secret": 1}, status_code=201)


def around(*inside: tuple[Any, dict[str, Any]], **settings: Any) -> Starlette:
    """An application whose middleware has these inside."""
    app = Starlette(routes=[Route("/orders", secret, methods=["POST"])])
    for kind, given in inside:
        app.add_middleware(kind, **given)
    given = {"store": "memory://", "tenant": by_header, **settings}
    app.add_middleware(IdempotencyMiddleware, **given)
    return app


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "oncekey")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "oncekey.order"]


class Gate:
    """It lets nobody pass who is not signed in, whatever its name says."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and StarletteRequest(scope).headers.get("authorization") is None:
            await Response(status_code=401)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def test_authentication_inside_is_refused_where_nothing_else_checks() -> None:
    inside = (AuthenticationMiddleware, {"backend": Unchecked()})
    app = around(inside, tenant=single_tenant)
    with pytest.raises(Misuse, match="AuthenticationMiddleware runs inside"), TestClient(app):
        pass
    for _ in range(2):  # without a lifespan, too: nobody gets a stored answer
        with pytest.raises(Misuse, match="AuthenticationMiddleware runs inside"):
            TestClient(app).post("/orders", headers={"Idempotency-Key": "k"})


def test_a_function_inside_is_refused_by_its_name() -> None:
    app = Starlette(routes=[Route("/orders", secret, methods=["POST"])])

    async def check_login(request: StarletteRequest, call_next: Any) -> Response:
        answer: Response = await call_next(request)
        return answer

    app.add_middleware(Gate)
    app.add_middleware(BaseHTTPMiddleware, dispatch=check_login)
    app.add_middleware(IdempotencyMiddleware, store="memory://", tenant=single_tenant)
    with pytest.raises(Misuse, match=r"^check_login runs inside"), TestClient(app):
        pass


def test_whatever_stands_inside_is_told_of(told: Callable[[], list[str]]) -> None:
    inside = [(Gate, {}), (AuthenticationMiddleware, {"backend": Unchecked()})]
    with TestClient(around(*inside)):
        [said] = told()
    assert said.startswith("AuthenticationMiddleware, Gate runs inside IdempotencyMiddleware")
    assert "add it after IdempotencyMiddleware" in said
    assert "logging.getLogger('oncekey.order')" in said


def test_what_is_meant_to_be_inside_is_not_told_of(told: Callable[[], list[str]]) -> None:
    with TestClient(around((Gate, {}), inside=["Gate"])):
        assert told() == []
    for wrong in ("Gate", [Gate]):
        with pytest.raises(Misuse, match="inside="), TestClient(around(inside=wrong)):
            pass


def test_cors_and_compression_inside_are_told_of(told: Callable[[], list[str]]) -> None:
    with TestClient(around((GZipMiddleware, {}), (CORSMiddleware, {}))):
        cors, codes = told()
    assert "pages on other origins cannot read its refusals" in cors
    assert codes.startswith("GZipMiddleware runs inside")


def test_it_is_told_without_a_lifespan_too(told: Callable[[], list[str]]) -> None:
    client = TestClient(around((Gate, {})))
    headers = {"Idempotency-Key": "k", "X-Account": "a", "Authorization": "b"}
    assert client.post("/orders", headers=headers).status_code == 201
    assert len(told()) == 1


def test_what_stands_outside_or_checks_nobody_is_not_told_of(
    told: Callable[[], list[str]],
) -> None:
    app = around((TrustedHostMiddleware, {}))
    app.add_middleware(Gate)
    app.add_middleware(CORSMiddleware)
    with TestClient(app):
        assert told() == []


def test_around_a_whole_application_all_of_it_is_inside(told: Callable[[], list[str]]) -> None:
    app = Starlette(routes=[Route("/orders", secret, methods=["POST"])])
    guarded = IdempotencyMiddleware(app, store="memory://", tenant=by_header)
    app.add_middleware(Gate)
    with TestClient(guarded):
        [said] = told()
    assert said.startswith("Gate runs inside")


SECOND: Any = (IdempotencyMiddleware, {"store": "memory://", "tenant": by_header})


def test_two_guards_do_not_start() -> None:
    with pytest.raises(Misuse, match="two IdempotencyMiddleware"), TestClient(around(SECOND)):
        pass


def test_a_guard_around_an_application_that_has_one_does_not_start() -> None:
    app = Starlette(routes=[Route("/orders", secret, methods=["POST"])])
    guarded = IdempotencyMiddleware(app, store="memory://", tenant=by_header)
    app.add_middleware(SECOND[0], **SECOND[1])
    with pytest.raises(Misuse, match="two IdempotencyMiddleware"), TestClient(guarded):
        pass


def test_a_guard_within_a_mounted_application_is_told_of(told: Callable[[], list[str]]) -> None:
    inner = Starlette(routes=[Route("/orders", secret, methods=["POST"])])
    inner.add_middleware(SECOND[0], **SECOND[1])
    app = Starlette(routes=[Mount("/shop", inner)])
    app.add_middleware(SECOND[0], **SECOND[1])
    with TestClient(app):
        [said] = told()
    assert said.startswith("an application that is mounted in one with IdempotencyMiddleware")


def mounted() -> BaseRoute:
    inner = Starlette(routes=[Route("/orders", secret, methods=["POST"])])
    inner.add_middleware(Gate)
    return Mount("/shop", inner)


ROUTES: dict[str, Callable[[], BaseRoute]] = {
    "mounted": mounted,
    "mount": lambda: Mount("/shop", routes=[], middleware=[Middleware(Gate)]),
    "route": lambda: Route("/o", secret, methods=["POST"], middleware=[Middleware(Gate)]),
    "route of a mount": lambda: Mount("/shop", routes=[ROUTES["route"]()]),
}


@pytest.mark.parametrize("where", ROUTES)
def test_what_stands_around_a_route_is_told_of(where: str, told: Callable[[], list[str]]) -> None:
    app = Starlette(routes=[ROUTES[where]()])
    app.add_middleware(IdempotencyMiddleware, store="memory://", tenant=single_tenant)
    with TestClient(app):
        [said] = told()
    assert said.startswith("Gate runs inside")


LOOKING_ON = [
    *("LogIncoming", "log_incoming_requests", "Timing", "OpenTelemetryMiddleware"),
    *("SentryAsgiMiddleware", "PrometheusMiddleware", "CorrelationIdMiddleware"),
    *("RequestIDMiddleware", "RawContextMiddleware"),
]


@pytest.mark.parametrize("name", LOOKING_ON)
def test_what_only_looks_on_is_not_told_of(name: str, told: Callable[[], list[str]]) -> None:
    with TestClient(around((type(name, (Gate,), {}), {}), tenant=single_tenant)):
        assert told() == []


@pytest.mark.parametrize("name", ["DesignInspector", "BlogIndex", "CatalogInfo", "Assigning"])
def test_letters_within_a_word_refuse_nothing(name: str, told: Callable[[], list[str]]) -> None:
    with TestClient(around((type(name, (Gate,), {}), {}), tenant=single_tenant)):
        [said] = told()
    assert "if it checks who sends a request" in said


class Site:
    """An application of no framework."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({})(scope, receive, send)


def test_the_application_itself_is_no_middleware(told: Callable[[], list[str]]) -> None:
    apps: list[Any] = [Site(), Quart("shop"), Site().__call__]
    for app in apps:
        guarded = IdempotencyMiddleware(app, store="memory://", tenant=single_tenant)
        assert TestClient(guarded).post("/", headers={"Idempotency-Key": "k"}).status_code < 500
    assert told() == []


# ---------------------------------------------------------------------------- within FastAPI


def signed_in(authorization: Annotated[str, Header()] = "") -> None:
    if not authorization:
        raise HTTPException(401)


def fast(dependency: Any, tenant: Any) -> FastAPI:
    app = FastAPI()

    def orders() -> dict[str, int]:
        return {"secret": 1}

    app.post("/orders", dependencies=[Depends(dependency)])(orders)
    app.get("/pages", dependencies=[Depends(dependency)])(orders)
    app.add_middleware(IdempotencyMiddleware, store="memory://", tenant=tenant)
    return app


@pytest.mark.parametrize("dependency", [signed_in, HTTPBearer()])
def test_dependencies_that_check_are_refused_where_nothing_else_does(dependency: Any) -> None:
    with (
        pytest.raises(Misuse, match=r"of /orders checks who sends.*web\.fastapi\.Idempotency"),
        TestClient(fast(dependency, single_tenant)),
    ):
        pass


def including(where: str, tenant: Any) -> FastAPI:
    """An application whose login stands where a router is included, or around it."""
    login = [Depends(HTTPBearer())]
    app = FastAPI(dependencies=login if where == "application" else [])
    app.add_middleware(IdempotencyMiddleware, store="memory://", tenant=tenant)

    def order() -> dict[str, int]:
        return {"secret": 1}

    outer, router = APIRouter(dependencies=login if where == "router around" else []), APIRouter()
    router.post("/orders")(order)
    outer.include_router(router, dependencies=login if where == "included" else [])
    app.include_router(outer, prefix="/v1", dependencies=login if where == "included last" else [])
    return app


@pytest.mark.parametrize("where", ["application", "router around", "included", "included last"])
def test_dependencies_of_what_includes_a_route_check_it_too(
    where: str, told: Callable[[], list[str]]
) -> None:
    with TestClient(including("nowhere", single_tenant)):
        assert told() == []
    with (
        pytest.raises(Misuse, match="HTTPBearer of /v1/orders checks who sends"),
        TestClient(including(where, single_tenant)),
    ):
        pass
    with TestClient(including(where, by_header)):
        [said] = told()
    assert said.startswith("HTTPBearer of /v1/orders checks who sends a request")


def members_only(endpoint: Any) -> Any:
    @functools.wraps(endpoint)
    async def checked(request: StarletteRequest) -> Response:
        answer: Response = await endpoint(request)
        return answer

    return checked


@pytest.mark.parametrize("decorator", [members_only, requires("authenticated")])
def test_what_is_checked_around_an_endpoint_is_told_of(
    decorator: Any, told: Callable[[], list[str]]
) -> None:
    async def order(request: StarletteRequest) -> Response:
        return Response()

    name = getattr(decorator, "__qualname__", "").partition(".")[0]
    app = Starlette(routes=[Route("/orders", decorator(order), methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, store="memory://", tenant=single_tenant)
    with TestClient(app):
        [said] = told()
    assert said.startswith(f"{name} of /orders checks who sends a request within the endpoint")
    idempotency = Idempotency(store="memory://", tenant=single_tenant)
    router = APIRouter(route_class=idempotency.route_class)
    router.post("/charges")(decorator(order))
    router.get("/charges")(decorator(order))
    fast_app = FastAPI(lifespan=idempotency.lifespan)
    fast_app.include_router(router)
    with TestClient(fast_app):
        [_, said] = told()
    assert said.startswith(f"{name} of /charges checks who sends a request within the endpoint")


def test_dependencies_that_check_are_told_of(told: Callable[[], list[str]]) -> None:
    with TestClient(fast(signed_in, by_header)):
        [said] = told()
    assert said.startswith("signed_in of /orders checks who sends a request inside the route")


def called(name: str) -> Any:
    def page(limit: int = 10) -> int:
        return limit

    page.__name__ = name
    return page


@pytest.mark.parametrize("name", ["verify_token", "current_user", "api_key", "require_admin"])
def test_what_its_name_says_is_told_of(name: str, told: Callable[[], list[str]]) -> None:
    with TestClient(fast(called(name), by_header)):
        [said] = told()
    assert said.startswith(f"{name} of /orders checks who sends a request")


@pytest.mark.parametrize(
    "name", ["page", "log_incoming", "blog_index", "get_author", "check_idempotency_key"]
)
def test_other_dependencies_are_not_told_of(name: str, told: Callable[[], list[str]]) -> None:
    with TestClient(fast(called(name), single_tenant)):
        assert told() == []


# ------------------------------------------------------------------------------ Flask, WSGI


def login_required(view: Any) -> Any:
    @functools.wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return checked


def timed(view: Any) -> Any:
    @functools.wraps(view)
    def counted(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return counted


def test_a_view_s_own_login_is_told_of(told: Callable[[], list[str]]) -> None:
    app = flask.Flask("shop")
    guard = Oncekey(app, store="memory://", tenant=single_tenant)

    @app.post("/orders")
    @timed
    @login_required
    def order() -> dict[str, int]:
        return {}

    @app.post("/marked")
    @login_required
    @idempotent
    def marked() -> dict[str, int]:
        return {}

    @app.get("/page")
    @login_required
    def page() -> dict[str, int]:
        return {}

    assert app.test_client().post("/orders", headers={"Idempotency-Key": "k"}).status_code == 200
    [said] = told()
    assert said.startswith("login_required of order checks who sends a request within the view")
    assert "write @idempotent below it" in said
    guard.close()


def test_a_login_below_the_mark_of_a_view_is_told_of(told: Callable[[], list[str]]) -> None:
    app = flask.Flask("shop")
    guard = Oncekey(app, store="memory://", tenant=single_tenant)

    @app.post("/orders")
    @timed
    @idempotent
    @login_required
    def order() -> dict[str, int]:
        return {}

    @app.post("/search")
    @not_idempotent
    @login_required
    def search() -> dict[str, int]:
        return {}

    app.test_client().get("/")
    [said] = told()
    assert said.startswith("login_required of order checks who sends a request within the view")
    guard.close()


@pytest.mark.parametrize("name", ["remember", "tokenize", "access_log", "user_agent", "enrolled"])
def test_other_decorators_are_not_told_of(name: str, told: Callable[[], list[str]]) -> None:
    app = flask.Flask("shop")
    guard = Oncekey(app, store="memory://", tenant=single_tenant)
    view: Any = timed(dict)
    view.__code__ = view.__code__.replace(co_qualname=f"{name}.<locals>.counted")
    app.post("/orders")(view)
    app.test_client().get("/")
    assert told() == []
    guard.close()


def test_an_extension_and_a_middleware_are_one_too_many() -> None:
    extended, app = flask.Flask("shop"), flask.Flask("shop")
    guard = Oncekey(extended, store="memory://", tenant=single_tenant)
    with pytest.raises(Misuse, match="keep one of them"):
        WsgiMiddleware(extended.wsgi_app, store="memory://", tenant=single_tenant)
    guard.close()
    around = WsgiMiddleware(app.wsgi_app, store="memory://", tenant=single_tenant)
    app.wsgi_app = around  # type: ignore[method-assign]
    with pytest.raises(Misuse, match="keep one of them"):
        Oncekey(app, store="memory://", tenant=single_tenant)
    around.close()


def test_a_login_of_a_view_or_a_blueprint_inside_a_middleware_is_told_of(
    told: Callable[[], list[str]],
) -> None:
    app, part = flask.Flask("shop"), flask.Blueprint("part", "part")
    part.before_request(login)
    part.post("/orders")(login_required(dict))
    app.register_blueprint(part)
    guard = WsgiMiddleware(app.wsgi_app, store="memory://", tenant=by_header)
    app.wsgi_app = guard  # type: ignore[method-assign]
    app.test_client().get("/")
    [said] = told()
    assert said.startswith("login, login_required runs inside IdempotencyMiddleware")
    guard.close()


def login() -> None:
    """Nobody is refused here."""


def test_before_request_functions_inside_a_middleware_are_told_of(
    told: Callable[[], list[str]],
) -> None:
    app = flask.Flask("shop")

    @app.before_request
    def sign_in() -> None:
        """Nobody is refused here."""

    guard = WsgiMiddleware(app.wsgi_app, store="memory://", tenant=by_header)
    app.wsgi_app = guard  # type: ignore[method-assign]
    app.test_client().get("/")
    [said] = told()
    assert said.startswith("sign_in runs inside IdempotencyMiddleware")
    guard.close()
