"""Versions: functions that bring a kept answer from one schema version to another.

A record keeps its answer as the release gave it that ran the handler. When a later release answers
in another shape, it registers how the old shape becomes the new one. What is kept is never
rewritten: each replay converts anew. So a function must be pure: the same answer in, the same bytes
out (P3), nothing asked of a clock, a database or chance.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from oncekey._core.record import Answer
from oncekey.errors import Misuse

VERSION_MAX = 2**31 - 1
"""What every store can keep."""

Upcast = Callable[[Answer], Answer]
U = TypeVar("U", bound=Upcast)


class Versions:
    """The schema versions of an answer, and the ways between them.

    >>> versions = Versions()
    >>> @versions.upcast(3, 4)
    ... def _(answer: Answer) -> Answer:
    ...     return dataclasses.replace(answer, body=answer.body.replace(b"name", b"title"))
    """

    def __init__(self) -> None:
        self._upcasts: dict[int, dict[int, Upcast]] = {}

    def upcast(self, old: int, new: int) -> Callable[[U], U]:
        """Register how an answer of version `old` becomes one of version `new`.

        Downwards too, for old processes that meet new answers while a deployment rolls.
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
        """The shortest way, None if there is none. Of equally short ones every process takes the
        same, in whatever order they were registered.
        """
        ways: dict[int, list[Upcast]] = {old: []}
        ahead = deque([old])
        while ahead and new not in ways:
            here = ahead.popleft()
            for version, function in sorted(self._upcasts.get(here, {}).items()):
                if version not in ways:
                    ways[version] = [*ways[here], function]
                    ahead.append(version)
        return ways.get(new) or None

    def convert(self, answer: Answer, old: int, new: int) -> Answer:
        """An answer of version `old` as version `new` gives it; raises what a function raises."""
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
