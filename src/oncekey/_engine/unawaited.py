"""Handed: functions that are handed over to be run, and what a handler is handed to await.

A coroutine that nobody awaits does nothing, and Python only warns of that, later: the step would
not run, and its request be answered as if it had.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

from oncekey.errors import Misuse

T = TypeVar("T")


def must_run_when_called(function: Any) -> None:
    """`Misuse` for what cannot be called; and for a generator: to call it does nothing, and that
    would be recorded as done.
    """
    if not callable(function):
        raise Misuse(
            f"what is to run is a function, not {type(function).__name__}: give it uncalled, and "
            "its arguments behind it"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misuse(
            f"{getattr(function, '__qualname__', function)} is a generator: its results come one "
            "by one and cannot be kept as one. Return a list"
        )


def not_awaitable(result: T) -> T:
    """What a function gave that was called where nobody awaits. Raises `Misuse` for a coroutine."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise Misuse("what was called gave a coroutine, which did not run: use the awaited form of it")


class Handed:
    """Coroutines, each with what it is; those that have begun are let go."""

    __slots__ = ("_handed",)

    def __init__(self) -> None:
        self._handed: list[tuple[str, Coroutine[Any, Any, Any]]] = []

    def __len__(self) -> int:
        return len(self._handed)

    def out(self, what: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The same, to be awaited."""
        self._handed = [*self._not_begun(), (what, work)]
        return work

    def check(self, operation: str) -> None:
        """Raise `Misuse` for what has not begun: whoever was to await it has ended."""
        if waiting := self._not_begun():
            for _, work in waiting:
                work.close()
            what = ", ".join(what for what, _ in waiting)
            raise Misuse(
                f"{what} of {operation} was not awaited, and did not run: write await before it, "
                "or in a handler that blocks step_sync(…) and complete_in_sync(…)"
            )

    def _not_begun(self) -> list[tuple[str, Coroutine[Any, Any, Any]]]:
        """One that was called off before it began is over too: that was meant."""
        created = inspect.CORO_CREATED
        return [each for each in self._handed if inspect.getcoroutinestate(each[1]) == created]
