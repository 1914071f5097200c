"""Authentication: from a request's API key to its account.

Keys come as Bearer tokens, as Stripe's clients send them, or as the user name of Basic
authentication, as `curl -u sk_test_…:` does.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from payments import clock
from payments.access.accounts import LOCAL, LOCAL_KEY, Account, Accounts, Key, digest, hint

KEYS_FRESH_S = 2.0
"""How long a looked-up key is cached: a revoked one works at most this much longer."""
KEYS_CACHED_MAX = 10_000
KEY_CHARS_MAX = 255

_FORWARDED = (b"forwarded", b"x-forwarded", b"x-real-ip", b"x-client-ip", b"via", b"cf-connecting")
"""How the headers begin that proxies add."""


@dataclass(frozen=True, slots=True)
class InvalidKey:
    """The request has no valid key; the message says why."""

    message: str
    code: str | None = None


class Keys:
    """Whose each key is, cached briefly, so that most requests need no database query."""

    def __init__(self, accounts: Accounts, *, local: bool = False) -> None:
        self._accounts = accounts
        self._local = local
        self._cache: dict[bytes, tuple[Key, float]] = {}

    def recall(self, key: str, scope: Mapping[str, Any]) -> Account | InvalidKey | None:
        """Return whose key it is, from the cache; None if it must be looked up."""
        if key == LOCAL_KEY:
            return self._local_account(scope)
        seen = self._cache.get(digest(key))
        if seen is None:
            return None
        known, read_at = seen
        fresh = clock.monotonic() - read_at < KEYS_FRESH_S and known.works(clock.wall())
        return known.account if fresh else None

    def was_valid(self, key: str) -> bool:
        """Whether the key was valid when last looked up."""
        return digest(key) in self._cache

    async def look_up(self, key: str) -> Account | InvalidKey:
        """Look up in the database whose key it is."""
        looked_at, key_digest = clock.monotonic(), digest(key)
        found = await asyncio.to_thread(self._accounts.find_key, key_digest)
        if found is None:
            self._cache.pop(key_digest, None)
            return InvalidKey(f"Invalid API Key provided: {hint(key)[:40]}")
        if not found.works(clock.wall()):
            self._cache.pop(key_digest, None)
            how = "revoked" if found.revoked is not None else "rotated, and its time is over"
            return InvalidKey(
                f"Expired API Key provided: {found.hint} was {how}.", "api_key_expired"
            )
        if len(self._cache) >= KEYS_CACHED_MAX:
            self._cache.clear()
        self._cache[key_digest] = found, looked_at
        return found.account

    def _local_account(self, scope: Mapping[str, Any]) -> Account | InvalidKey:
        if not self._local:
            return InvalidKey(
                f"{LOCAL_KEY} is not in use on this server. Make a key of your own: "
                "./dev payments account create NAME"
            )
        if is_local(scope):
            return LOCAL
        return InvalidKey(
            f"{LOCAL_KEY} works only on the machine that the server runs on, at http://127.0.0.1 "
            "or http://localhost and not through a proxy. Make a key of your own: "
            "./dev payments account create NAME"
        )


def read_key(headers: Iterable[tuple[bytes, bytes]]) -> str | InvalidKey:
    """Read the key from the Authorization header."""
    lines = [content for name, content in headers if name == b"authorization"]
    if not lines:
        return InvalidKey(
            "You did not provide an API key. Send it in the Authorization header, as in "
            "'Authorization: Bearer YOUR_SECRET_KEY', or as the user name of Basic authentication."
        )
    if len(lines) > 1:
        return InvalidKey("There are several Authorization headers. Send one.")
    scheme, _, credentials = lines[0].decode("latin-1").strip().partition(" ")
    key: str | None = credentials.strip()
    if scheme.lower() == "basic":
        key = _basic_user(key or "")
    elif scheme.lower() != "bearer":
        key = None
    if not key or len(key) > KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        return InvalidKey(
            "The Authorization header holds no API key. Send 'Authorization: Bearer "
            "YOUR_SECRET_KEY', or the key as the user name of Basic authentication."
        )
    return key


def _basic_user(credentials: str) -> str | None:
    try:
        return base64.b64decode(credentials, validate=True).decode("latin-1").partition(":")[0]
    except (binascii.Error, ValueError):
        return None


def is_local(scope: Mapping[str, Any]) -> bool:
    """Whether a request certainly comes from this machine.

    Its peer is on loopback, so is its Host (a site elsewhere may point its own name at 127.0.0.1),
    and no local proxy forwards it for somebody else.
    """
    client = scope.get("client")
    hosts = [content for name, content in scope["headers"] if name == b"host"]
    return (
        client is not None
        and _is_loopback(client[0])
        and len(hosts) == 1
        and _is_loopback(_host_name(hosts[0].decode("latin-1")))
        and not any(name.startswith(_FORWARDED) for name, _ in scope["headers"])
    )


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
