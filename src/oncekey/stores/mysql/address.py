"""Where a MySQL or MariaDB is: what of a URL is the drivers', what is ours, what may be shown."""

from __future__ import annotations

import ssl
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from oncekey.errors import Misuse
from oncekey.stores.urls import canonical_host, redact, scrub

_PORT = 3306


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, and where it leads."""

    url: str
    unix_socket: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"  # error trackers keep what stands in local names

    @property
    def shown(self) -> str:
        return redact(self.url)

    def driver(self) -> dict[str, Any]:
        """The arguments that both drivers take."""
        parts = urlsplit(self.url)
        given: dict[str, Any] = {
            "host": parts.hostname or "localhost",
            "port": parts.port or _PORT,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path[1:]),
        }
        if self.unix_socket is not None:
            given["unix_socket"] = self.unix_socket
        if self.tls is not None:
            given["ssl"] = self.tls
        return given

    @property
    def location(self) -> tuple[Hashable, ...]:
        """The server and the database, however they were named."""
        where = self.driver()
        server = where.get("unix_socket") or (canonical_host(where["host"]), where["port"])
        return server, where["database"]

    def scrub(self, text: str) -> str:
        """The text without the password, should a driver have quoted it."""
        return scrub(self.url, text)


def read(url: str) -> tuple[Address, dict[str, Any]]:
    """The address that a URL names, and the rest of it as options of the store."""
    base, _, query = url.partition("?")
    parts = urlsplit(base)
    if not parts.username or not parts.path[1:]:
        raise Misuse(
            f"{redact(base)} names no {'database' if parts.username else 'user'}: write "
            "mysql://user:password@host/database"
        )
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        options |= _option(name, value)
    place = {name: options.pop(name) for name in ("unix_socket", "tls") if name in options}
    return Address(base, **place), options


def _option(name: str, value: str) -> dict[str, Any]:
    if name == "allow":
        return {name: value.split(",")}
    if name == "unix_socket" and value:
        return {name: value}
    if name == "tls" and value == "true":
        return {"tls": ssl.create_default_context()}
    if name == "tls_ca":
        try:
            return {"tls": ssl.create_default_context(cafile=value)}
        except (OSError, ssl.SSLError) as error:
            raise Misuse(f"tls_ca={value} cannot be read as certificates: {error}") from error
    if name in ("timeout_s", "connect_timeout_s"):
        try:
            return {name: float(value)}
        except ValueError:
            pass  # told below
    raise Misuse(
        f"{name}={value} is not understood. There are "
        "allow=unsafe-durability,small-packets,few-connections, tls=true, tls_ca=FILE, "
        "unix_socket=PATH, timeout_s=5 and connect_timeout_s=5"
    )
