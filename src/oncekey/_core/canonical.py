"""Canonical forms of bodies and queries: equal bytes for every way to write the same value.

A retry does not always repeat the bytes of the first try: clients reorder fields, proxies encode
again. A canonical form ignores only what cannot change the meaning. In doubt it is stricter, never
looser: a needless mismatch is noticed, a wrong match answers a request with the outcome of another
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NoReturn
from urllib.parse import unquote_to_bytes

from oncekey._core import json_numbers
from oncekey._core.framing import as_bytes, frame
from oncekey._core.json_numbers import Number
from oncekey._core.long_json import LongJson, Rules, write_object

FIELDS_MAX = 10_000
"""Most fields or parts of one form or query; frameworks accept about a tenth of it."""

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"

_UNESCAPED_BYTES_MAX = 16_384
"""A longer name or value is unescaped in steps."""


@dataclass(frozen=True, slots=True)
class BadBody:
    """Why a body has no canonical form: a sentence that tells the client what to do."""

    reason: str


def essence(content_type: str) -> str:
    """Return the media type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


AWS_JSON = "application/x-amz-json-"
"""How AWS's own media types of JSON begin; version 1 of the fingerprint did not know them."""


def is_json(media_type: str, version: int = 2) -> bool:
    """Return whether bodies of this media type are read as JSON."""
    return (
        media_type == JSON
        or media_type.endswith("+json")
        or (version > 1 and media_type.startswith(AWS_JSON))
    )


# -------------------------------------------------------------------------------- JSON

SHORT_BYTES_MAX = 65_536
"""Longer JSON is parsed in steps: see `_core.long_json`."""

_BOM = b"\xef\xbb\xbf"


def canonical_json(body: bytes, *, without: str | None = None, version: int = 2) -> bytes | BadBody:
    """Return the canonical form of a JSON text: it ignores order, spacing, escapes and how numbers
    are spelled.

    `without` names a member of the outermost object to leave out. `version` is that of the
    fingerprint: version 1 writes all whole numbers as digits.
    """
    reader = _READERS[version]
    try:
        text = body.removeprefix(_BOM).decode("utf-8")
        if len(body) > SHORT_BYTES_MAX:
            return _long(text, reader, without).encode("ascii")
        if without is None and "\\" not in text:
            # Look for duplicate names afterwards, which is cheaper than checking every object. Each
            # name and each string has two quotes. Nothing adds one; if no backslash hides one, a
            # name that was overwritten removes two.
            canonical = _encode(reader.decode(text))
            if canonical.count('"') == text.count('"'):
                return canonical.encode("ascii")
        value = reader.decode_strict(text)
        if without is not None and isinstance(value, dict):
            value.pop(without, None)
        return _encode(value).encode("ascii")
    except (_JsonError, ValueError, RecursionError) as error:
        return _bad_json(error)


def json_members(body: bytes) -> dict[str, bytes] | BadBody:
    """Return the canonical form of each member of the outermost object; none if it is none."""
    try:
        text = body.removeprefix(_BOM).decode("utf-8")
        if len(body) > SHORT_BYTES_MAX:
            long = LongJson(text, _READERS[2].rules)
            long.canonical()
            return {name: each.encode("ascii") for name, each in (long.members or {}).items()}
        value = _READERS[2].decode_strict(text)
        members = value.items() if isinstance(value, dict) else ()
        return {name: _encode(member).encode("ascii") for name, member in members}
    except (_JsonError, ValueError, RecursionError) as error:
        return _bad_json(error)


def json_member(body: bytes, name: str) -> object | BadBody:
    """Return the value of a member of the outermost object; None if there is none."""
    if len(body) <= SHORT_BYTES_MAX:
        value = parse_json(body)
        return value.get(name) if isinstance(value, dict) else _bad_or_none(value)
    members = json_members(body)
    if isinstance(members, BadBody):
        return members
    member: object = json.loads(members.get(name, b"null"))
    return member


def parse_json(body: bytes) -> object | BadBody:
    """Parse a JSON text at once; numbers are as `canonical_json` reads them."""
    try:
        value: object = _READERS[2].decode_strict(body.removeprefix(_BOM).decode("utf-8"))
        return value
    except (_JsonError, ValueError, RecursionError) as error:
        return _bad_json(error)


def _bad_or_none(value: object) -> BadBody | None:
    return value if isinstance(value, BadBody) else None


def _long(text: str, reader: _JsonReader, without: str | None) -> str:
    long = LongJson(text, reader.rules)
    canonical = long.canonical()
    if without is None or long.members is None or without not in long.members:
        return canonical
    del long.members[without]
    return write_object(long.members)


