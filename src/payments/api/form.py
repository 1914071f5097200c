"""Forms in bracket notation, as Stripe's libraries send them, parsed into nested values.

metadata[order]=17&expand[]=customer&items[0][price]=p_1
{"metadata": {"order": "17"}, "expand": ["customer"], "items": [{"price": "p_1"}]}
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

PAIRS_MAX = 1000
DEPTH_MAX = 6
_NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_PART = re.compile(r"\[([^\[\]]*)\]")
_INDEX = re.compile(r"[0-9]{1,4}")
_MAPS = frozenset({"metadata"})
"""Parameters whose names are up to the client, even numbers."""


class FormError(Exception):
    """The form is invalid; `param` says where."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def parse(encoded: bytes) -> dict[str, Any]:
    """Parse a form or a query."""
    try:
        pairs = parse_qsl(
            encoded.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(encoded),
            errors="strict",
            max_num_fields=PAIRS_MAX,
        )
    except ValueError:
        raise FormError(
            "Invalid form: expected name=value pairs in percent-encoded UTF-8, joined by '&', "
            f"at most {PAIRS_MAX} of them."
        ) from None
    root: dict[str, Any] = {}
    for name, value in pairs:
        _put(root, name, value)
    values: dict[str, Any] = _with_lists(root)
    return values


def _put(root: dict[str, Any], name: str, value: str) -> None:
    write_rows = _NAME.fullmatch(name)
    parts = [write_rows[1], *_PART.findall(write_rows[2])] if write_rows else []
    if not 1 <= len(parts) <= DEPTH_MAX:
        raise FormError(f"Invalid parameter name: {name[:100]!r}.", name[:100])
    place = root
    for part in parts[:-1]:
        place = place.setdefault(part or str(len(place)), {})
        if not isinstance(place, dict):
            raise FormError(f"{name[:100]!r} is given both as a value and with brackets.", parts[0])
    last = parts[-1] or str(len(place))
    if last in place:
        raise FormError(f"{name[:100]!r} is given twice.", parts[0])
    place[last] = value


def _with_lists(value: Any) -> Any:
    """Turn dicts numbered from 0 on into lists."""
    if not isinstance(value, dict):
        return value
    values = {name: inner if name in _MAPS else _with_lists(inner) for name, inner in value.items()}
    if values and all(_INDEX.fullmatch(name) for name in values):
        numbers = sorted(values, key=int)
        if [int(name) for name in numbers] == list(range(len(numbers))):
            return [values[name] for name in numbers]
    return values
