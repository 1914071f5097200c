"""The session of a request is the atomic one: as a dependency of FastAPI, and as Flask's own."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request
from flask import Flask, abort, g
from flask import request as flask_request
from flask_sqlalchemy import SQLAlchemy as FlaskSQLAlchemy
from sqlalchemy import create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import oncekey
from oncekey import Policy, atomic, migrate
from oncekey.errors import Misuse
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency, not_idempotent
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.places import postgres_place
from tests.web.client import Reply, ask, ask_wsgi

pytestmark = pytest.mark.anyio


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Bought(Base):
    __tablename__ = "bought"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    buyer: Mapped[str]


class World:
    """An application, and what stands in its database."""

    def __init__(self, app: Any, look: Any) -> None:
        self.app, self._look = app, look
        self.late: list[str] = []
        self.run = uuid.uuid4()

    async def buy(self, key: str | None, item: str = "tea", path: str = "/orders") -> Reply:
        headers = [(b"x-user", b"ann")]
        key = None if key is None else f"{self.run}-{key}"
        return await ask(self.app, key, {"item": item}, path=path, headers=headers)

    def items(self) -> list[str]:
        with self._look() as session:
            return list(session.scalars(select(Bought.item).order_by(Bought.id)))


def awaited(rows: Any, world: World) -> APIRouter:
    """Routes as people have them: their dependencies share a session, the login too."""
    router = APIRouter()

    async def user(
        request: Request,
        x_user: Annotated[str, Header()],
        session: Annotated[Any, Depends(rows.session)],
    ) -> User:
        found: User = await session.scalar(select(User).where(User.name == x_user))
        request.state.account = found.name
        return found

    @router.post("/orders", status_code=201)
    async def order(
        body: dict[str, str],
        tasks: BackgroundTasks,
        session: Annotated[Any, Depends(rows.session)],
        buyer: Annotated[User, Depends(user)],
    ) -> dict[str, Any]:
        assert isinstance(session, AsyncSession)
        bought = Bought(item=body["item"], buyer=buyer.name)
        session.add_all([bought, buyer])
        await session.flush()
        if bought.item == "gold":
            raise HTTPException(503)
        if bought.item == "commit":
            await session.commit()

        async def late() -> None:
            try:
                session.add(Bought(item="late", buyer="ann"))
                await session.commit()
            except Exception as error:
                world.late.append(str(error))

        tasks.add_task(late)
        return {"buyer": "ann"}

    @router.post("/plain", status_code=201)
    @not_idempotent
    async def plain(body: dict[str, str], session: Annotated[Any, Depends(rows.session)]) -> str:
        session.add(Bought(item=body["item"], buyer="nobody"))
        await session.commit()
        return "bought"

    return router


def blocking(rows: Any, world: World) -> APIRouter:
    """The same, written with def."""
    router = APIRouter()

    def user(
        request: Request,
        x_user: Annotated[str, Header()],
        session: Annotated[Any, Depends(rows.session)],
    ) -> User:
        found: User = session.scalar(select(User).where(User.name == x_user))
        request.state.account = found.name
        return found

    @router.post("/orders", status_code=201)
    def order(
        body: dict[str, str],
        tasks: BackgroundTasks,
        session: Annotated[Any, Depends(rows.session)],
        buyer: Annotated[User, Depends(user)],
    ) -> dict[str, Any]:
        assert isinstance(session, Session)
        bought = Bought(item=body["item"], buyer=buyer.name)
        session.add_all([bought, buyer])
        session.flush()
        if bought.item == "gold":
            raise HTTPException(503)
        if bought.item == "commit":
            session.commit()

        def late() -> None:
            try:
                session.add(Bought(item="late", buyer="ann"))
                session.commit()
            except Exception as error:
                world.late.append(str(error))

        tasks.add_task(late)
        return {"buyer": "ann"}

    @router.post("/plain", status_code=201)
    @not_idempotent
    def plain(body: dict[str, str], session: Annotated[Any, Depends(rows.session)]) -> str:
        session.add(Bought(item=body["item"], buyer="nobody"))
        session.commit()
        return "bought"

    return router


def served(idempotency: Idempotency, rows: Any, look: Any, *, in_loop: bool) -> World:
    app = FastAPI()
    app.router.route_class = idempotency.route_class
    world = World(app, look)
    routes = (awaited if in_loop else blocking)(rows, world)
    guarded = APIRouter(route_class=idempotency.route_class)
    for route in routes.routes:
        each: Any = route
        guarded.add_api_route(each.path, each.endpoint, methods=["POST"], status_code=201)
    app.include_router(guarded)
    return world


def fill(url: str) -> Any:
    """The tables, and a user."""
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)
    with sessions.begin() as session:
        session.add(User(name="ann"))
    return engine, sessions


def account_of(request: Request) -> Any:
    return request.state.account


ATOMIC = Policy(atomic=True)


@pytest.fixture(params=["asyncpg", "psycopg async", "psycopg", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "sqlite":
        store = f"sqlite:///{tmp_path}/shop.db"
        url = store
    else:
        place = postgres_place(request, tmp_path)
        store = place.url
        url = place.url.partition("?")[0].replace("postgresql:", "postgresql+psycopg:")
    migrate(store)
    own, look = fill(url)
    in_loop = request.param in ("asyncpg", "psycopg async")
    if in_loop:
        driver = request.param.partition(" ")[0]
        engine: Any = create_async_engine(
            url.replace("+psycopg:", f"+{driver}:"), pool_size=1, max_overflow=0, pool_timeout=10
        )
        rows: Any = atomic.AsyncSQLAlchemy(async_sessionmaker(engine))
    else:
        engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=10)
        rows = atomic.SQLAlchemy(sessionmaker(engine))
    idempotency = Idempotency(store=store, tenant=account_of, policy=ATOMIC, atomic=rows)
    yield served(idempotency, rows, look, in_loop=in_loop)
    await idempotency.guard.close()
    if in_loop:
        await engine.dispose()
    else:
        engine.dispose()
    own.dispose()


async def test_the_session_of_a_dependency_is_the_atomic_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where another dependency has used it before the claim, and what that has loaded."""
    first, again = await world.buy("k1"), await world.buy("k1")
    assert (first.status, first.json()["buyer"]) == (201, "ann")
    assert (again.body, again.replayed) == (first.body, True)
    assert (await world.buy("k2", "gold")).status == 503
    assert world.items() == ["tea"]
    assert (await world.buy("k2", "gold")).status == 503
    assert (await world.buy("k3", "milk")).status == 201
    assert world.items() == ["tea", "milk"]
    assert "without using its transaction" not in caplog.text


