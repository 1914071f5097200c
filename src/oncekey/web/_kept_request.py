"""A request as it is kept beside its record, so that it can be finished without its client.

The body and the query lie in the store while the operation runs. Of the headers only those that
cannot be a credential: whoever reads the store must not be able to act as the client (P12).

    version byte | length of the head | head as JSON | body
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable

from oncekey._core.values import value
from oncekey.errors import CorruptRecord
from oncekey.web._hidden_headers import is_hidden
from oncekey.web._request import Headers, Request

VERSION = 1
HEADER_LINES_MAX = 64
HEADER_BYTES_MAX = 8_192
_HEAD = struct.Struct("!BI")

# By any part of the name: a header that is left out can be missed, one that is kept can be stolen.
_SECRET = re.compile(
    rb"auth|cookie|token|secret|key|pass|pwd|credential|session|sign|csrf|xsrf|jwt|otp|pin\b|cert"
    rb"|oidc|saml|assertion|principal|dpop|ticket|referer|forwarded|real-ip|client-ip|connecting-ip"
)
# Or by what it says, under whatever name: a scheme of authorisation, or a JSON web token.
_SAYS_SECRET = re.compile(rb"\s*(?:(?:bearer|basic|digest|negotiate|dpop)\s|eyJ)", re.IGNORECASE)
# Of one message or connection; and what the edge writes itself.
_OF_THE_MESSAGE = frozenset(
    {
        *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"content-length", b"expect", b"date"),
    }
)
_FOR_THE_BODY = (b"content-type", b"content-encoding")


@value
class KeptRequest:
    """What is kept of a request."""

    method: str
    scheme: str
    path: str
    root: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    outer: str | None = None
    """The root of the outermost application; None where `root` is that."""

    def as_request(self) -> Request:
        """As the edge reads it, whichever server it came from."""
        return Request(
            self.method,
            self.path,
            self.query,
            Headers(self.headers),
            {"scheme": self.scheme},
            self.root,
        )


def keep(request: Request, body: bytes) -> KeptRequest:
    """What may be kept of a request."""
    scope = request.scope
    return KeptRequest(
        request.method,
        str(scope.get("scheme") or scope.get("wsgi.url_scheme") or "http"),
        request.path,
        request.root,
        request.query,
        tuple(_harmless(request.headers.lines)),
        body,
        scope.get("app_root_path"),
    )


def _harmless(lines: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    kept: list[tuple[bytes, bytes]] = []
    size = 0
    # First what the body cannot be read without, in case there are too many.
    for name, content in sorted(lines, key=lambda line: line[0] not in _FOR_THE_BODY):
        if is_hidden(name, content) or name in _OF_THE_MESSAGE:
            continue
        if _SECRET.search(name) or _SAYS_SECRET.match(content):
            continue
        size += len(name) + len(content)
        if len(kept) == HEADER_LINES_MAX or size > HEADER_BYTES_MAX:
            break
        kept.append((name, content))
    return kept


def encode(kept: KeptRequest) -> bytes:
    """A kept request as bytes, for stores."""
    head: dict[str, object] = {
        "method": kept.method,
        "scheme": kept.scheme,
        "path": kept.path,
        "root": kept.root,
        "query": kept.query.decode("latin-1"),
        "headers": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in kept.headers],
    }
    if kept.outer is not None:
        head["outer"] = kept.outer
    written = json.dumps(head, separators=(",", ":")).encode()
    return _HEAD.pack(VERSION, len(written)) + written + kept.body


def decode(data: bytes) -> KeptRequest:
    """The inverse of `encode`; raises `CorruptRecord` for what this release cannot read."""
    try:
        version, length = _HEAD.unpack_from(data)
        if version != VERSION:
            raise CorruptRecord(
                f"a kept request has version {version}, this release reads {VERSION}: a newer one "
                "wrote it, or a function's arguments are read as a request"
            )
        body_at = _HEAD.size + length
        if body_at > len(data):
            raise CorruptRecord("a kept request ends within its head")
        head = json.loads(data[_HEAD.size : body_at])
        return KeptRequest(
            head["method"],
            head["scheme"],
            head["path"],
            head["root"],
            head["query"].encode("latin-1"),
            tuple((n.encode("latin-1"), v.encode("latin-1")) for n, v in head["headers"]),
            data[body_at:],
            head.get("outer"),
        )
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(f"a kept request cannot be read: {error!r:.200}") from error
