"""Bodies and queries by what they mean: equal bytes for every way to write the same thing.

A retry does not always repeat the bytes of the first try: clients order fields anew, proxies encode
again. What is free here is only what cannot change the meaning. Where that is in doubt the form is
stricter, never looser: a needless mismatch is noticed, a wrong match answers a request with the
outcome of another one.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import nan
from operator import itemgetter
from typing import NoReturn
from urllib.parse import unquote_to_bytes

from oncekey.core.framing import as_bytes, frame

FIELDS_MAX = 10_000
"""Most fields or parts of one form or query; frameworks stop at about a tenth of it."""

FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class BadBody:
    """Why a body has no canonical form, as a sentence that tells the client what to do."""

    reason: str


def essence(content_type: str) -> str:
    """The media type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(media_type: str) -> bool:
    """Whether bodies of this essence are read as JSON: AWS has a name of its own for it."""
    return (
        media_type == "application/json"
        or media_type.endswith("+json")
        or media_type.startswith("application/x-amz-json-")
    )


# -------------------------------------------------------------------------------- JSON


def canonical_json(body: bytes, *, without: str | None = None) -> bytes | BadBody:
    """A JSON text by value: order, spacing, escapes and the spelling of numbers are free.

    `without` names a member of the outermost object that is left out.
    """
    try:
        text = _text(body)
        if without is None and "\\" not in text:
            # Duplicates are looked for after the fact, which is cheaper than watching every
            # object. Each name and each string costs two quotes. Nothing adds one; where no
            # backslash hides one, a name that was overwritten takes two away.
            canonical = _encode(_decode(text))
            if canonical.count('"') == text.count('"'):
                return canonical.encode("ascii")
        value = _decode_watching(text)
        if without is not None and isinstance(value, dict):
            value.pop(without, None)
        return _encode(value).encode("ascii")
    except (_Refused, ValueError, RecursionError) as error:
        return _bad_json(error)


def parse_json(body: bytes) -> object | BadBody:
    """The value of a JSON text, for reading fields of it; numbers as `canonical_json` sees them."""
    try:
        value: object = _decode_watching(_text(body))
        return value
    except (_Refused, ValueError, RecursionError) as error:
        return _bad_json(error)


def json_members(body: bytes) -> dict[str, bytes] | BadBody:
    """The canonical form of each member of the outermost object; none where it is no object."""
    try:
        value = _decode_watching(_text(body))
        members = value.items() if isinstance(value, dict) else ()
        return {name: _encode(member).encode("ascii") for name, member in members}
    except (_Refused, ValueError, RecursionError) as error:
        return _bad_json(error)


class _Refused(Exception):
    """Carries a reason out of the parser's hooks, which can only raise."""


def _text(body: bytes) -> str:
    return body.removeprefix(b"\xef\xbb\xbf").decode("utf-8")


def _number(text: str) -> int | float | list[float]:
    """A number with a point or an exponent, by value: 1.0 and 1e0 are the integer 1.

    One that no float can hold as written is kept by its spelling, in a form that no JSON text has:
    a list that starts with NaN. It adds no quotes, which `canonical_json` counts.
    """
    value = float(text)
    if repr(value) == text and not value.is_integer():
        return value
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits
        return [nan, *text.encode()]
    # Only what a float can hold: 1e999999999 as an integer would fill the memory.
    if value.is_integer() and exact == exact.to_integral_value():
        return int(exact)
    return value if exact == Decimal(repr(value)) else [nan, *text.encode()]


def _constant(name: str) -> NoReturn:
    raise _Refused(f"The JSON body holds {name}, which is not JSON. Send null or a number.")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Refused(
            f"The JSON body names {_twice(pairs)} twice in one object, so servers may disagree on "
            "which value counts. Send each name once."
        )
    return members


def _twice(pairs: list[tuple[str, object]]) -> str:
    counts = Counter(name for name, _ in pairs)
    name = next(name for name, count in counts.items() if count > 1)
    return json.dumps(name[:64])  # escaped: a name may hold control characters


def _bad_json(error: Exception) -> BadBody:
    match error:
        case _Refused():
            return BadBody(str(error))
        case json.JSONDecodeError():
            where = f"line {error.lineno}, column {error.colno}"
            return BadBody(f"The body is not valid JSON ({where}). Send well-formed JSON.")
        case UnicodeDecodeError():
            return BadBody(f"The JSON body is not UTF-8 (byte {error.start}). Encode it as UTF-8.")
        case RecursionError():
            return BadBody("The JSON body is nested too deeply. Send a flatter one.")
    return BadBody("The JSON body holds a number of too many digits. Send it as a string.")


_decode = json.JSONDecoder(parse_float=_number, parse_constant=_constant).decode
_decode_watching = json.JSONDecoder(
    parse_float=_number, parse_constant=_constant, object_pairs_hook=_unique
).decode
# What was parsed cannot be circular.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


# ----------------------------------------------------------------- forms and query strings


def parse_pairs(encoded: bytes) -> list[tuple[bytes, bytes]]:
    """The decoded names and values of a query string, in order; blank values are kept.

    They stay bytes: decoding them with replacement characters would make different ones equal.
    """
    split = [field.partition(b"=") for field in encoded.replace(b"+", b" ").split(b"&") if field]
    return [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, _, value in split]


def parse_query(query: bytes) -> list[tuple[bytes, bytes]] | BadBody:
    """The same of a query string that may be of any length: not every server limits it."""
    if query.count(b"&") >= FIELDS_MAX:
        return BadBody(f"The query has more than {FIELDS_MAX} parameters. Send fewer.")
    return parse_pairs(query)


def parse_form(body: bytes) -> list[tuple[bytes, bytes]] | BadBody:
    """The same of a form."""
    if body.count(b"&") >= FIELDS_MAX:
        return BadBody(f"The form has more than {FIELDS_MAX} fields. Send fewer.")
    return parse_pairs(body)


def canonical_pairs(pairs: list[tuple[bytes, bytes]], *, without: str | None = None) -> bytes:
    """Pairs sorted by name, in the order sent within one name.

    `without` names pairs that are left out.
    """
    left_out = None if without is None else as_bytes(without)
    kept = [pair for pair in pairs if pair[0] != left_out]
    kept.sort(key=itemgetter(0))
    return frame(part for pair in kept for part in pair)
