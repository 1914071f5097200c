"""Read a request's idempotency key, place one, and remember which request it was sent with.

The profile says which header, body field or query parameter holds the key. Nothing else in the
request changes: a JSON body keeps every byte and gets one member before the others.
"""

from __future__ import annotations

import functools
import re
import threading
from collections import OrderedDict
from dataclasses import field, replace
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from oncekey._core import fingerprint as fingerprints
from oncekey._core import key as keys
from oncekey._core.canonical import FORM, BadBody, essence, is_json, parse_json
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.key import BadKey, short_hash
from oncekey._core.profiles import BodyField, Header, Profile, QueryParameter
from oncekey._core.values import value
from oncekey.client._classify import HeaderLookup
from oncekey.client._errors import redacted_repr
from oncekey.errors import Misuse

_PORTS = {"http": 80, "https": 443}
COMPARED_BYTES_MAX = 1_048_576
"""Of larger bodies only the size is compared: parsing one takes longer than sending it, only to
detect a mixed-up key.
"""


@value
class OutgoingRequest:
    """A request of any HTTP library."""

    method: str
    url: str
    headers: HeaderLookup
    body: bytes | None
    """None for a stream, which can be sent only once and not inspected."""


@value
class KeyChanges:
    """What to change in a request to place its key. Not in the repr: each part may hold the key."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    url: str | None = field(default=None, repr=False)
    body: bytes | None = field(default=None, repr=False)


NO_CHANGES = KeyChanges()


def origin_of(url: str) -> str:
    """Return scheme, host and port: a key may be sent anywhere within an origin."""
    end = url.find("/", len("https://"))
    return _origin(url if end < 0 else url[:end])


@functools.lru_cache(maxsize=256)  # a client calls the same few hosts
def _origin(url: str) -> str:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return f"{scheme}://{parts.hostname or ''}:{parts.port or _PORTS.get(scheme, 0)}"


def key_header(profile: Profile) -> str:
    """Return the header that holds the key, else the usual name."""
    where = profile.key_in
    return where.name if isinstance(where, Header) else "Idempotency-Key"


def is_same_origin_redirect(url: str, location: str) -> bool:
    """Whether a redirect certainly stays in the same origin. False for unusual URLs, which
    libraries parse in different ways.
    """
    if not _PLAIN.fullmatch(location):
        return False
    here = url[: url.find("/", len("https://")) + 1]
    return bool(_PATH.match(location)) or (bool(here) and location.startswith(here))


_PLAIN = re.compile(r"[!-\[\]-~]+")  # no blanks, control characters or backslash
_PATH = re.compile(r"/(?!/)")


def read_key(request: OutgoingRequest, profile: Profile) -> str | None:
    """Return the key in a request, or None."""
    match profile.key_in:
        case Header(name):
            line = request.headers.get(name.lower())
            if line is None:
                return None
            return _require_valid(keys.parse([line.encode("latin-1", "replace")]))
        case QueryParameter(name):
            pairs = dict(parse_qsl(urlsplit(request.url).query, keep_blank_values=True))
            return _require_valid(keys.check(pairs[name])) if name in pairs else None
        case BodyField(name):
            if not request.body:
                return None
            found = fingerprints.extract_field(_content_type(request), request.body, name)
            return _require_valid(keys.check(found)) if isinstance(found, str) else None


def valid_key(key: str, profile: Profile) -> str:
    """Return the key as this profile's servers accept it; raise `Misuse` if they do not."""
    return _require_valid(profile.key(_require_valid(keys.check(key))))


def place_key(request: OutgoingRequest, profile: Profile, key: str) -> KeyChanges | None:
    """Return the changes that add a key, or None if this request has no place for one."""
    match profile.key_in:
        case Header(name):
            # The IETF draft requires a quoted string. All other servers compare the raw value,
            # quotes included.
            text = _quote(key) if profile.key_quoted else key
            return KeyChanges(headers=((name, text),))
        case QueryParameter(name):
            bare, mark, fragment = request.url.partition("#")
            joint = "&" if urlsplit(bare).query else "" if bare.endswith("?") else "?"
            return KeyChanges(url=f"{bare}{joint}{name}={quote(key, safe='')}{mark}{fragment}")
        case BodyField(name):
            body = _with_field(request, name, key)
            return None if body is None else KeyChanges(body=body)


