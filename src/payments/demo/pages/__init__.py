"""Pages: a checkout to break, and an explainer that plays recordings. No build step.

/            the checkout page, on a server with the demo
/explain     the explainer
/pages/…     their files
/oncekey.js  oncekey's client for browsers
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncekey.client import browser
from payments.access.auth import is_local
from payments.settings import Settings

FOLDER = Path(__file__).parent
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
SAFE: Mapping[str, str] = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file, as it is sent."""

    body: bytes
    headers: Mapping[str, str]


def add(api: FastAPI, settings: Settings) -> None:
    """Add the pages to an application."""

    def checkout(request: Request) -> Response:
        # It pays with the key that works on this machine only, so it is useless elsewhere.
        if settings.shows_demo and is_local(request.scope):
            return _respond(request, file_of("checkout.html"))
        return RedirectResponse("/explain")

    def explain(request: Request) -> Response:
        return _respond(request, file_of("explain.html"))

    def page_file(request: Request) -> Response:
        name: str = request.path_params["name"]
        return _respond(request, file_of(name)) if name in names() else Response(status_code=404)

    def module(request: Request) -> Response:
        found = browser.module()
        return _respond(request, File(found.body, found.headers))

    api.add_route("/", checkout, include_in_schema=False)
    api.add_route("/explain", explain, include_in_schema=False)
    api.add_route("/pages/{name}", page_file, include_in_schema=False)
    api.add_route("/oncekey.js", module, include_in_schema=False)


@functools.cache
def names() -> frozenset[str]:
    """List the public files."""
    return frozenset(path.name for path in FOLDER.iterdir() if path.suffix in TYPES)


@functools.cache
def file_of(name: str) -> File:
    """Read a file, once per process."""
    path = FOLDER / name
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return File(body, {**SAFE, "Content-Type": TYPES[path.suffix], "ETag": etag})


def _respond(request: Request, file: File) -> Response:
    if request.headers.get("if-none-match") == file.headers["ETag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.body, headers=file.headers)
