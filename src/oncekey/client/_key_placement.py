"""Where a key stands in a request: read it if the caller put one there, else put it there.

The header, the body's field or the query's parameter is what the profile says. Nothing else of the
request changes: of a JSON body every byte stays, one member is put before the others.
"""

from __future__ import annotations

import functools
import re
from dataclasses import field
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from oncekey._core import fingerprint as fingerprints
from oncekey._core import key as keys
from oncekey._core.canonical import FORM, BadBody, essence, is_json, parse_json
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.key import BadKey
from oncekey._core.profiles import BodyField, Header, Profile, QueryParameter
from oncekey._core.values import value
from oncekey.client._classify import Headers
from oncekey.errors import Misuse

_PORTS = {"http": 80, "https": 443}
COMPARED_BYTES_MAX = 1_048_576
"""Of a body that is larger only the size counts: to read what it says takes longer than to send it,
and nobody but whoever mixes up two keys has anything of it.
"""


@value
class Outgoing:
    """A request, whichever library made it."""

    method: str
    url: str
    headers: Headers
    body: bytes | None
    """None where it is a stream: it can be sent once, and nobody can look inside."""


@value
class Placed:
    """What of a request has to change so that it carries its key. It is not shown: each part may
    hold the key.
    """

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    url: str | None = field(default=None, repr=False)
    body: bytes | None = field(default=None, repr=False)


NOTHING = Placed()


def origin_of(url: str) -> str:
    """Scheme, host and port: within them a key may be shown."""
    end = url.find("/", len("https://"))
    return _origin(url if end < 0 else url[:end])


@functools.lru_cache(maxsize=256)  # a client calls the same few hosts
def _origin(url: str) -> str:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return f"{scheme}://{parts.hostname or ''}:{parts.port or _PORTS.get(scheme, 0)}"


def header_of(profile: Profile) -> str:
    """The header that holds the key, where it is one; else the usual one, which holds none."""
    where = profile.key_in
    return where.name if isinstance(where, Header) else "Idempotency-Key"


def stays_at(url: str, location: str) -> bool:
    """Whether a redirect surely leads to the same origin. Libraries read odd addresses in different
    ways: of those it is not sure.
    """
    if not _PLAIN.fullmatch(location):
        return False
    here = url[: url.find("/", len("https://")) + 1]
    return bool(_PATH.match(location)) or (bool(here) and location.startswith(here))


_PLAIN = re.compile(r"[!-\[\]-~]+")  # neither blanks, nor control characters, nor a backslash
_PATH = re.compile(r"/(?!/)")


def given(request: Outgoing, profile: Profile) -> str | None:
    """The key that the caller has put in, None if there is none."""
    match profile.key_in:
        case Header(name):
            line = request.headers.get(name.lower())
            if line is None:
                return None
            return _usable(keys.parse([line.encode("latin-1", "replace")]))
        case QueryParameter(name):
            pairs = dict(parse_qsl(urlsplit(request.url).query, keep_blank_values=True))
            return _usable(keys.check(pairs[name])) if name in pairs else None
        case BodyField(name):
            if not request.body:
                return None
            found = fingerprints.extract_field(_type(request), request.body, name)
            return _usable(keys.check(found)) if isinstance(found, str) else None


def usable(key: str, profile: Profile) -> str:
    """The key as this profile's servers take it; a misuse if they do not."""
    return _usable(profile.key(_usable(keys.check(key))))


def placed(request: Outgoing, profile: Profile, key: str) -> Placed | None:
    """What has to change; None where this request has no place for a key."""
    match profile.key_in:
        case Header(name):
            # The draft asks for a quoted string. Everybody else's servers compare what they get,
            # quotes included.
            text = _quoted(key) if profile.key_quoted else key
            return Placed(headers=((name, text),))
        case QueryParameter(name):
            bare, mark, fragment = request.url.partition("#")
            joint = "&" if urlsplit(bare).query else "" if bare.endswith("?") else "?"
            return Placed(url=f"{bare}{joint}{name}={quote(key, safe='')}{mark}{fragment}")
        case BodyField(name):
            body = _with_field(request, name, key)
            return None if body is None else Placed(body=body)


def fingerprint(request: Outgoing, profile: Profile) -> Fingerprint | None:
    """What tells this request from another one; None for a stream, or a body that is broken."""
    if request.body is None:
        return None
    parts = urlsplit(request.url)
    where, media_type, body = profile.key_in, _type(request), request.body
    if len(body) > COMPARED_BYTES_MAX:
        media_type, body = "", b"%d" % len(body)
    # Forms by the rules that leave the order of fields free, as most servers do: this only warns.
    version = 1 if essence(media_type) == FORM else fingerprints.VERSION
    made = fingerprints.of(
        request.method,
        parts.path,
        parts.query,
        media_type,
        body,
        exclude_field=where.name if isinstance(where, BodyField) else None,
        exclude_parameter=where.name if isinstance(where, QueryParameter) else None,
        version=version,
    )
    return None if isinstance(made, BadBody) else made


def _with_field(request: Outgoing, name: str, key: str) -> bytes | None:
    if not request.body:
        return None
    media_type = essence(_type(request))
    if media_type == FORM:
        return b"%b&%b=%b" % (request.body, quote(name).encode(), quote(key, safe="").encode())
    if not is_json(media_type):
        return None
    members: Any = parse_json(request.body)
    if not isinstance(members, dict):
        return None
    if name in members:  # null, as those write who let a client fill it in
        return None
    head, brace, rest = request.body.partition(b"{")
    comma = b"," if members else b""
    text = f"{_quoted(name)}:{_quoted(key)}".encode("ascii")
    return head + brace + text + comma + rest


def _quoted(text: str) -> str:
    """As JSON and structured fields write a string of visible ASCII."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _type(request: Outgoing) -> str:
    return request.headers.get("content-type") or ""


def _usable(key: str | BadKey) -> str:
    if isinstance(key, BadKey):
        raise Misuse(f"this request was not sent: {key.reason}")
    return key
