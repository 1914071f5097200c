"""A request, as the tenant function and the edge see it under any server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Claim
from oncekey._core.values import value
from oncekey._engine import attempt as attempts
from oncekey._engine.registry import Registry
from oncekey.errors import Misuse

_WITHIN = "one IdempotencyMiddleware within another; choose one of them for this route"

GUARDED = "oncekey.guarded"
"""In the scope or environ of a request that is guarded already: the store's registry and the
record's id, if there is a record.
"""


def check_guarded_once(around: object, registry: Registry, claim: Claim) -> None:
    """Raise `Misuse` where the middleware around this one has claimed the same record: a request
    would wait for itself. `around` is what stands under `GUARDED`.
    """
    if around == (registry, claim.id):
        raise guarded_twice(claim.operation, _WITHIN)


def check_refused_once(around: object, claim: Claim, problem: Problem) -> None:
    """The same once it is known that a request of this key runs: that is this one, where it was
    claimed outside. Two names of one store may be taken for two stores.
    """
    if isinstance(around, tuple) and around[1] == claim.id and problem.kind is Kind.IN_FLIGHT:
        raise guarded_twice(claim.operation, _WITHIN)


def guarded_twice(operation: str, by: str) -> Misuse:
    """Make the error for that. Nothing has run: release the record that was claimed outside."""
    if (outside := attempts.current_or_none()) is not None:
        outside.no_effect()
    return Misuse(f"{operation} is guarded twice, by {by}")


class Headers(Mapping[str, str]):
    """Header lines, whose names are lower case; a name that comes twice reads as its first line."""

    __slots__ = ("first", "lines")

    def __init__(self, lines: Sequence[tuple[bytes, bytes]]) -> None:
        self.lines = lines
        self.first: dict[bytes, bytes] = dict(reversed(lines))
        """The value of the first line of each name."""

    def all(self, name: str) -> list[bytes]:
        """Return the values of all lines of this name."""
        wanted = name.lower().encode("latin-1")
        return [content for line, content in self.lines if line == wanted]

    def __getitem__(self, name: str) -> str:
        try:
            return self.first[name.lower().encode("latin-1")].decode("latin-1")
        except KeyError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter({line.decode("latin-1"): None for line, _ in self.lines})

    def __len__(self) -> int:
        return len(self.first)


@value
class Request:
    """Everything but the body."""

    method: str
    path: str
    """The concrete path, decoded."""
    query: bytes
    headers: Headers
    scope: Mapping[str, Any] = field(default_factory=dict)
    """The ASGI scope or WSGI environ, with what earlier middleware left there."""
    root: str = ""
    """Where the application is mounted: the beginning of `path` that is not its own."""


def within(root: str, path: str) -> str:
    """Return the path below `root`; the whole path if it is not below it."""
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