async def test_without_a_key_it_is_one_too_and_commits_alike(world: World) -> None:
    """Nobody else would commit it: the rows of a request that was answered 201 were lost."""
    assert (await world.buy(None)).status == 201
    assert (await world.buy(None, "gold")).status == 503
    assert (await world.buy(None, "milk")).status == 201
    assert world.items() == ["tea", "milk"]


async def test_p5_what_a_background_task_does_with_it_is_refused(world: World) -> None:
    assert (await world.buy("k1")).status == 201
    [said] = world.late
    assert "must open its own" in said
    assert world.items() == ["tea"]


async def test_who_commits_it_is_told_so(world: World, request: pytest.FixtureRequest) -> None:
    if "sqlite" in request.node.name:
        with pytest.raises(Exception, match="not authorized"):
            await world.buy("k1", "commit")
        return
    reply = await world.buy("k1", "commit")
    assert (reply.status, reply.kind) == (503, "transaction-ended")
    assert reply.json()["title"] == "The handler ended its transaction itself"


async def test_elsewhere_it_is_an_ordinary_one(world: World) -> None:
    for key in (None, "k1"):
        assert (await world.buy(key, "juice", "/plain")).status == 201
    assert world.items() == ["juice", "juice"]


async def test_it_is_the_atomic_one_under_the_middleware_too(tmp_path: Path) -> None:
    """Which claims before any dependency runs."""
    url = f"sqlite:///{tmp_path}/shop.db"
    migrate(url)
    engine, look = fill(url)
    rows = atomic.SQLAlchemy(sessionmaker(engine))
    app = FastAPI()

    @app.post("/orders", status_code=201)
    def order(session: Annotated[Any, Depends(rows.session)]) -> str:
        assert session is oncekey.current().connection
        session.add(Bought(item="tea", buyer="ann"))
        return "bought"

    guarded = IdempotencyMiddleware(
        app, store=url, tenant=oncekey.single_tenant, policy=ATOMIC, atomic=rows
    )
    replies = [await ask(guarded, "k1") for _ in range(2)]
    assert [reply.replayed for reply in replies] == [False, True]
    assert World(app, look).items() == ["tea"]
    await guarded.close()
    engine.dispose()


async def test_an_engine_has_no_sessions_to_offer() -> None:
    rows = atomic.SQLAlchemy(create_engine("postgresql+psycopg://db.internal/shop"))
    with pytest.raises(Misuse, match=r"needs a sessionmaker: make .* of one, not an engine"):
        await anext(rows.session())


# ---------------------------------------------------------------------------------- Flask


