"""The network's server: HTTP on loopback.

    POST /authorisations /captures /voids /refunds    each with an Idempotency-Key
    GET  /transactions?after=&limit=&reference=       the book, oldest first
    GET  /tally                                       counts and sums
    GET  /faults   POST /faults {fault, times}   DELETE /faults

One process, one thread, one connection to the file: requests run one after the other and cannot
conflict.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from payments.network.book import Book, Fields, RequestRefused, open_file, validate_fields
from payments.network.faults import FAULTS, SLOW_S, ArmedFaults, Fault, UnknownFault

CRASH_STATUS = 70
BODY_BYTES_MAX = 65_536
PAGE_MAX = 1000
NUMBER_MAX = 2**63 - 1
KEEP_ALIVE_S = 60
HOSTS = ["127.0.0.1", "localhost"]

_RESET = struct.pack("ii", 1, 0)  # linger on, for no time: closing sends a reset


class TransportExposingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with the connection exposed to the faults that break it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport


class CardNetwork:
    """The handlers, over one file."""

    def __init__(self, path: Path | str) -> None:
        self._file = open_file(path)
        self._book = Book(self._file)
        self._armed = ArmedFaults(self._file)

    def app(self) -> Starlette:
        kinds = ("authorisation", "capture", "void", "refund")
        return Starlette(
            routes=[
                *(Route(f"/{kind}s", self._make_handler(kind), methods=["POST"]) for kind in kinds),
                Route("/transactions", self._transactions, methods=["GET"]),
                Route("/tally", self._tally, methods=["GET"]),
                Route("/faults", self._faults, methods=["GET"]),
                Route("/faults", self._arm, methods=["POST"]),
                Route("/faults", self._disarm, methods=["DELETE"]),
            ],
            # A site elsewhere may point its own name at this machine.
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)],
        )

    def close(self) -> None:
        self._file.close()

    # ------------------------------------------------------------------------------ moving money

    def _make_handler(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def move(request: Request) -> Response:
            try:
                fields = validate_fields(kind, await _body(request))
                fault = self._armed.take()
                return await self._move(request, kind, fields, fault)
            except RequestRefused as refused:
                return _error(refused.status, refused.code, str(refused))

        return move

    async def _move(
        self, request: Request, kind: str, fields: Fields, fault: Fault | None
    ) -> Response:
        if fault is not None and fault.moment == "before":
            return await _fail(fault, request)
        middle = fault is not None and fault.moment == "middle"
        key = request.headers.get("idempotency-key", "")
        answer = self._book.execute(kind, key, fields, _exit if middle else _do_nothing)
        if middle:  # a replay, which commits nothing
            _exit()
        if fault is not None and fault.does == "wait":
            await asyncio.sleep(SLOW_S)
        elif fault is not None:
            return await _fail(fault, request)
        headers = {"Idempotent-Replayed": "true"} if answer.replayed else None
        return Response(answer.body, 200, headers, "application/json")

    # ------------------------------------------------------------------------------- reading

    async def _transactions(self, request: Request) -> Response:
        query = request.query_params
        try:
            after, limit = int(query.get("after", 0)), int(query.get("limit", 100))
        except ValueError:
            return _error(400, "query", "after and limit are whole numbers.")
        after, limit = max(0, min(after, NUMBER_MAX)), max(1, min(limit, PAGE_MAX))
        return JSONResponse({"data": self._book.transactions(after, limit, query.get("reference"))})

    async def _tally(self, request: Request) -> Response:
        return JSONResponse(self._book.tally())

    # ------------------------------------------------------------------------------------- faults

    async def _faults(self, request: Request) -> Response:
        return JSONResponse(
            {
                "data": [
                    {
                        "fault": fault.name,
                        "explains": fault.explains,
                        "times": self._armed.times(fault.name),
                    }
                    for fault in FAULTS.values()
                ]
            }
        )

    async def _arm(self, request: Request) -> Response:
        try:
            body = await _body(request)
            fault, times = (body.get("fault"), body.get("times", 1)) if body else (None, 1)
            if not isinstance(fault, str) or type(times) is not int:
                raise UnknownFault('Send {"fault": name, "times": number}.')
            self._armed.arm(fault, times)
        except UnknownFault as unknown:
            return _error(400, "fault", str(unknown))
        except RequestRefused as refused:
            return _error(refused.status, refused.code, str(refused))
        return await self._faults(request)

    async def _disarm(self, request: Request) -> Response:
        self._armed.disarm()
        return await self._faults(request)


async def _fail(fault: Fault, request: Request) -> Response:
    if fault.does == "exit":
        _exit()
    if fault.does == "answer 500":
        return _error(500, "fault", fault.explains)
    transport: asyncio.Transport = request.state.transport
    if fault.does == "reset":
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
    while (await request.receive())["type"] != "http.disconnect":
        continue
    return Response()  # nobody gets it


def _exit() -> None:
    """Exit like a crash: close nothing, answer nothing."""
    os._exit(CRASH_STATUS)


def _do_nothing() -> None:
    """Do nothing before a commit that succeeds."""


async def _body(request: Request) -> Fields:
    if "origin" in request.headers:
        raise RequestRefused(403, "origin", "A page in a browser may not ask for this.")
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > BODY_BYTES_MAX:
            raise RequestRefused(413, "body", f"At most {BODY_BYTES_MAX} bytes.")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise RequestRefused(400, "body", "The body must be JSON.") from None
    if not isinstance(body, dict):
        raise RequestRefused(400, "body", "The body must be a JSON object.")
    return body


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status)


def main(argv: list[str] | None = None) -> int:
    """`python -m payments.network.server --file network.db --port 8001`"""
    parser = argparse.ArgumentParser(prog="payments network", description="The card network.")
    parser.add_argument("--file", type=Path, required=True, help="its SQLite file")
    parser.add_argument("--port", type=int, default=8001, help="on 127.0.0.1")
    args = parser.parse_args(argv)
    network = CardNetwork(args.file)
    config = uvicorn.Config(
        network.app(),
        host="127.0.0.1",
        port=args.port,
        http=TransportExposingProtocol,
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=10,
    )
    # uvicorn drains on these signals and raises them again at the end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_cleanly)
    try:
        uvicorn.Server(config).run()
    finally:
        network.close()
    return 0


def _exit_cleanly(number: int, frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    os.umask(0o077)  # only the file's owner may read who paid what
    raise SystemExit(main())
