"""Spelling: the ways in which a router may read a path.

Many routers take `//charges`, `/charges/` or `http://host/charges` for `/charges`, and the
middleware around an application cannot ask them beforehand. So it looks at all of these readings.
"""

from __future__ import annotations

import re
from urllib.parse import urlparse

_ODD = re.compile(r"\A(?!/)|//|/\.\.?(?:/|\n?\Z)|(?<!\n)\n\Z|[\udc80-\udcff]")
_NO_TEXT = re.compile(r"[\udc80-\udcff]")
"""Bytes that are no UTF-8, which some frameworks pass over."""
_LINE_END = re.compile(r"(?<!\n)\n\Z")
"""A router whose patterns end in `$`, as Starlette's do, passes over it."""
_HOST = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
"""Of a request whose target is a whole URL: some servers hand it over as it is."""


def is_normal(path: str) -> bool:
    """Whether a path is spelt as links are: the readings below change nothing in it."""
    return _ODD.search(path) is None


def normal(path: str) -> str:
    """The path without repeated slashes, dot segments, host, line end and what is no text. A slash
    at the end stays: to many routers it makes another route.
    """
    return path if is_normal(path) else _normal(as_url(path))


def _normal(path: str) -> str:
    *inner, last = _parts(path)
    kept: list[str] = []
    for part in (*inner, last):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    ended = "/" if kept and last in ("", ".", "..") else ""
    return f"/{'/'.join(kept)}{ended}"


def readings(path: str) -> tuple[str, ...]:
    """The path as it is, then as routers may read it."""
    if is_normal(path):
        return (path,)
    *inner, last = _parts(path)
    merged = "/" + "/".join([*filter(None, inner), last])
    return path, merged, _normal(path), normal(path)


def other_end(path: str) -> str:
    """With the slash at its end that it has not, or without the one that it has."""
    return path[:-1] or path if path.endswith("/") else f"{path}/"


def as_url(path: str) -> str:
    """What Quart takes for the path where it does not begin with a slash: `x:/charges?`."""
    if path.startswith("/"):
        return path
    try:
        return urlparse(path).path
    except ValueError:
        return path


def _parts(path: str) -> list[str]:
    path = _NO_TEXT.sub("", _HOST.sub("", path, count=1))
    return _LINE_END.sub("", path).split("/")
