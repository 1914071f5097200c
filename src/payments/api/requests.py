"""Parse a request's form, JSON or query into parameters, or an error that names the wrong one."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NoReturn, TypeVar

from fastapi import Depends, Request
from pydantic import ValidationError

from payments.access.middleware import account_of
from payments.api import form
from payments.api.errors import StripeError, invalid
from payments.api.parameters import Nothing, Parameters

P = TypeVar("P", bound=Parameters)

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""What databases do not accept in text."""
_DEPTH_MAX = 10


def tenant_of(request: Request) -> str:
    """Return the tenant of a request, such as `acct_…/test`."""
    return account_of(request.scope).tenant


def body_as(model: type[P]) -> Callable[[Request], Awaitable[P]]:
    """Return a FastAPI dependency that parses the body."""

    async def read(request: Request) -> P:
        return validate(
            model, parse_body(request.headers.get("content-type", ""), await request.body())
        )

    return read


def query_as(model: type[P]) -> Callable[[Request], Awaitable[P]]:
    """Return a FastAPI dependency that parses the query."""

    async def read(request: Request) -> P:
        return validate(model, _form(request.scope["query_string"]))

    return read


NoQuery = Annotated[Nothing, Depends(query_as(Nothing))]
"""The parameters of a request for a single object."""


def refuse_query(encoded: bytes) -> None:
    """Raise if a POST has parameters in its URL."""
    if encoded:
        name = next(iter(_form(encoded)), "")
        raise invalid("Parameters of a POST belong into its body, not into the URL.", name)


def parse_body(content_type: str, body: bytes) -> dict[str, Any]:
    """Parse a body by its content type."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("application/x-www-form-urlencoded", "") or not body:
        return _form(body)
    if kind == "application/json":
        return _json(body)
    raise invalid(
        f"Content-Type {kind[:60]!r} is not understood: send application/x-www-form-urlencoded "
        "or application/json.",
        None,
    )


def _form(encoded: bytes) -> dict[str, Any]:
    try:
        values = form.parse(encoded)
    except form.FormError as error:
        raise invalid(str(error), error.param) from None
    _refuse_unstorable(values, None, 0)
    return values


def _json(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise invalid("Invalid JSON: the body cannot be read.", None) from None
    if not isinstance(values, dict):
        raise invalid("Invalid JSON: the body must be an object.", None)
    _refuse_unstorable(values, None, 0)
    return values


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _refuse_unstorable(value: Any, param: str | None, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise invalid("Parameters are nested too deeply.", param)
    if isinstance(value, str):
        if _UNSTORABLE.search(value):
            raise invalid("Text must be UTF-8 without NUL characters.", param)
    elif isinstance(value, dict):
        for name, inner in value.items():
            _refuse_unstorable(name, param, depth + 1)
            _refuse_unstorable(inner, f"{param}[{name}]" if param else name, depth + 1)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _refuse_unstorable(inner, f"{param}[{place}]", depth + 1)


def validate(model: type[P], values: dict[str, Any]) -> P:
    """Validate parameters against their model."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True, include_input=False)
        raise _error_for(found, values) from None


_CODES = {
    "extra_forbidden": "parameter_unknown",
    "missing": "parameter_missing",
    "string_too_long": "parameter_invalid_string",
    "parameter_invalid_integer": "parameter_invalid_integer",
    "incorrect_number": "incorrect_number",
}
_LIMITS = {"greater_than_equal": "amount_too_small", "less_than_equal": "amount_too_large"}


def _error_for(found: list[Any], values: dict[str, Any]) -> StripeError:
    """Return the most relevant error: of alternatives, that of the one the client meant."""
    first = max(
        found, key=lambda each: (_match_depth(each["loc"], values), not _is_type_error(each))
    )
    kind = first["type"]
    param = _param(first["loc"], values, is_missing=kind == "missing")
    if kind == "extra_forbidden":
        message = f"Received unknown parameter: {param}"
    elif kind == "missing":
        message = f"Missing required param: {param}."
    else:
        message = f"Invalid {param}: {first['msg']}" if param else str(first["msg"])
    codes = _CODES | _LIMITS if param in ("amount", "amount_to_capture") else _CODES
    return invalid(message[:500], param, codes.get(kind, "parameter_invalid"))


def _match_depth(location: tuple[Any, ...], values: Any) -> int:
    """Count how many parts of an error's location exist in the values."""
    depth = 0
    for part in location:
        if _has(values, part):
            values, depth = values[part], depth + 1
    return depth


def _is_type_error(found: Any) -> bool:
    """Whether the error is a wrong type, such as text instead of an object."""
    return found["type"] in ("string_type", "model_type", "dict_type")


def _has(values: Any, part: Any) -> bool:
    if isinstance(values, list):
        return isinstance(part, int) and part < len(values)
    return isinstance(values, dict) and part in values


def _param(location: tuple[Any, ...], values: Any, *, is_missing: bool) -> str | None:
    """Write an error's location in bracket notation, without the names of alternatives."""
    parts = []
    for place, part in enumerate(location):
        if _has(values, part):
            values = values[part]
            parts.append(str(part))
        elif is_missing and place == len(location) - 1:
            parts.append(str(part))
    return parts[0] + "".join(f"[{part}]" for part in parts[1:]) if parts else None