def fingerprint(request: OutgoingRequest, profile: Profile) -> Fingerprint | None:
    """Return the request's fingerprint, or None for a stream or a malformed body."""
    if request.body is None:
        return None
    parts = urlsplit(request.url)
    where, media_type, body = profile.key_in, _content_type(request), request.body
    if len(body) > COMPARED_BYTES_MAX:
        media_type, body = "", b"%d" % len(body)
    # For forms use the version that ignores the order of fields, as most servers do: a difference
    # only causes a warning.
    version = 1 if essence(media_type) == FORM else fingerprints.VERSION
    made = fingerprints.compute(
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


def _with_field(request: OutgoingRequest, name: str, key: str) -> bytes | None:
    if not request.body:
        return None
    media_type = essence(_content_type(request))
    if media_type == FORM:
        return b"%b&%b=%b" % (request.body, quote(name).encode(), quote(key, safe="").encode())
    if not is_json(media_type):
        return None
    members: Any = parse_json(request.body)
    if not isinstance(members, dict):
        return None
    if name in members:  # null, a placeholder for the client to fill in
        return None
    head, brace, rest = request.body.partition(b"{")
    comma = b"," if members else b""
    text = f"{_quote(name)}:{_quote(key)}".encode("ascii")
    return head + brace + text + comma + rest


def _quote(text: str) -> str:
    """Quote visible ASCII as JSON and structured fields do."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _content_type(request: OutgoingRequest) -> str:
    return request.headers.get("content-type") or ""


def _require_valid(key: str | BadKey) -> str:
    if isinstance(key, BadKey):
        raise Misuse(f"this request was not sent: {key.reason}")
    return key


# ---------------------------------------------------------------- what a sent request carries on

DELIVERY = "oncekey"
"""The name under which a request has its mark, and a response or error its delivery."""


@value
class GivenKey:
    """A key that the caller passes beside a request, and its times."""

    key: str
    first_sent: float | None = None
    until: float | None = None
    """Until when it may be sent; both in seconds since 1970."""

    __repr__ = redacted_repr


@value
class RequestMark:
    """Left on the caller's request when it is sent, to recognize it when it is resent or redirected
    and to send it with the same key.
    """

    key: str
    url: object
    """The URL of the first send: the key may be sent only within its origin."""
    body: object
    """The body of the first send, as the library holds it."""
    first_sent: float
    until: float | None = None
    redirect: RedirectState | None = None
    """Set if it was redirected."""
    is_visible: bool = False
    """Whether we wrote the key's header into the caller's request, for the caller to see."""

    __repr__ = redacted_repr

    @property
    def origin(self) -> str:
        return origin_of(str(self.url))

    def deadline(self, new_deadline: float) -> float:
        """Return the deadline: a followed redirect shares the time of its request."""
        return new_deadline if self.redirect is None else self.redirect.deadline

    @property
    def attempts(self) -> int:
        """The number of the next attempt: a followed redirect continues the count."""
        return 1 if self.redirect is None else 1 + self.redirect.retries

    def for_resend(self, request: object) -> RequestMark:
        """Return the mark for sending this request; its own state is not that of a redirect."""
        if self.redirect is None or self.redirect.request != id(request):
            return self
        return replace(self, redirect=None)

    def after_redirect(self, request: object, deadline: float, retries: int) -> RequestMark:
        """Return the mark for a request whose response is a redirect."""
        return replace(self, redirect=RedirectState(id(request), deadline, retries))

    def stays_visible_after(self, location: str | None) -> bool:
        """Whether our key header may stay on the request: following a redirect copies the headers,
        perhaps past our transport, and another origin must not see the key.
        """
        return self.is_visible and (
            location is None or is_same_origin_redirect(str(self.url), location)
        )


@value
class RedirectState:
    """What a redirected request has used of its time and retries."""

    request: int
    """The request object's `id`. The same object again is the caller's own retry, not a redirect,
    and gets new time.
    """
    deadline: float
    retries: int


# ------------------------------------------------------------------- one key, two requests

KEYS_MAX = 1024


class SentRequests:
    """Remembers which request each recent key was sent with; thread-safe.

    Sending two different requests with one key is the caller's mistake. A server that compares
    refuses the second; another one replays the first one's response, and nobody notices. So this
    client warns, as far back as a bounded memory goes.
    """

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._seen: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def is_different(self, origin: str, key: str, fingerprint: Fingerprint) -> bool:
        """Whether this key was last sent to this origin with a different request."""
        name = short_hash(f"{origin} {key}")
        with self._lock:
            before = self._seen.pop(name, None)
            self._seen[name] = fingerprint.digest
            if len(self._seen) > self._keys_max:
                self._seen.popitem(last=False)
        return before is not None and before != fingerprint.digest
