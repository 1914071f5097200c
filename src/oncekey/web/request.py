"""A request, as the tenant function and the edge see it, whichever server brought it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from oncekey.core.value import value

GUARDED = "oncekey.guarded"
"""In the scope or environ of a request that is guarded already."""


class Headers(Mapping[str, str]):
    """Header lines, whose names are lower case; a name that comes twice reads as its first line."""

    __slots__ = ("lines",)

    def __init__(self, lines: Sequence[tuple[bytes, bytes]]) -> None:
        self.lines = lines

    def all(self, name: str) -> list[bytes]:
        """The values of all lines of that name."""
        wanted = name.lower().encode("latin-1")
        return [content for line, content in self.lines if line == wanted]

    def first(self, name: bytes) -> bytes:
        """The value of the first line of that (lower-case) name; empty if there is none."""
        for line, content in self.lines:
            if line == name:
                return content
        return b""

    def __getitem__(self, name: str) -> str:
        values = self.all(name)
        if not values:
            raise KeyError(name)
        return values[0].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return iter({line.decode("latin-1"): None for line, _ in self.lines})

    def __len__(self) -> int:
        return len({line for line, _ in self.lines})


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
    """The path below `root`; all of it where it is not below it."""
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
