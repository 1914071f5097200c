"""Decide where a webhook may be sent, so that it cannot reach the sender's own network (SSRF).

A stranger chooses an endpoint's URL. A request sent there blindly could read the cloud's metadata
service or post to an internal service that trusts its network. So the name is resolved here, every
address is checked, and the connection goes to a checked address: a client that resolves the URL
again may get another address (DNS rebinding).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from oncekey._core.values import value
from oncekey.errors import Misuse

URL_CHARS_MAX = 2_048
ADDRESSES_MAX = 4
"""How many of a name's addresses are tried."""
LOOPBACK = ("127.0.0.0/8", "::1/128")
PORTS = {"http": 80, "https": 443}

Lookup = Callable[[str, int], list[str]]
"""From a host and port to addresses as text; raises OSError."""

_Address = IPv4Address | IPv6Address

# Not the public internet, by IANA's registries of special-purpose addresses.
_PRIVATE_4 = [
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # looks public, but is Azure's own service on each of its machines
    )
]
_GLOBAL_6 = ip_network("2000::/3")
# 6to4 (2002::/16) is obsolete: what still answers there is a relay, or a trap.
_PRIVATE_6 = [ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]
# The last 32 bits of these addresses are an IPv4 address: IPv4-mapped, NAT64.
_IPV4_EMBEDDING = [ip_network(text) for text in ("::ffff:0:0/96", "64:ff9b::/96")]
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?")


@value
class Forbidden:
    """Nothing may be sent to this URL."""

    reason: str


@value
class Target:
    """A parsed URL."""

    is_tls: bool
    host: str
    """A name in ASCII, or an address without brackets."""
    port: int
    path: str
    """With the query."""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.port == PORTS["https" if self.is_tls else "http"]
        return host if is_usual else f"{host}:{self.port}"


class Destinations:
    """The rules that decide which URLs and addresses may receive webhooks.

    `allowed` lists networks that may be reached although they are not public, such as `LOOPBACK`
    in tests.
    """

    def __init__(self, *, https_required: bool = True, allowed: tuple[str, ...] = ()) -> None:
        self._schemes = ("https",) if https_required else ("https", "http")
        try:
            self._allowed = [ip_network(text) for text in allowed]
        except ValueError as error:
            raise Misuse(f"allowed= takes networks such as '10.1.0.0/16': {error}") from None

    def target(self, url: str) -> Target | Forbidden:
        """Parse a URL, and forbid it if its text alone breaks a rule."""
        if len(url) > URL_CHARS_MAX:
            return Forbidden(f"it is longer than {URL_CHARS_MAX} characters")
        if not url.isprintable() or " " in url or "\\" in url:
            return Forbidden("it has a character that no URL has")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            return Forbidden("it cannot be read as a URL")
        if parts.scheme not in self._schemes:
            return Forbidden(f"it must begin with {' or '.join(f'{s}://' for s in self._schemes)}")
        if "@" in parts.netloc or parts.fragment:
            return Forbidden("it has a user name, a password or a fragment")
        if port == 0:
            return Forbidden("it has port 0")
        return self._parse_parts(parts, port or PORTS[parts.scheme])

    def _parse_parts(self, parts: SplitResult, port: int) -> Target | Forbidden:
        host = _ascii(parts.hostname or "")
        if host is None:
            return Forbidden("it has no host that could be looked up")
        literal = _literal(host)
        if literal is not None and (reason := self.objection(literal)):
            return Forbidden(reason)
        path = parts.path or "/"
        if parts.query:
            path += f"?{parts.query}"
        if not path.isascii():
            return Forbidden("its path is not percent-encoded")
        return Target(parts.scheme == "https", host, port, path)

    def objection(self, address: _Address) -> str | None:
        """Return why this address is forbidden, or None if it is allowed."""
        plain = _embedded_ipv4(address)
        if any(plain in network or address in network for network in self._allowed):
            return None
        return None if _is_public(plain) else f"{address} is not a public address"

    def addresses(self, target: Target, lookup: Lookup) -> list[str] | Forbidden:
        """Return the addresses to connect to. One forbidden address forbids them all: a name that
        resolves to both public and private addresses is suspicious. Raises OSError if there are
        none.
        """
        found: list[str] = []
        for text in lookup(target.host, target.port):
            address = _literal(text)
            if address is None:
                return Forbidden(f"{target.host} resolves to {text!r}, which is not an address")
            if reason := self.objection(address):
                return Forbidden(f"{target.host} resolves to a forbidden address: {reason}")
            found.append(str(address))
        if not found:
            raise OSError(f"{target.host} has no address")
        return list(dict.fromkeys(found))[:ADDRESSES_MAX]


def system_lookup(host: str, port: int) -> list[str]:
    """Resolve a name with this machine's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _is_public(address: _Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _PRIVATE_4)
    if address.scope_id is not None:
        return False
    return address in _GLOBAL_6 and not any(address in network for network in _PRIVATE_6)


def _embedded_ipv4(address: _Address) -> _Address:
    """Return the IPv4 address embedded in an IPv6 address, or the address itself."""
    if any(address in network for network in _IPV4_EMBEDDING):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _literal(host: str) -> _Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _ascii(host: str) -> str | None:
    """Return a host as DNS knows it, or None if it cannot be one."""
    if ":" in host:
        return host if isinstance(_literal(host), IPv6Address) else None
    try:
        encoded = host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return None
    return encoded if _HOST.fullmatch(encoded) else None