class _JsonError(Exception):
    """Carries a reason out of the parser's hooks, which can only raise."""


def _constant(name: str) -> NoReturn:
    raise _JsonError(f"The JSON body holds {name}, which is not JSON. Send null or a number.")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _twice(_first_again([name for name, _ in pairs]))
    return members


def _first_again(names: list[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            break
        seen.add(name)
    return name


def _twice(name: str) -> _JsonError:
    shown = json.dumps(name[:64])  # escaped: a name may hold control characters
    return _JsonError(
        f"The JSON body names {shown} twice in one object, so servers may disagree on "
        "which value counts. Send each name once."
    )


def _bad_json(error: Exception) -> BadBody:
    match error:
        case _JsonError():
            return BadBody(str(error))
        case json.JSONDecodeError():
            where = f"line {error.lineno}, column {error.colno}"
            return BadBody(f"The body is not valid JSON ({where}). Send well-formed JSON.")
        case UnicodeDecodeError():
            return BadBody(f"The JSON body is not UTF-8 (byte {error.start}). Encode it as UTF-8.")
        case RecursionError():
            return BadBody("The JSON body is nested too deeply. Send a flatter one.")
    return BadBody("The JSON body holds a number of too many digits. Send it as a string.")


# What was parsed has no cycles.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


class _JsonReader:
    """Reads JSON for one version of the fingerprint. `decode_strict` refuses duplicate names."""

    def __init__(self, whole: Callable[[str], Number], number: Callable[[str], Number]) -> None:
        read = partial(
            json.JSONDecoder, parse_int=whole, parse_float=number, parse_constant=_constant
        )
        self.decode = read().decode
        self.decode_strict = read(object_pairs_hook=_unique).decode
        self.rules = Rules(
            lambda text: _encode(whole(text)),
            lambda text: _encode(number(text)),
            _twice,
            _constant,
        )


_READERS = {
    1: _JsonReader(json_numbers.integer_v1, json_numbers.number_v1),
    2: _JsonReader(json_numbers.integer, json_numbers.number),
}


# ----------------------------------------------------------------- forms and query strings


def parse_pairs(encoded: bytes) -> list[tuple[bytes, bytes]]:
    """Decode the names and values of a query string, in order; blank values stay.

    They stay bytes: decoding them with replacement characters would make different ones equal.
    """
    split = [field.partition(b"=") for field in encoded.replace(b"+", b" ").split(b"&") if field]
    return [(_unescape(name), _unescape(value)) for name, _, value in split]


def _unescape(field: bytes) -> bytes:
    """Unescape a name or value; a long one in steps, so that other threads can run."""
    if len(field) <= _UNESCAPED_BYTES_MAX:
        return unquote_to_bytes(field)
    parts, at = [], 0
    while at < len(field):
        end = at + _UNESCAPED_BYTES_MAX
        if (escape := field.find(b"%", end - 2, end)) >= 0:  # do not cut it
            end = escape
        parts.append(unquote_to_bytes(field[at:end]))
        at = end
    return b"".join(parts)


def parse_query(query: bytes) -> list[tuple[bytes, bytes]] | BadBody:
    """Decode a query string of any length: not every server limits it."""
    if query.count(b"&") >= FIELDS_MAX:
        return BadBody(f"The query has more than {FIELDS_MAX} parameters. Send fewer.")
    return parse_pairs(query)


def parse_form(body: bytes) -> list[tuple[bytes, bytes]] | BadBody:
    """Decode a form."""
    if body.count(b"&") >= FIELDS_MAX:
        return BadBody(f"The form has more than {FIELDS_MAX} fields. Send fewer.")
    return parse_pairs(body)


def canonical_form(
    pairs: list[tuple[bytes, bytes]], *, without: str | None = None, version: int = 2
) -> bytes:
    """Frame the pairs of a form in the order sent, since neighbours may belong together.

    `without` names pairs to leave out. Version 1 of the fingerprint sorted them by name.
    """
    if version == 1:
        return canonical_query(pairs, without=without)
    left_out = None if without is None else as_bytes(without)
    return frame(part for pair in pairs if pair[0] != left_out for part in pair)


def canonical_query(pairs: list[tuple[bytes, bytes]], *, without: str | None = None) -> bytes:
    """Frame the pairs of a query sorted by name, in the order sent within one name.

    `without` names pairs to leave out.
    """
    left_out = None if without is None else as_bytes(without)
    pairs = [pair for pair in pairs if pair[0] != left_out]
    pairs.sort(key=itemgetter(0))
    return frame(part for pair in pairs for part in pair)
