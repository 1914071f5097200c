"""The API reference: every route on one page, from the OpenAPI document, to try out in place.

It consists only of files in this folder, so it works offline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from payments.demo.pages import SAFE

FOLDER = Path(__file__).parent
FILES = {
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs/docs.css": ("docs.css", "text/css; charset=utf-8"),
    "/docs/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}


def add(api: FastAPI, document: dict[str, Any]) -> None:
    """Add `/docs` and `/openapi.json` to an application."""

    async def openapi(_: Request) -> Response:
        return JSONResponse(document)

    api.add_route("/openapi.json", openapi, include_in_schema=False)
    for path, (name, kind) in FILES.items():
        api.add_route(path, _sender((FOLDER / name).read_bytes(), kind), include_in_schema=False)


def _sender(body: bytes, kind: str) -> Any:
    async def send(_: Request) -> Response:
        return Response(body, media_type=kind, headers=SAFE)

    return send
