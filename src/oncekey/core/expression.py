"""Expressions of a call's arguments: what a key or a tenant is made from.

Either a text with fields, `"{order.id}/pay"`, or a function that takes some of the call's arguments
by their names, `lambda order: order.id`. Both are checked when they are written, and again with
every call: a part that is None, empty or an object without a text of its own would give the same
key to different calls, or another key to every retry.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from string import Formatter
from typing import Any
from uuid import UUID

from oncekey.errors import Misuse

Source = str | Callable[..., Any]

_NAME = re.compile(r"[^\W\d]\w*")
_STABLE = (int, Decimal, UUID, date, time)
_formatter = Formatter()


class Expression:
    """A text made from arguments. `what` is what it is called in messages: `key=`."""

    def __init__(self, what: str, source: Source, parameters: Mapping[str, Any]) -> None:
        self._shown = f"{what}={source!r}" if isinstance(source, str) else f"{what}=…"
        self._source = source
        self._wants: tuple[str, ...] = ()
        if isinstance(source, str):
            self._wants = self._fields_of(source)
        elif callable(source):
            self._wants = self._parameters_of(source)
        else:
            raise Misuse(
                f"{what}={source!r}: write a text with fields, such as {what}='{{order_id}}', or a "
                "function of arguments"
            )
        for name in self._wants:
            if name not in parameters:
                known = ", ".join(parameters) or "none at all"
                raise Misuse(f"{self._shown} wants {name!r}; the function's arguments are: {known}")

    @property
    def constant(self) -> bool:
        """Whether it is a text that every call gets alike."""
        return isinstance(self._source, str) and not self._wants

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """The text for a call with these arguments."""
        if isinstance(self._source, str):
            return "".join(
                literal + ("" if name is None else self._part(name, spec or "", arguments))
                for literal, name, spec, _ in _formatter.parse(self._source)
            )
        made = self._source(**{name: arguments[name] for name in self._wants})
        return self._text(made, "it")

    def _part(self, name: str, spec: str, arguments: Mapping[str, Any]) -> str:
        try:
            found, _ = _formatter.get_field(name, (), arguments)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise Misuse(f"{self._shown}: there is no {name} in this call ({error!r})") from error
        return self._text(found, name, spec)

    def _text(self, found: Any, name: str, spec: str = "") -> str:
        if isinstance(found, enum.Enum):
            found = found.value
        if isinstance(found, str) and found.strip():
            return format(found, spec)
        if isinstance(found, _STABLE) and not isinstance(found, bool):
            return format(found, spec)
        if found is None or isinstance(found, str):
            gave = "None" if found is None else "empty"
            raise Misuse(
                f"{self._shown}: {name} is {gave} in this call, which names nothing: calls that "
                "have nothing in common would be taken for one. Make the id before the first try"
            )
        raise Misuse(
            f"{self._shown}: {name} is a {type(found).__name__} in this call, whose text is not "
            "the same for every retry; use an id of it: text, an integer, a UUID or a date"
        )

    def _fields_of(self, source: str) -> tuple[str, ...]:
        try:
            parsed = list(_formatter.parse(source))
        except ValueError as error:
            raise Misuse(f"{self._shown} cannot be read: {error}") from error
        names = []
        for _, name, spec, conversion in parsed:
            if name is None:
                continue
            root = _NAME.match(name)
            if root is None or conversion or "{" in (spec or ""):
                raise Misuse(f"{self._shown}: name an argument in each field, such as {{order.id}}")
            names.append(root[0])
        return tuple(names)

    def _parameters_of(self, source: Callable[..., Any]) -> tuple[str, ...]:
        try:
            parameters = inspect.signature(source).parameters.values()
        except (TypeError, ValueError) as error:
            raise Misuse(
                f"{self._shown}: use a lambda that names the arguments it takes"
            ) from error
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in parameters):
            raise Misuse(f"{self._shown} must name the arguments it takes: no *, ** or / there")
        return tuple(p.name for p in parameters)
