"""The client for browsers: one ES module, to be served as it is.

It comes with the package, so that a page and its server are of one release. Any framework can serve
it, from the folder of `path()` or from the bytes of `module()`:

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
    """The file, and what to say about it."""

    body: bytes
    etag: str
    """Changes when the file does, in quotes, as it stands in a header."""
    headers: Mapping[str, str]
    """Content-Type, ETag, and that browsers may keep it but have to ask."""


def path() -> Path:
    """Where the module is, for those who serve files."""
    return Path(__file__).with_name("oncekey.js")


@functools.cache
def module() -> Module:
    """The module, for those who serve bytes. Read once."""
    body = path().read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {
        "Content-Type": "text/javascript; charset=utf-8",
        "ETag": etag,
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    return Module(body, etag, MappingProxyType(headers))
