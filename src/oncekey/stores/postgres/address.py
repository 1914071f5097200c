"""Where a PostgreSQL is: what of a URL is for the drivers, what is ours, and what may be shown."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from oncekey.errors import Misuse
from oncekey.stores.urls import canonical_host, redact, scrub

_OWN = ("pgbouncer", "allow", "timeout_s", "connect_timeout_s")

# What libpq does on the client's side. asyncpg would take these for settings of the server.
_LIBPQ_ONLY = frozenset(
    {
        *("channel_binding", "connect_timeout", "fallback_application_name", "gssencmode"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval"),
        *("require_auth", "sslcompression", "sslsni", "tcp_user_timeout"),
    }
)


@dataclass(frozen=True, slots=True)
class Address:
    """A URL that libpq understands."""

    libpq: str

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"  # error trackers keep what stands in local names

    @property
    def asyncpg(self) -> str:
        """The same for asyncpg."""
        return _without(self.libpq, _LIBPQ_ONLY)

    @property
    def shown(self) -> str:
        return redact(self.libpq.partition("?")[0])

    @property
    def location(self) -> tuple[Hashable, ...]:
        """The servers and the database, however they were named."""
        parts = urlsplit(self.libpq)
        options = dict(parse_qsl(parts.query))
        given = parts.netloc.rpartition("@")[2].split(",")
        hosts = options["host"].split(",") if "host" in options else [_host(each) for each in given]
        ports = options["port"].split(",") if "port" in options else [_port(each) for each in given]
        if len(ports) < len(hosts):
            ports = ports[:1] * len(hosts)
        name = options.get("dbname") or unquote(parts.path[1:]) or unquote(parts.username or "")
        servers = [(canonical_host(h), p or "5432") for h, p in zip(hosts, ports, strict=False)]
        return *sorted(servers), name, options.get("options")

    def scrub(self, text: str) -> str:
        """The text without the password, should a driver have quoted it."""
        return scrub(self.libpq, text)


def split(url: str) -> tuple[str, dict[str, Any]]:
    """A URL without our own parameters, and these as options of the store."""
    options: dict[str, Any] = {}
    for pair in url.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if name in _OWN:
            options |= _option(name, unquote(value))
    return _without(url, frozenset(_OWN)), options


def named(url: str) -> str:
    """The URL with a name for `pg_stat_activity`, unless it has one."""
    base, _, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair]
    if not any(pair.startswith("application_name=") for pair in pairs):
        pairs.append("application_name=oncekey")
    return f"{base}?{'&'.join(pairs)}"


def _host(given: str) -> str:
    """The host of `host:port` or `[::1]:port`."""
    return given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]


def _port(given: str) -> str:
    return given.rpartition("]")[2].rpartition(":")[2] if ":" in given else ""


def _without(url: str, names: frozenset[str]) -> str:
    # Kept letter for letter: libpq does not read "+" as a space, as Python's parsers do.
    base, _, query = url.partition("?")
    kept = [pair for pair in query.split("&") if pair and pair.partition("=")[0] not in names]
    return f"{base}?{'&'.join(kept)}" if kept else base


def _option(name: str, value: str) -> dict[str, Any]:
    if name == "pgbouncer" and value in ("true", "false"):
        return {name: value == "true"}
    if name == "allow":
        return {name: value.split(",")}
    if name.endswith("_s"):
        try:
            return {name: float(value)}
        except ValueError:
            pass  # told below
    raise Misuse(
        f"{name}={value} is not understood. There are pgbouncer=true, "
        "allow=unsafe-durability,few-connections, timeout_s=5 and connect_timeout_s=5"
    )
