"""Reading a request: its form, JSON or query becomes parameters, or an error that names the one
that is wrong.
"""

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
"""What no database takes as text."""
_DEPTH_MAX = 10


def tenant_of(request: Request) -> str:
    """Whose request this is: `acct_…/test`."""
    return account_of(request.scope).tenant


def body_as(model: type[P]) -> Callable[[Request], Awaitable[P]]:
    """A dependency: the parameters in the body."""

    async def read(request: Request) -> P:
        return check(
            model, parse_body(request.headers.get("content-type", ""), await request.body())
        )

    return read


def query_as(model: type[P]) -> Callable[[Request], Awaitable[P]]:
    """A dependency: the parameters in the query."""

    async def read(request: Request) -> P:
        return check(model, _form(request.scope["query_string"]))

    return read


NoQuery = Annotated[Nothing, Depends(query_as(Nothing))]
"""The parameters of a request that only looks at one object."""


def refuse_query(encoded: bytes) -> None:
    """A POST says all that it says in its body."""
    if encoded:
        name = next(iter(_form(encoded)), "")
        raise invalid("Parameters of a POST belong into its body, not into the URL.", name)


def parse_body(content_type: str, body: bytes) -> dict[str, Any]:
    """What a body says."""
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
        said = form.parse(encoded)
    except form.FormError as error:
        raise invalid(str(error), error.param) from None
    _refuse_unstorable(said, None, 0)
    return said


def _json(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise invalid("Invalid JSON: the body cannot be read.", None) from None
    if not isinstance(said, dict):
        raise invalid("Invalid JSON: the body must be an object.", None)
    _refuse_unstorable(said, None, 0)
    return said


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


def check(model: type[P], said: dict[str, Any]) -> P:
    """The parameters, if they are what the model allows."""
    try:
        return model.model_validate(said)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True, include_input=False)
        raise _error_for(found, said) from None


_CODES = {
    "extra_forbidden": "parameter_unknown",
    "missing": "parameter_missing",
    "string_too_long": "parameter_invalid_string",
    "parameter_invalid_integer": "parameter_invalid_integer",
    "incorrect_number": "incorrect_number",
}
_LIMITS = {"greater_than_equal": "amount_too_small", "less_than_equal": "amount_too_large"}


def _error_for(found: list[Any], said: dict[str, Any]) -> StripeError:
    """The first thing that is wrong; of alternatives, what is wrong with the one that was meant."""
    first = max(found, key=lambda each: (_match_depth(each["loc"], said), not _of_kind(each)))
    kind = first["type"]
    param = _param(first["loc"], said, is_missing=kind == "missing")
    if kind == "extra_forbidden":
        message = f"Received unknown parameter: {param}"
    elif kind == "missing":
        message = f"Missing required param: {param}."
    else:
        message = f"Invalid {param}: {first['msg']}" if param else str(first["msg"])
    codes = _CODES | _LIMITS if param in ("amount", "amount_to_capture") else _CODES
    return invalid(message[:500], param, codes.get(kind, "parameter_invalid"))


def _match_depth(location: tuple[Any, ...], said: Any) -> int:
    """How far a place of an error can be followed into what was said."""
    followed = 0
    for part in location:
        if _has(said, part):
            said, followed = said[part], followed + 1
    return followed


def _of_kind(found: Any) -> bool:
    """Whether something is of another kind altogether: text where an object was meant."""
    return found["type"] in ("string_type", "model_type", "dict_type")


def _has(said: Any, part: Any) -> bool:
    if isinstance(said, list):
        return isinstance(part, int) and part < len(said)
    return isinstance(said, dict) and part in said


def _param(location: tuple[Any, ...], said: Any, *, is_missing: bool) -> str | None:
    """The name of a place in bracket notation, without the names of alternatives in between."""
    parts = []
    for place, part in enumerate(location):
        if _has(said, part):
            said = said[part]
            parts.append(str(part))
        elif is_missing and place == len(location) - 1:
            parts.append(str(part))
    return parts[0] + "".join(f"[{part}]" for part in parts[1:]) if parts else None
