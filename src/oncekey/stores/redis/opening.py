"""Stores in Redis or Valkey, by their URLs: one server, one that Sentinels name, or a Cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from oncekey.errors import Misuse
from oncekey.stores.redis.cluster import ClusterStore
from oncekey.stores.redis.connection import Address, parse_url
from oncekey.stores.redis.sentinel import SentinelStore
from oncekey.stores.redis.store import RedisStore
from oncekey.stores.urls import must_be_readable

__all__ = ["RedisStore", "open_url"]

_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix"}
_PLACE = ("host", "port", "path", "db", "username", "password")
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "prefix": str,
    "timeout_s": float,
    "connect_timeout_s": float,
    "wait_replicas": int,
    "wait_timeout_s": float,
    "allow": lambda text: text.split(","),
}
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_PORTS = {"cluster": 6379, "sentinel": 26379}


def open_url(url: str) -> RedisStore:
    """`redis://user:password@host:port/db`, `rediss://` with TLS, `unix:///path?db=0`, `valkey://`.

    Several servers: `redis+cluster://host:port,host:port` names some nodes of a Cluster,
    `redis+sentinel://host:port,host:port/service?db=0` some Sentinels and what they watch.
    `rediss+…` and `valkey+…` likewise.

    Behind the `?`: `prefix`, `timeout_s`, `connect_timeout_s`, `wait_replicas`, `wait_timeout_s`
    and `allow=eviction`, as `RedisStore` has them, and for Sentinels that ask for one
    `sentinel_username` and `sentinel_password`. Anything else is redis-py's: `ssl_ca_certs`,
    `client_name`, `protocol` and so on.
    """
    must_be_readable(url, "redis://user:password@host:6379/0")  # a cache's comes here at once
    scheme, _, rest = url.partition("://")
    base, _, form = scheme.lower().partition("+")
    if form == "unix":
        base, form = "unix", ""
    base = _SCHEMES.get(base, base)
    try:
        addresses, one = _addresses(rest, form) if form else ([], rest)
        parts = parse_url(f"{base}://{one}")
        options = {name: read(parts.pop(name)) for name, read in _OPTIONS.items() if name in parts}
    except (ValueError, KeyError):
        # The driver's message stays unseen: it takes half a password for a port, and shows it.
        raise Misuse(
            f"this {scheme}:// URL cannot be read: timeouts and counts must be numbers, and "
            "special characters in the password percent-encoded"
        ) from None
    path = rest.partition("?")[0].rpartition("@")[2].partition("/")[2]
    if base == "unix":
        _check_socket(parts)
    elif form != "sentinel":
        _check_database(scheme, path)
    options |= {name: parts.pop(name) for name in _PLACE if name in parts}
    options |= {
        name: parts.pop(name) for name in _SENTINEL_OPTIONS if form == "sentinel" and name in parts
    }
    options |= {"tls": base == "rediss", "driver_options": parts}
    if form == "cluster":
        return ClusterStore(addresses, **_without(options, "host", "port"))
    if form == "sentinel":
        return SentinelStore(addresses, path, **_without(options, "host", "port"))
    return RedisStore(**options)


def _check_socket(parts: dict[str, Any]) -> None:
    if "path" not in parts:  # the driver would take TCP
        raise Misuse("this unix:// URL names no socket: write unix:///run/redis.sock")


def _check_database(scheme: str, path: str) -> None:
    if not re.fullmatch(r"\d*/?", path):  # the driver would take the first one
        raise Misuse(
            f"this {scheme}:// URL names a database that is no number: write {scheme}://host/0, "
            "and to keep applications apart by name ?prefix=name"
        )


def _addresses(rest: str, form: str) -> tuple[list[Address], str]:
    """All addresses of a URL, and the rest of it with the first one alone. What follows Sentinels
    is the name of a service, and no database.
    """
    place, mark, query = rest.partition("?")
    user, at, place = place.rpartition("@")
    hosts, slash, path = place.partition("/")
    addresses = []
    for host in hosts.split(","):
        parts = parse_url(f"redis://{host}")
        addresses.append((parts.get("host", "localhost"), parts.get("port", _PORTS[form])))
    database = "" if form == "sentinel" else f"{slash}{path}"
    return addresses, f"{user}{at}{hosts.split(',')[0]}{database}{mark}{query}"


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}
