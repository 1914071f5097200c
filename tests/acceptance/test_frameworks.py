"""Starlette under uvicorn: what frameworks and the middleware around them do, replayed alike."""

from __future__ import annotations

import gzip
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route

from oncekey import PROFILES, Policy, single_tenant
from oncekey._core.record import State
from oncekey.web.asgi import IdempotencyMiddleware
from tests.acceptance.serve import serving
from tests.acceptance.shop import WAIT_S_MAX, kept
from tests.web.client import Reply

pytestmark = pytest.mark.slow

Endpoint = Callable[[Request], Awaitable[Response]]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


def guard(store: str, **settings: Any) -> Middleware:
    return Middleware(IdempotencyMiddleware, store=store, tenant=single_tenant, **settings)


def app(endpoint: Endpoint, *middleware: Middleware) -> Starlette:
    """`POST /orders` behind this middleware, outermost first."""
    return Starlette(
        routes=[Route("/orders", endpoint, methods=["POST"])], middleware=[*middleware]
    )


class Counted:
    """An endpoint that counts its runs; `answer` makes the answer of a run."""

    def __init__(self, answer: Callable[[int], Response]) -> None:
        self._answer = answer
        self.runs = 0

    async def __call__(self, request: Request) -> Response:
        self.runs += 1
        return self._answer(self.runs)

    def endpoint(self) -> Endpoint:
        return self.__call__


def twice(application: Any, **request: Any) -> tuple[Reply, Reply]:
    """The first answer and the one to a retry."""
    with serving(application) as client:
        return client.ask("k1", **request), client.ask("k1", **request)


def assert_replayed(first: Reply, again: Reply) -> None:
    """P3: the same status and the same bytes, and the retry is told that it is one."""
    assert (again.status, again.body) == (first.status, first.body)
    assert (first.replayed, again.replayed) == (False, True)


# ----------------------------------------------------------------------------- kinds of answers


def test_e60_a_stream_that_ends_is_kept_whole(store: str) -> None:
    def answer(run: int) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for n in range(100):
                yield b"%d of run %d\n" % (n, run)

        return StreamingResponse(parts(), media_type="text/plain")

    counted = Counted(answer)
    first, again = twice(app(counted.endpoint(), guard(store)))
    assert_replayed(first, again)
    assert first.body.splitlines()[99] == b"99 of run 1"
    assert again.header("content-length") == str(len(first.body))
    assert again.header("transfer-encoding") is None
    assert counted.runs == 1


def test_e60_a_file_is_kept_as_it_was(store: str, tmp_path: Path) -> None:
    invoice = tmp_path / "invoice.pdf"
    invoice.write_bytes(bytes(range(256)) * 1000)

    async def endpoint(request: Request) -> Response:
        return FileResponse(invoice, filename="invoice.pdf")

    with serving(app(endpoint, guard(store))) as client:
        first = client.ask("k1")
        invoice.write_bytes(b"another one")
        again = client.ask("k1")
    assert_replayed(first, again)
    assert len(again.body) == 256_000
    for name in ("content-type", "content-disposition", "etag", "last-modified"):
        assert first.header(name) == again.header(name) is not None


