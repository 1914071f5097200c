"""Versions: functions that convert a stored response from one schema version to another.

A record stores its response as the release that ran the handler gave it. A later release that
answers in another shape registers how to convert the old one. Stored responses are never rewritten,
because a migration would have to reach every store, and during a rolling deployment the old release
still replays them: each replay converts again. So the functions must be pure: the same response in,
the same bytes out (P3), with no clock, database or randomness.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from oncekey._core.record import Answer
from oncekey.errors import Misuse

VERSION_MAX = 2**31 - 1
"""The largest that every store can keep."""

Upcast = Callable[[Answer], Answer]
U = TypeVar("U", bound=Upcast)


class Versions:
    """The schema versions of a response, and the conversions between them.

    >>> versions = Versions()
    >>> @versions.upcast(3, 4)
    ... def _(answer: Answer) -> Answer:
    ...     return dataclasses.replace(answer, body=answer.body.replace(b"name", b"title"))
    """

    def __init__(self) -> None:
        self._upcasts: dict[int, dict[int, Upcast]] = {}

    def upcast(self, old: int, new: int) -> Callable[[U], U]:
        """Register a function that converts a response from version `old` to version `new`.

        Also downwards, for old processes that read new responses during a rolling deployment.
        """
        check_version(old, "upcast")
        check_version(new, "upcast")
        if old == new or new in self._upcasts.get(old, {}):
            raise Misuse(
                f"upcast({old}, {new}): register one function for each pair of different versions"
            )

        def register(function: U) -> U:
            if inspect.iscoroutinefunction(function):
                raise Misuse(
                    f"upcast({old}, {new}) takes a plain function from an Answer to an Answer: "
                    "it runs on every replay and must not wait for anything"
                )
            self._upcasts.setdefault(old, {})[new] = function
            return function

        return register

    def path(self, old: int, new: int) -> list[Upcast] | None:
        """Return the shortest chain of functions, None if there is none.

        Of equally short ones every process takes the same, in whatever order they were registered.
        """
        chains: dict[int, list[Upcast]] = {old: []}
        ahead = deque([old])
        while ahead and new not in chains:
            here = ahead.popleft()
            for version, function in sorted(self._upcasts.get(here, {}).items()):
                if version not in chains:
                    chains[version] = [*chains[here], function]
                    ahead.append(version)
        return chains.get(new) or None

    def convert(self, answer: Answer, old: int, new: int) -> Answer:
        """Convert a response from version `old` to `new`; raises what a function raises."""
        for function in self.path(old, new) or ():
            converted: object = function(answer)
            if not (isinstance(converted, Answer) and isinstance(converted.body, bytes)):
                raise TypeError(
                    f"the upcast {getattr(function, '__qualname__', function)} must return an "
                    f"Answer with a body of bytes, not {type(converted).__name__}"
                )
            answer = converted
        return answer


def check_version(version: object, what: str) -> None:
    """Raise `Misuse` unless this can be a schema version."""
    if type(version) is not int or not 0 <= version <= VERSION_MAX:
        raise Misuse(f"{what}: a schema version is a whole number from 0, not {version!r}")