class Shop:
    """An application with Flask-SQLAlchemy."""

    def __init__(self, store: str, url: str) -> None:
        self.db = db = FlaskSQLAlchemy(model_class=Base, disable_autonaming=True)
        self.app = app = Flask("shop")
        app.config["SQLALCHEMY_DATABASE_URI"] = url
        db.init_app(app)
        with app.app_context():
            rows = atomic.SQLAlchemy(db.session)
        self.extension = Oncekey(
            app, store=store, tenant=lambda _: g.user.name, policy=ATOMIC, atomic=rows
        )
        self.kept: list[Any] = []
        self.run = uuid.uuid4()

        @app.before_request
        def sign_in() -> None:
            g.user = db.session.scalar(select(User).where(User.name == "ann"))

        @app.post("/orders")
        def order() -> Any:
            bought = Bought(item=flask_request.json["item"], buyer=g.user.name)
            db.session.add(bought)
            db.session.flush()
            self.kept.append(db.session())
            if bought.item == "gold":
                abort(503)
            return {"id": bought.id}, 201

        @app.post("/idle")
        def idle() -> Any:
            return {}, 201

    def buy(self, key: str | None, item: str = "tea", path: str = "/orders") -> Reply:
        key = None if key is None else f"{self.run}-{key}"
        return ask_wsgi(self.app, key, {"item": item}, path=path)

    def close(self) -> None:
        self.extension.close()
        with self.app.app_context():
            self.db.engine.dispose()


@pytest.fixture(params=["postgres", "sqlite"])
def flask_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Shop, Any]]:
    if request.param == "sqlite":
        store = url = f"sqlite:///{tmp_path}/shop.db"
    else:
        place = postgres_place(request, tmp_path)
        store = place.url
        url = place.url.partition("?")[0].replace("postgresql:", "postgresql+psycopg:")
    migrate(store)
    engine, look = fill(url)
    shop = Shop(store, url)
    yield shop, look
    shop.close()
    engine.dispose()


def test_the_session_of_flask_sqlalchemy_is_the_atomic_one(
    flask_shop: tuple[Shop, Any], caplog: pytest.LogCaptureFixture
) -> None:
    shop, look = flask_shop
    first, again = shop.buy("k1"), shop.buy("k1")
    assert (first.status, first.json()) == (201, {"id": 1})
    assert (again.body, again.replayed) == (first.body, True)
    assert shop.buy("k2", "gold").status == 503
    assert World(None, look).items() == ["tea"]
    assert "without using its transaction" not in caplog.text
    for kept in shop.kept:
        with pytest.raises(Misuse, match="must open its own"):
            kept.add(Bought(item="late", buyer="ann"))
    assert shop.buy("k3", "milk").status == 201
    assert World(None, look).items() == ["tea", "milk"]


def test_without_a_key_the_session_of_flask_commits_alike(flask_shop: tuple[Shop, Any]) -> None:
    shop, look = flask_shop
    assert [shop.buy(None, item).status for item in ("tea", "gold", "milk")] == [201, 503, 201]
    assert World(None, look).items() == ["tea", "milk"]


def test_a_view_that_does_not_use_it_is_told_of(
    flask_shop: tuple[Shop, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its login has used the session before the claim."""
    shop, _ = flask_shop
    assert shop.buy("k1", path="/idle").status == 201
    assert "POST /idle is Policy(atomic=True), but" in caplog.text


def test_it_is_made_where_the_application_is_known(tmp_path: Path) -> None:
    db = FlaskSQLAlchemy()
    with pytest.raises(Misuse, match=r"inside `with app\.app_context"):
        atomic.SQLAlchemy(db.session)


def test_the_middleware_stands_before_flask_and_has_no_session_of_its(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    migrate(url)
    db, app = FlaskSQLAlchemy(), Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db.init_app(app)
    with app.app_context():
        rows = atomic.SQLAlchemy(db.session)
    guarded = WsgiMiddleware(
        app.wsgi_app, store=url, tenant=oncekey.single_tenant, policy=ATOMIC, atomic=rows
    )
    with pytest.raises(Misuse, match=r"use oncekey\.web\.flask\.Oncekey"):
        ask_wsgi(guarded, "k1")
    guarded.close()
    with app.app_context():
        db.engine.dispose()


async def test_a_scoped_session_is_for_threads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    migrate(url)
    db, app = FlaskSQLAlchemy(), Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db.init_app(app)
    with app.app_context():
        rows = atomic.SQLAlchemy(db.session)
        db.engine.dispose()
    with pytest.raises(Misuse, match="belong to a thread"):
        Idempotency(store=url, tenant=account_of, policy=ATOMIC, atomic=rows)