def test_a_body_of_one_mebibyte_is_replayed_byte_for_byte(store: str) -> None:
    size = 1_048_576

    def answer(run: int) -> Response:
        return Response(bytes((run + n) % 256 for n in range(256)) * (size // 256))

    counted = Counted(answer)
    first, again = twice(app(counted.endpoint(), guard(store)), body=b'"' + b"x" * 999_000 + b'"')
    assert_replayed(first, again)
    assert len(again.body) == size


@pytest.mark.parametrize("status", [200, 204])
def test_e63_an_empty_body_is_an_answer(store: str, status: int) -> None:
    counted = Counted(lambda run: Response(status_code=status, headers={"x-run": str(run)}))
    first, again = twice(app(counted.endpoint(), guard(store)))
    assert_replayed(first, again)
    assert again.header("x-run") == "1"
    assert again.header("content-length") == (None if status == 204 else "0")
    assert counted.runs == 1


def test_e62_a_redirect_after_a_post_is_an_answer(store: str) -> None:
    counted = Counted(lambda run: RedirectResponse(f"/orders/{run}", status_code=303))
    first, again = twice(app(counted.endpoint(), guard(store)))
    assert_replayed(first, again)
    assert first.status == 303
    assert first.header("location") == again.header("location") == "/orders/1"


def test_e62_a_redirect_to_do_it_elsewhere_is_none(store: str) -> None:
    counted = Counted(lambda run: RedirectResponse(f"/orders/{run}", status_code=307))
    first, again = twice(app(counted.endpoint(), guard(store)))
    assert [first.header("location"), again.header("location")] == ["/orders/1", "/orders/2"]


@pytest.mark.parametrize(
    ("status", "is_kept"), [(402, True), (404, True), (422, True), (401, False), (503, False)]
)
def test_e40_an_http_exception_is_an_answer_like_any_other(
    store: str, status: int, is_kept: bool
) -> None:
    runs = []

    async def endpoint(request: Request) -> Response:
        runs.append(status)
        raise HTTPException(status, detail=f"run {len(runs)}", headers={"x-reason": "funds"})

    first, again = twice(app(endpoint, guard(store)))
    assert first.status == again.status == status
    assert again.body == (b"run 1" if is_kept else b"run 2")
    assert again.replayed == is_kept
    assert again.header("x-reason") == "funds"


def test_e38_an_exception_is_answered_by_the_framework_and_runs_again(store: str) -> None:
    runs = []

    async def endpoint(request: Request) -> Response:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("the card reader is unplugged")
        return JSONResponse({"run": len(runs)})

    first, again = twice(app(endpoint, guard(store)))
    assert (first.status, first.body) == (500, b"Internal Server Error")
    assert again.json() == {"run": 2}


def test_e53_cookies_are_set_once_unless_they_are_named(store: str) -> None:
    def answer(run: int) -> Response:
        response = PlainTextResponse("welcome")
        response.set_cookie("session", f"secret{run}")
        response.set_cookie("theme", "dark")
        return response

    first, again = twice(app(Counted(answer).endpoint(), guard(store)))
    assert [line.partition(b"=")[0] for line in first.all("set-cookie")] == [b"session", b"theme"]
    assert again.all("set-cookie") == []
    assert_replayed(first, again)
    [record] = kept(store)
    assert record.answer is not None
    assert b"secret" not in repr(record.answer.headers).encode()


def test_e53_cookies_that_are_named_come_again_line_by_line(store: str) -> None:
    def answer(run: int) -> Response:
        response = PlainTextResponse("welcome")
        response.set_cookie("basket", f"{run}")
        response.set_cookie("theme", "dark", expires="Thu, 01 Jan 2099 00:00:00 GMT")
        return response

    named = guard(store, policy=Policy(headers_kept=["Set-Cookie"]))
    first, again = twice(app(Counted(answer).endpoint(), named))
    assert len(first.all("set-cookie")) == 2
    assert again.all("set-cookie") == first.all("set-cookie")


# ------------------------------------------------------------------------------- background work


def test_background_work_runs_once_and_nobody_waits_for_it(store: str) -> None:
    done: list[int] = []
    go_on = threading.Event()
    ended = threading.Event()

    def mail(run: int) -> None:
        assert go_on.wait(WAIT_S_MAX)
        done.append(run)
        ended.set()

    counted = Counted(lambda run: JSONResponse({"run": run}, background=BackgroundTask(mail, run)))
    with serving(app(counted.endpoint(), guard(store))) as client:
        first = client.ask("k1")
        again = client.ask("k1")  # recorded already, whatever still runs behind it
        assert done == []
        go_on.set()
        assert ended.wait(WAIT_S_MAX)
        late = client.ask("k1")
    assert_replayed(first, again)
    assert_replayed(first, late)
    assert done == [1]


# ------------------------------------------------------------------------------------- browsers

ORIGIN = ("Origin", "https://shop.example")


def cors(profile: str = "oncekey") -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=["https://shop.example"],
        allow_methods=["POST"],
        allow_headers=["Content-Type", *PROFILES[profile].cors_allow_headers],
        expose_headers=PROFILES[profile].cors_expose_headers,
    )


def test_e14_a_browser_may_ask_first_and_that_spends_nothing(store: str) -> None:
    counted = Counted(lambda run: JSONResponse({"run": run}))
    asked = [
        ORIGIN,
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type,idempotency-key"),
    ]
    required = guard(store, policy=Policy(required=True))
    with serving(app(counted.endpoint(), cors(), required)) as client:
        preflight = client.ask(method="OPTIONS", headers=asked)
    assert preflight.status == 200
    assert "Idempotency-Key" in str(preflight.header("access-control-allow-headers"))
    assert counted.runs == 0
    assert kept(store) == []


def test_e14_first_answers_replays_and_refusals_can_be_read_by_a_script(store: str) -> None:
    counted = Counted(lambda run: JSONResponse({"run": run}))
    with serving(app(counted.endpoint(), cors(), guard(store))) as client:
        first = client.ask("k1", {"tea": 1}, headers=[ORIGIN])
        again = client.ask("k1", {"tea": 1}, headers=[ORIGIN])
        refused = client.ask("k1", {"tea": 2}, headers=[ORIGIN])
        elsewhere = client.ask("k1", {"tea": 1}, headers=[("Origin", "https://other.example")])
    assert_replayed(first, again)
    assert refused.kind == "mismatch"
    for reply in (first, again, refused):
        assert reply.header("access-control-allow-origin") == "https://shop.example"
        exposed = str(reply.header("access-control-expose-headers")).lower().split(", ")
        carried = {name.decode() for name, _ in reply.headers}
        ours = {"idempotent-replayed", "idempotency-key", "idempotency-expires", "x-should-retry"}
        assert carried & ours <= set(exposed)
    assert elsewhere.header("access-control-allow-origin") is None  # not the first client's


# ----------------------------------------------------------------------------------- compression

GZIP = ("Accept-Encoding", "gzip")


@pytest.mark.parametrize("place", ["outside", "inside"])
@pytest.mark.parametrize("first_reads_gzip", [True, False])
def test_e58_every_client_can_read_its_answer(
    store: str, place: str, first_reads_gzip: bool
) -> None:
    text = "tea and biscuits " * 200
    counted = Counted(lambda run: PlainTextResponse(f"{run} {text}"))
    press = Middleware(GZipMiddleware, minimum_size=100)
    order = [press, guard(store)] if place == "outside" else [guard(store), press]
    turns = [[GZIP], []] if first_reads_gzip else [[], [GZIP]]
    with serving(app(counted.endpoint(), *order)) as client:
        first, again = (client.ask("k1", headers=turn) for turn in turns)
    for reply, headers in ((first, turns[0]), (again, turns[1])):
        pressed = reply.header("content-encoding") == "gzip"
        assert pressed == (place == "outside" and headers == [GZIP])
        assert (gzip.decompress(reply.body) if pressed else reply.body) == f"1 {text}".encode()
        assert reply.header("content-length") == str(len(reply.body))
    assert again.replayed
    [record] = kept(store)
    assert record.answer is not None
    assert b"content-encoding" not in dict(record.answer.headers)


# ------------------------------------------------------------------------- applications in layers


async def pass_on(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    response.headers["x-seen"] = "yes"
    return response


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_middleware_of_the_common_kind_may_stand_on_either_side(store: str, place: str) -> None:
    counted = Counted(lambda run: JSONResponse({"run": run}, status_code=201))
    common = Middleware(BaseHTTPMiddleware, dispatch=pass_on)
    order = [common, guard(store)] if place == "outside" else [guard(store), common]
    first, again = twice(app(counted.endpoint(), *order))
    assert_replayed(first, again)
    assert first.header("x-seen") == again.header("x-seen") == "yes"


def mounted(endpoint: Endpoint, inner: list[Middleware], outer: list[Middleware]) -> Starlette:
    """The shop as a part of something larger."""
    shop = Starlette(routes=[Route("/orders", endpoint, methods=["POST"])], middleware=inner)
    return Starlette(routes=[Mount("/shop", shop), Mount("/other", shop)], middleware=outer)


@pytest.mark.parametrize("place", ["outer", "inner"])
def test_a_mounted_application_is_guarded_by_its_whole_path(store: str, place: str) -> None:
    counted = Counted(lambda run: JSONResponse({"run": run}))
    layers: dict[str, list[Middleware]] = {"inner": [], "outer": [], place: [guard(store)]}
    with serving(mounted(counted.endpoint(), **layers)) as client:
        first = client.ask("k1", path="/shop/orders")
        again = client.ask("k1", path="/shop/orders")
        elsewhere = client.ask("k1", path="/other/orders")
    assert_replayed(first, again)
    assert elsewhere.json() == {"run": 2}  # another operation: its keys are its own
    assert {record.operation for record in kept(store)} == {
        "POST /shop/orders",
        "POST /other/orders",
    }


def test_p7_a_router_within_a_router_that_finds_nothing_leaves_nothing(store: str) -> None:
    application = mounted(Counted(lambda run: Response()).endpoint(), [], [guard(store)])
    with serving(application) as client:
        lost = [client.ask("k1", path="/shop/nothing"), client.ask("k1", path="/shop/nothing")]
    assert [(reply.status, reply.replayed) for reply in lost] == [(404, False), (404, False)]
    assert [(r.state, r.no_effect) for r in kept(store)] == [(State.RELEASED, True)]


def test_a_root_path_is_part_of_the_path_for_all(store: str) -> None:
    """Behind a proxy that takes `/api` away: the operation is what the client calls it."""
    counted = Counted(lambda run: JSONResponse({"run": run}))
    routes = {"POST /orders": Policy(required=True)}
    application = app(counted.endpoint(), guard(store, routes=routes, status_path="/status"))
    with serving(application, root_path="/api") as client:
        assert client.ask(None).kind == "missing-key"
        first, again = client.ask("k1"), client.ask("k1")
        query = "/status?operation=POST%20/api/orders"
        told = client.ask("k1", method="GET", path=query)
    assert_replayed(first, again)
    assert told.json()["operation"] == "POST /api/orders"


# --------------------------------------------------------------------------------- other methods


def test_e26_reading_with_a_key_is_only_reading(store: str) -> None:
    async def read(request: Request) -> Response:
        return PlainTextResponse("all orders")

    application = Starlette(routes=[Route("/orders", read)], middleware=[guard(store)])
    with serving(application) as client:
        got = client.ask("k1", method="GET")
        head = client.ask("k1", method="HEAD")
    assert got.body == b"all orders"
    assert (head.status, head.body, head.header("content-length")) == (200, b"", "10")
    assert head.header("idempotency-key") is None
    assert kept(store) == []


def test_methods_that_are_named_are_guarded(store: str, tmp_path: Path) -> None:
    counted = Counted(lambda run: JSONResponse({"run": run}))
    application = Starlette(
        routes=[Route("/orders", counted.endpoint(), methods=["PUT", "DELETE"])],
        middleware=[guard(store, policy=Policy(methods=["PUT", "DELETE"]))],
    )
    with serving(application) as client:
        for method in ("PUT", "DELETE"):
            first, again = client.ask("k1", method=method), client.ask("k1", method=method)
            assert_replayed(first, again)
    assert counted.runs == 2
