"""An application of FastAPI with guarded routes, for tests."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException
from fastapi import Request as FastRequest
from pydantic import BaseModel

from oncekey._core.record import Record
from oncekey._core.verbs import Scan
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.fastapi import Idempotency
from tests.web.client import Reply, ask

SIGNED_IN = [(b"authorization", b"ann")]
TEA = {"item": "tea"}


class Order(BaseModel):
    item: str
    quantity: int = 1


class Sent(BaseModel):
    idempotency_key: str


def signed_in(request: FastRequest, authorization: Annotated[str | None, Header()] = None) -> str:
    if authorization is None:
        raise HTTPException(401, "who are you?")
    if authorization == "eve":
        raise HTTPException(403, "not you")
    request.state.account = authorization
    return authorization


def account_of(request: FastRequest) -> str:
    account: str = request.state.account
    return account


class World:
    """An application with guarded routes, its store, and how often its endpoints ran."""

    def __init__(self, **settings: Any) -> None:
        self.store = MemoryStore(FakeClock())
        settings = {"store": self.store, "tenant": account_of, **settings}
        self.idempotency = Idempotency(**settings)
        self.app = FastAPI(lifespan=self.idempotency.lifespan)
        self.router = APIRouter(
            route_class=self.idempotency.route_class, dependencies=[Depends(signed_in)]
        )
        self.included = False
        self.runs = 0

    async def ask(self, key: str | None, body: Any = TEA, **request: Any) -> Reply:
        self.include()
        request = {"headers": SIGNED_IN, **request}
        return await ask(self.app, key, body, **request)

    def include(self, prefix: str = "") -> None:
        """Once, with all that is routed by then."""
        if not self.included:
            self.included = True
            self.app.include_router(self.router, prefix=prefix)

    def run(self) -> int:
        self.runs += 1
        return self.runs

    def records(self) -> list[Record]:
        return list(Gatherer(self.store).ask(Scan(100)))


def ordering(**settings: Any) -> World:
    """A world with one endpoint: `POST /orders`."""
    world = World(**settings)

    @world.router.post("/orders", status_code=201)
    async def order(order: Order) -> dict[str, Any]:
        return {"run": world.run(), "item": order.item}

    return world


def stopping(world: World) -> tuple[asyncio.Event, asyncio.Event]:
    """An endpoint that stops in the middle; what is set when it is there, and lets it go on."""
    entered, leave = asyncio.Event(), asyncio.Event()

    @world.router.post("/orders")
    async def slow() -> dict[str, int]:
        entered.set()
        await leave.wait()
        return {"run": world.run()}

    return entered, leave
