"""Request headers that are hidden from a guarded handler.

A stored response is sent to any client that retries. So it must not be compressed for one client,
nor be a range that one asked for (206), nor say that one has it already (304). `If-Match`,
`If-Unmodified-Since` and `If-None-Match: *` stay: they are conditions on the operation.

Middleware outside the guarded part still sees all of them, and may use them for each client.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

_UNLESS_ANY = b"if-none-match"
HIDDEN = frozenset({b"accept-encoding", b"range", b"if-range", b"if-modified-since", _UNLESS_ANY})
"""The names of headers that `is_hidden` may hide."""
_VARIABLES = tuple("HTTP_" + name.decode().upper().replace("-", "_") for name in HIDDEN)
_PAST_THE_APPLICATION = "wsgi.file_wrapper"
"""A way to send a file past the middleware: what it does not see, it cannot store."""


def is_hidden(name: bytes, content: bytes) -> bool:
    """Return whether a header line is hidden. Its name is lower case."""
    return name in HIDDEN and not (name == _UNLESS_ANY and content.strip() == b"*")


def hide(environ: MutableMapping[str, Any]) -> dict[str, Any]:
    """Remove hidden headers from a WSGI environ, or a mapping like it; return them, to put them
    back.
    """
    taken = {
        name: environ[name] for name in (*_VARIABLES, _PAST_THE_APPLICATION) if name in environ
    }
    if str(taken.get("HTTP_IF_NONE_MATCH", "")).strip() == "*":
        del taken["HTTP_IF_NONE_MATCH"]
    for name in taken:
        del environ[name]
    return taken
