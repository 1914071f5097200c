"""Orders that commit with their responses: Starlette and SQLAlchemy's AsyncSession.

oncekey migrate postgresql://localhost/shop
uvicorn --factory examples.atomic_sqlalchemy:build
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from oncekey import Policy, atomic
from oncekey.web.asgi import IdempotencyMiddleware


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


async def create(request: Request) -> JSONResponse:
    session: AsyncSession = oncekey.current().connection  # do not commit: oncekey does
    order = Order(item=(await request.json())["item"])
    session.add(order)
    await session.flush()  # to learn its number; the rest is flushed before the commit
    return JSONResponse({"id": order.id, "item": order.item}, status_code=201)


def build(database: str = "postgresql://localhost/shop", store: str | None = None) -> Starlette:
    """The application; its records are in the same database as its orders."""
    engine = create_async_engine(database.replace("postgresql:", "postgresql+asyncpg:"))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    app = Starlette(routes=[Route("/orders", create, methods=["POST"])], lifespan=lifespan)
    app.add_middleware(
        IdempotencyMiddleware,
        store=store or database,
        tenant=oncekey.single_tenant,
        policy=Policy(required=True, atomic=True),
        atomic=atomic.AsyncSQLAlchemy(async_sessionmaker(engine)),
    )
    return app
