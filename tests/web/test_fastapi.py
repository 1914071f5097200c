"""FastAPI's routes, each guarded after its own dependencies and validation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import Depends, HTTPException
from fastapi import Request as FastRequest
from fastapi import Response as FastResponse
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

import oncekey
import oncekey.atomic
from oncekey import Misuse, Policy
from oncekey.web.fastapi import not_idempotent
from tests.web.fastapi_world import Order, World, ordering, signed_in, stopping

pytestmark = pytest.mark.anyio


# --------------------------------------------------------------------------------- the main road


async def test_p3_a_retry_gets_the_same_answer() -> None:
    world = ordering()
    first, again = await world.ask("k1"), await world.ask("k1")
    assert (first.status, first.json(), first.replayed) == (201, {"run": 1, "item": "tea"}, False)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert again.header("content-type") == first.header("content-type") == "application/json"
    assert first.header("idempotency-key") == again.header("idempotency-key") == "k1"
    assert again.all("content-length") == [b"%d" % len(first.body)]


async def test_p5_another_request_or_account_never_gets_the_answer() -> None:
    world = ordering()
    await world.ask("k1")
    other_request = await world.ask("k1", {"item": "coffee"})
    other_account = await world.ask("k1", headers=[(b"authorization", b"bob")])
    assert (other_request.status, other_request.kind) == (422, "mismatch")
    assert (other_account.status, other_account.replayed) == (201, False)
    assert world.runs == 2


async def test_a_request_without_a_key_is_an_ordinary_one() -> None:
    world = ordering()
    assert [(await world.ask(None)).status for _ in range(2)] == [201, 201]
    assert (world.runs, world.records()) == (2, [])


async def test_a_required_key_is_asked_for_after_who_asks_and_what_is_valid() -> None:
    world = ordering(policy=Policy(required=True))
    assert (await world.ask(None, headers=[])).status == 401
    assert (await world.ask(None, {"no": "item"})).status == 422
    missing = await world.ask(None)
    assert (missing.status, missing.kind, world.runs) == (400, "missing-key", 0)
    assert (await world.ask("")).kind == "invalid-key"


async def test_e31_a_duplicate_in_flight_is_refused() -> None:
    world = World()
    entered, leave = stopping(world)
    first = asyncio.create_task(world.ask("k1"))
    await entered.wait()
    refused = await world.ask("k1")
    leave.set()
    assert (refused.status, refused.kind) == (409, "in-flight")
    assert refused.header("retry-after") is not None
    assert (await first).json() == (await world.ask("k1")).json() == {"run": 1}


async def test_a_sync_endpoint_runs_in_a_thread_and_knows_its_attempt() -> None:
    world = World()

    @world.router.post("/orders")
    def order(order: Order) -> dict[str, Any]:
        assert threading.current_thread() is not threading.main_thread()
        attempt = oncekey.current()
        charged = attempt.step_sync("charge", lambda: world.run())
        attempt.resource_id = "order_1"
        return {"charged": charged, "key": attempt.key}

    first, again = await world.ask("k1"), await world.ask("k1")
    assert first.json() == again.json() == {"charged": 1, "key": "k1"}
    assert [record.resource_id for record in world.records()] == ["order_1"]


async def test_a_retry_after_a_failure_continues_after_its_last_step() -> None:
    world = World()

    @world.router.post("/orders")
    async def order() -> dict[str, int]:
        charged = await oncekey.current().step("charge", world.run)
        if oncekey.current().attempt == 1:
            raise RuntimeError("out of paper")
        return {"charged": charged, "attempt": oncekey.current().attempt}

    with pytest.raises(RuntimeError, match="out of paper"):
        await world.ask("k1")
    assert (await world.ask("k1")).json() == {"charged": 1, "attempt": 2}


# -------------------------------------------------------------- what the route refuses by itself


async def test_p7_what_a_dependency_refuses_is_not_claimed() -> None:
    world = ordering()
    assert (await world.ask("k1", headers=[])).status == 401
    assert (await world.ask("k1", headers=[(b"authorization", b"eve")])).status == 403
    assert world.records() == []
    assert (await world.ask("k1", {"item": "coffee"})).status == 201


async def test_e40_p7_a_validation_error_is_not_claimed() -> None:
    world = ordering()
    for bad in ({"quantity": 2}, b"{", b""):
        refused = await world.ask("k1", bad)
        assert (refused.status, refused.header("content-type")) == (422, "application/json")
    assert world.records() == []
    corrected = await world.ask("k1")
    assert (corrected.status, corrected.json()["run"]) == (201, 1)


async def test_e18_a_replay_is_authorised_like_any_request() -> None:
    world = ordering()
    banned: set[str] = set()

    def not_banned(who: Annotated[str, Depends(signed_in)]) -> None:
        if who in banned:
            raise HTTPException(403)

    @world.router.post("/refunds", dependencies=[Depends(not_banned)])
    async def refund() -> dict[str, int]:
        return {"run": world.run()}

    assert (await world.ask("k1", path="/refunds")).json() == {"run": 1}
    banned.add("ann")
    refused = await world.ask("k1", path="/refunds")
    assert (refused.status, refused.replayed) == (403, False)
    banned.clear()
    assert (await world.ask("k1", path="/refunds")).replayed


async def test_e25_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    world = ordering(policy=Policy(request_bytes_max=10))
    refused = await world.ask("k1")
    assert (refused.status, refused.kind, world.records()) == (413, "request-too-large", [])


async def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business() -> None:
    world = World(profile="square", policy=Policy(request_bytes_max=10))

    @world.router.post("/pictures", status_code=201)
    async def picture(request: FastRequest) -> int:
        return len(await request.body())

    upload = await world.ask(None, b"x" * 100, path="/pictures", content_type="image/png")
    assert (upload.status, upload.body) == (201, b"100")


# ------------------------------------------------------------------------------ kinds of answers


async def test_e40_an_http_exception_of_the_endpoint_is_its_answer() -> None:
    world = World()

    @world.router.post("/orders")
    async def order(order: Order) -> None:
        raise HTTPException(order.quantity, {"run": world.run()}, {"x-reason": "none"})

    for status, replayed in ((402, True), (404, True), (422, True), (503, False), (403, False)):
        body = {"item": "tea", "quantity": status}
        first, again = await world.ask(f"k{status}", body), await world.ask(f"k{status}", body)
        assert (first.status, again.status, again.replayed) == (status, status, replayed)
        assert (first.body == again.body) is replayed
        assert again.header("x-reason") == "none"


async def test_an_exception_that_the_application_answers_is_kept_by_its_status() -> None:
    world = World()

    class SoldOut(Exception):
        pass

    @world.app.exception_handler(SoldOut)
    async def answer(request: FastRequest, error: Exception) -> JSONResponse:
        assert oncekey.current().key == "k1"
        return JSONResponse({"sold out": world.runs}, 410)

    @world.router.post("/orders")
    async def order() -> None:
        world.run()
        raise SoldOut

    first, again = await world.ask("k1"), await world.ask("k1")
    assert (first.status, again.status, again.body) == (410, 410, first.body)
    assert (again.replayed, world.runs) == (True, 1)


async def test_e38_an_exception_gives_the_key_back() -> None:
    world = World()

    @world.router.post("/orders")
    async def order() -> dict[str, int]:
        if world.run() == 1:
            raise ValueError("broken")
        return {"run": world.runs}

    with pytest.raises(ValueError, match="broken"):
        await world.ask("k1")
    assert (await world.ask("k1")).json() == {"run": 2}


async def test_an_answer_that_does_not_fit_its_model_gives_the_key_back() -> None:
    world = World()

    @world.router.post("/orders", response_model=Order)
    async def order() -> dict[str, Any]:
        return {"item": "tea", "secret": 1} if world.run() > 1 else {"quantity": "many"}

    with pytest.raises(Exception, match="validation error"):
        await world.ask("k1")
    first, again = await world.ask("k1"), await world.ask("k1")
    assert first.json() == {"item": "tea", "quantity": 1}, "by its response model"
    assert again.body == first.body


async def test_e60_a_stream_is_kept_whole() -> None:
    world = World()

    @world.router.post("/orders")
    async def order() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for n in range(3):
                yield b"%d of run %d\n" % (n, world.run() - n)

        return StreamingResponse(parts(), 202, media_type="text/plain")

    first, again = await world.ask("k1"), await world.ask("k1")
    assert (again.status, again.body, again.replayed) == (202, first.body, True)
    assert first.body == b"0 of run 1\n1 of run 1\n2 of run 1\n"


async def test_a_response_of_another_class_and_headers_set_by_a_parameter_are_kept() -> None:
    world = World()

    @world.router.post("/text", response_class=PlainTextResponse)
    async def text(response: FastResponse) -> str:
        response.headers["Location"] = "/orders/1"
        response.status_code = 202
        return f"run {world.run()}"

    first, again = await world.ask("k1", path="/text"), await world.ask("k1", path="/text")
    assert (first.status, again.status, again.body) == (202, 202, b"run 1")
    assert again.header("location") == "/orders/1"
    assert str(again.header("content-type")).startswith("text/plain")


def test_an_endpoint_that_yields_its_answer_is_refused_when_it_is_written() -> None:
    world = World()

    def events() -> Iterator[str]:
        yield "one"

    with pytest.raises(Misuse, match="return a StreamingResponse"):
        world.router.post("/events")(events)
    world.router.post("/events")(not_idempotent(events))
    world.router.get("/events")(events)
