"""Identity: whether two stores keep the same records, however each of them was named."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from oncekey.stores.base import Store
from oncekey.stores.wrapper import Around

_HERE = frozenset({"localhost", "127.0.0.1", "::1", ""})


def identity_of(store: Store) -> Hashable:
    """Equal for stores of the same records: the same file, database, prefix or table. Names of
    hosts are compared as they are, so two names of one server are taken for two.
    """
    if isinstance(store, Around):  # a cache changes nothing; what is sealed lies under other ids
        inner = identity_of(store.inner)
        return inner if store.is_cache else (type(store).__name__, inner)
    place = _PLACES.get(store.name, _object)
    try:
        return (store.name, place(store))
    except AttributeError:  # another store of that name
        return _object(store)


def _object(store: Any) -> Hashable:
    return id(store)


def _file(store: Any) -> Hashable:
    return str(os.path.realpath(store.place.path))


def _postgres(store: Any) -> Hashable:
    parts = urlsplit(store.address.libpq)
    options = dict(parse_qsl(parts.query))
    given = parts.netloc.rpartition("@")[2].split(",")
    hosts = options["host"].split(",") if "host" in options else [_host(each) for each in given]
    ports = options["port"].split(",") if "port" in options else [_port(each) for each in given]
    if len(ports) < len(hosts):
        ports = ports[:1] * len(hosts)
    name = options.get("dbname") or unquote(parts.path[1:]) or unquote(parts.username or "")
    places = [(_here(h), p or "5432") for h, p in zip(hosts, ports, strict=False)]
    return (*sorted(places), name, options.get("options"))


def _mysql(store: Any) -> Hashable:
    where = store.address.driver()
    place = where.get("unix_socket") or (_here(where["host"]), where["port"])
    return (place, where["database"])


def _redis(store: Any) -> Hashable:
    options = store.endpoint.options
    if store.name != "redis":  # of several servers: as they are named
        return (repr(store), options["db"])
    place = options.get("path") or (_here(str(options["host"])), options["port"])
    return (place, options["db"], store.prefix)


def _table(store: Any) -> Hashable:
    return repr(store)


def _host(given: str) -> str:
    """Of `host:port` or `[::1]:port`."""
    return given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]


def _port(given: str) -> str:
    return given.rpartition("]")[2].rpartition(":")[2] if ":" in given else ""


def _here(host: str) -> str:
    return "localhost" if host.lower() in _HERE else host.lower().rstrip(".")


_PLACES: dict[str, Callable[[Any], Hashable]] = {
    "sqlite": _file,
    "postgres": _postgres,
    "mysql": _mysql,
    "redis": _redis,
    "redis cluster": _redis,
    "redis sentinel": _redis,
    "dynamodb": _table,
}
