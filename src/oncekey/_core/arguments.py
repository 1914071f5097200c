"""The canonical form of a call's arguments, to tell a repeated call from another one.

Values of JSON types are compared by value, and so are bytes, numbers, dates, ids, addresses, sets,
enumerations, dataclasses and the models of pydantic and attrs. Anything else (a session, a client)
counts by its type alone: another session does not make it another call.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections import deque
from collections.abc import Mapping, Set
from datetime import date, time, timedelta, tzinfo
from numbers import Number
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from oncekey._core.fingerprint import Fingerprint
from oncekey._core.framing import as_bytes, frame
from oncekey.errors import Misuse

VERSION = 1
"""Raise it when equal calls would get other digests. Records live longer than releases."""

_TEXTS = (Number, UUID, date, time, timedelta, tzinfo, PurePath, range)
_TEXTS_OF = ("ipaddress", "pydantic.networks")
"""Modules whose objects all equal their text."""


def canonical(arguments: Any) -> bytes:
    """Return equal bytes for equal arguments: JSON, in ASCII."""
    try:
        text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(
            f"the arguments cannot be compared with those of an earlier call ({error}): pass text, "
            "numbers, lists, dicts with names as keys, or dataclasses of such"
        ) from error
    return text.encode("ascii")


def fingerprint(arguments: bytes) -> Fingerprint:
    """Return the fingerprint of a call, from its canonical arguments."""
    digest = hashlib.sha256(frame((b"oncekey/arguments/%d" % VERSION, arguments))).digest()
    return Fingerprint(VERSION, digest)


def payload(body: bytes) -> Fingerprint:
    """Return the fingerprint of a message, from its bytes."""
    digest = hashlib.sha256(frame((b"oncekey/payload/%d" % VERSION, body))).digest()
    return Fingerprint(VERSION, digest)


def _plain(argument: Any) -> Any:
    """Convert to JSON types, with the type's name, so that different things never look the same."""
    kind = f"{type(argument).__module__}.{type(argument).__qualname__}"
    if isinstance(argument, _TEXTS) or type(argument).__module__ in _TEXTS_OF:
        return [kind, str(argument)]
    if isinstance(argument, bytes | bytearray | memoryview):
        return ["bytes", bytes(argument).hex()]
    if isinstance(argument, enum.Enum):
        return [kind, argument.name]
    if isinstance(argument, Mapping):
        return dict(argument)
    if isinstance(argument, Set):
        return [kind, sorted(canonical(member).decode() for member in argument)]
    if isinstance(argument, deque):
        return [kind, list(argument)]
    fields = _fields(argument)
    return f"<{kind}>" if fields is None else [kind, fields]


def _fields(argument: Any) -> Any:
    """Return the fields of a dataclass or model, including hidden ones; None for anything else."""
    if isinstance(argument, type):
        return None
    if dataclasses.is_dataclass(argument):
        return {f.name: getattr(argument, f.name) for f in dataclasses.fields(argument)}
    if hasattr(argument, "__attrs_attrs__"):
        return {f.name: getattr(argument, f.name) for f in argument.__attrs_attrs__}
    if hasattr(argument, "__pydantic_validator__"):
        fields = {name: getattr(argument, name) for name in type(argument).model_fields}
        return [fields, argument.model_extra]
    if hasattr(argument, "get_secret_value"):
        return argument.get_secret_value()
    return vars(argument) if isinstance(argument, SimpleNamespace) else None


def digest(tag: bytes, name: str, arguments: Any) -> bytes:
    """Return a digest that changes with the arguments of something named."""
    return hashlib.sha256(frame((tag, as_bytes(name), canonical(arguments)))).digest()[:16]
