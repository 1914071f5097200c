"""The browser client: one ES module that you serve as it is.

It ships with the package, so that a page and its server have the same release. Any framework can
serve it, from the file at `path()` or from the bytes of `module()`:

    @app.get("/oncekey.js")
    def oncekey_js(request: Request) -> Response:
        file = browser.module()
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, headers=file.headers)
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from oncekey._core.values import value

__all__ = ["Module", "module", "path"]


@value
class Module:
    """The file, and the headers to serve it with."""

    body: bytes
    etag: str
    """Changes when the file does; quoted, as in the header."""
    headers: Mapping[str, str]
    """Content-Type, ETag, and a Cache-Control that makes browsers revalidate."""


def path() -> Path:
    """Return the path of the module, to serve it as a file."""
    return Path(__file__).with_name("oncekey.js")


@functools.cache
def module() -> Module:
    """Return the module's bytes and headers. Reads the file once."""
    body = path().read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {
        "Content-Type": "text/javascript; charset=utf-8",
        "ETag": etag,
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    return Module(body, etag, MappingProxyType(headers))
