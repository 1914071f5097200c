"""Expressions over a call's arguments, from which a key or a tenant is made.

Either a text with fields, `"{order.id}/pay"`, or a function that takes some of the call's arguments
by name, `lambda order: order.id`. Both are checked when they are written and again with every call:
a part that is None, empty or an object without a stable text would give the same key to different
calls, or another key to every retry. So would parts that contain a separator: `"{shop}/{order}"`
must differ between "a/b" and "c", and "a" and "b/c".
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
_STABLE = (str, int, Decimal, UUID, date, time)
_formatter = Formatter()


class ArgumentFunction:
    """Calls a function with the arguments that it names."""

    def __init__(
        self, what: str, function: Callable[..., Any], parameters: Mapping[str, Any]
    ) -> None:
        self._function = function
        try:
            wanted = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise Misuse(
                f"{what}=… cannot be read: use a lambda that names its arguments"
            ) from error
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in wanted):
            raise Misuse(f"{what}=… must name the arguments that it takes, without *, ** or /")
        self._names = [p.name for p in wanted]
        _check_names(f"{what}=…", self._names, parameters)

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        return self._function(**{name: arguments[name] for name in self._names})


class Expression:
    """A text made from arguments. `what` names it in messages: `key`."""

    def __init__(self, what: str, source: Source, parameters: Mapping[str, Any]) -> None:
        self._shown = f"{what}={source!r}" if isinstance(source, str) else f"{what}=…"
        self._parts: list[tuple[str, str | None, str]] = []
        self._between: list[str] = []
        self._chosen: ArgumentFunction | None = None
        if isinstance(source, str):
            self._parts = self._parse(source)
            names = [_NAME.match(name) for _, name, _ in self._parts if name is not None]
            _check_names(self._shown, [found[0] for found in names if found], parameters)
            self._between = [literal for literal, name, _ in self._parts[1:] if name is not None]
        elif callable(source):
            self._chosen = ArgumentFunction(what, source, parameters)
        else:
            raise Misuse(
                f"{what}={source!r}: write a text with fields, such as {what}='{{order_id}}', or a "
                "function of arguments"
            )

    @property
    def constant(self) -> bool:
        """Whether every call gets the same text."""
        return self._chosen is None and all(name is None for _, name, _ in self._parts)

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Return the text for a call with these arguments."""
        if self._chosen is not None:
            return self._text(self._chosen(arguments), "it")
        text, fields = "", []
        for literal, name, spec in self._parts:
            text += literal
            if name is not None:
                fields.append(self._part(name, spec, arguments))
                text += fields[-1]
        return text + self._lengths(fields)

    def _lengths(self, fields: list[str]) -> str:
        """Return the lengths of the fields if their text does not show where each ends."""
        between = set("".join(self._between))
        if "" in self._between or any(not between.isdisjoint(field) for field in fields):
            return f"({','.join(str(len(field)) for field in fields)})"
        return ""

    def _parse(self, source: str) -> list[tuple[str, str | None, str]]:
        try:
            parsed = list(_formatter.parse(source))
        except ValueError as error:
            raise Misuse(f"{self._shown} cannot be read: {error}") from error
        if not parsed:
            raise Misuse(
                f"{self._shown} is empty: write a text with fields, such as '{{order_id}}'"
            )
        for _, name, spec, conversion in parsed:
            if name is not None and (not _NAME.match(name) or conversion or "{" in (spec or "")):
                raise Misuse(f"{self._shown}: name an argument in each field, such as {{order.id}}")
        parts, before = [], ""
        for literal, name, spec, _ in parsed:
            before += literal  # "{{" ends a literal, and no field follows
            if name is not None:
                parts.append((before, name, spec or ""))
                before = ""
        return [*parts, (before, None, "")]

    def _part(self, name: str, spec: str, arguments: Mapping[str, Any]) -> str:
        try:
            found, _ = _formatter.get_field(name, (), arguments)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise Misuse(f"{self._shown}: there is no {name} in this call ({error!r})") from error
        return self._text(found, name, spec)

    def _text(self, found: Any, name: str, spec: str = "") -> str:
        if isinstance(found, enum.Enum):
            found = found.value
        if isinstance(found, _STABLE) and not isinstance(found, bool):
            try:
                found = format(found, spec)
            except ValueError as error:
                raise Misuse(f"{self._shown}: {name} cannot be written so ({error})") from error
        if found is None or (isinstance(found, str) and not found.strip()):
            gave = "None" if found is None else "empty"
            raise Misuse(
                f"{self._shown}: {name} is {gave} in this call, which names nothing: different "
                "calls would be taken for one. Make the id before the first try"
            )
        if isinstance(found, str):
            return found
        raise Misuse(
            f"{self._shown}: {name} is a {type(found).__name__} in this call, whose text is not "
            "the same for every retry; use its id: text, an integer, a UUID or a date"
        )


def _check_names(shown: str, wanted: list[str], parameters: Mapping[str, Any]) -> None:
    for name in wanted:
        if name not in parameters:
            known = ", ".join(parameters) or "none at all"
            raise Misuse(f"{shown} wants {name!r}; the function's arguments are: {known}")
