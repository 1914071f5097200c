"""Bodies and queries by what they mean: equal bytes for every way to write the same thing.

A retry does not always repeat the bytes of the first try: clients order fields anew, proxies encode
again. What is free here is only what cannot change the meaning. Where that is in doubt the form is
stricter, never looser: a needless mismatch is noticed, a wrong match answers a request with the
outcome of another one.
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
"""Most fields or parts of one form or query; frameworks stop at about a tenth of it."""

FORM = "application/x-www-form-urlencoded"

_UNESCAPED_BYTES_MAX = 16_384
"""Of a name or value that is unescaped at one go."""


@dataclass(frozen=True, slots=True)
class BadBody:
    """Why a body has no canonical form, as a sentence that tells the client what to do."""

    reason: str


def essence(content_type: str) -> str:
    """The media type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(media_type: str, version: int = 2) -> bool:
    """Whether bodies of this essence are read as JSON: AWS has a name of its own for it, which the
    first version of the fingerprint did not know.
    """
    return (
        media_type == "application/json"
        or media_type.endswith("+json")
        or (version > 1 and media_type.startswith("application/x-amz-json-"))
    )


# -------------------------------------------------------------------------------- JSON

SHORT_BYTES_MAX = 65_536
"""Of JSON that is read at one go. Longer texts are read in steps: see `core.long_json`."""


def canonical_json(body: bytes, *, without: str | None = None, version: int = 2) -> bytes | BadBody:
    """A JSON text by value: order, spacing, escapes and the spelling of numbers are free.

    `without` names a member of the outermost object that is left out. `version` is that of the
    fingerprint: the first one has all whole numbers as digits.
    """
    ways = _WAYS[version]
    try:
        text = _text(body)
        if len(body) > SHORT_BYTES_MAX:
            return _long(text, ways, without).encode("ascii")
        if without is None and "\\" not in text:
            # Duplicates are looked for after the fact, which is cheaper than watching every
            # object. Each name and each string costs two quotes. Nothing adds one; where no
            # backslash hides one, a name that was overwritten takes two away.
            canonical = _encode(ways.decode(text))
            if canonical.count('"') == text.count('"'):
                return canonical.encode("ascii")
        value = ways.decode_watching(text)
        if without is not None and isinstance(value, dict):
            value.pop(without, None)
        return _encode(value).encode("ascii")
    except (_Refused, ValueError, RecursionError) as error:
        return _bad_json(error)


def json_members(body: bytes) -> dict[str, bytes] | BadBody:
    """The canonical form of each member of the outermost object; none where it is no object."""
    try:
        text = _text(body)
        if len(body) > SHORT_BYTES_MAX:
            long = LongJson(text, _WAYS[2].rules)
            long.canonical()
            return {name: each.encode("ascii") for name, each in (long.members or {}).items()}
        value = _WAYS[2].decode_watching(text)
        members = value.items() if isinstance(value, dict) else ()
        return {name: _encode(member).encode("ascii") for name, member in members}
    except (_Refused, ValueError, RecursionError) as error:
        return _bad_json(error)


def json_member(body: bytes, name: str) -> object | BadBody:
    """The value of a member of the outermost object; None where there is none of that name."""
    if len(body) <= SHORT_BYTES_MAX:
        value = parse_json(body)
        return value.get(name) if isinstance(value, dict) else _only_bad(value)
    members = json_members(body)
    if isinstance(members, BadBody):
        return members
    member: object = json.loads(members.get(name, b"null"))
    return member


def parse_json(body: bytes) -> object | BadBody:
    """The value of a JSON text at one go; numbers as `canonical_json` sees them."""
    try:
        value: object = _WAYS[2].decode_watching(_text(body))
        return value
    except (_Refused, ValueError, RecursionError) as error:
        return _bad_json(error)


def _only_bad(value: object) -> BadBody | None:
    return value if isinstance(value, BadBody) else None


def _long(text: str, ways: _Ways, without: str | None) -> str:
    long = LongJson(text, ways.rules)
    canonical = long.canonical()
    if without is None or long.members is None or without not in long.members:
        return canonical
    del long.members[without]
    return write_object(long.members)


class _Refused(Exception):
    """Carries a reason out of the parser's hooks, which can only raise."""


def _text(body: bytes) -> str:
    return body.removeprefix(b"\xef\xbb\xbf").decode("utf-8")


def _constant(name: str) -> NoReturn:
    raise _Refused(f"The JSON body holds {name}, which is not JSON. Send null or a number.")


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


def _twice(name: str) -> _Refused:
    shown = json.dumps(name[:64])  # escaped: a name may hold control characters
    return _Refused(
        f"The JSON body names {shown} twice in one object, so servers may disagree on "
        "which value counts. Send each name once."
    )


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


# What was parsed cannot be circular.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


class _Ways:
    """How JSON is read for one version of the fingerprint."""

    def __init__(self, whole: Callable[[str], Number], number: Callable[[str], Number]) -> None:
        read = partial(
            json.JSONDecoder, parse_int=whole, parse_float=number, parse_constant=_constant
        )
        self.decode = read().decode
        self.decode_watching = read(object_pairs_hook=_unique).decode
        self.rules = Rules(
            lambda text: _encode(whole(text)),
            lambda text: _encode(number(text)),
            _twice,
            _constant,
        )


_WAYS = {
    1: _Ways(json_numbers.whole_v1, json_numbers.number_v1),
    2: _Ways(json_numbers.whole, json_numbers.number),
}


# ----------------------------------------------------------------- forms and query strings


def parse_pairs(encoded: bytes) -> list[tuple[bytes, bytes]]:
    """The decoded names and values of a query string, in order; blank values are kept.

    They stay bytes: decoding them with replacement characters would make different ones equal.
    """
    split = [field.partition(b"=") for field in encoded.replace(b"+", b" ").split(b"&") if field]
    return [(_unescape(name), _unescape(value)) for name, _, value in split]


def _unescape(field: bytes) -> bytes:
    """A name or value without its escapes; of a long one, in steps that let other threads have
    their turn.
    """
    if len(field) <= _UNESCAPED_BYTES_MAX:
        return unquote_to_bytes(field)
    parts, at = [], 0
    while at < len(field):
        end = at + _UNESCAPED_BYTES_MAX
        if (escape := field.find(b"%", end - 2, end)) >= 0:  # not to be cut
            end = escape
        parts.append(unquote_to_bytes(field[at:end]))
        at = end
    return b"".join(parts)


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


def canonical_form(
    pairs: list[tuple[bytes, bytes]], *, without: str | None = None, version: int = 2
) -> bytes:
    """Pairs of a form, in the order sent: what stands behind what may belong together.

    `without` names pairs that are left out. Version 1 of the fingerprint sorted them by name.
    """
    if version == 1:
        return canonical_query(pairs, without=without)
    left_out = None if without is None else as_bytes(without)
    return frame(part for pair in pairs if pair[0] != left_out for part in pair)


def canonical_query(pairs: list[tuple[bytes, bytes]], *, without: str | None = None) -> bytes:
    """Pairs of a query sorted by name, in the order sent within one name.

    `without` names pairs that are left out.
    """
    left_out = None if without is None else as_bytes(without)
    kept = [pair for pair in pairs if pair[0] != left_out]
    kept.sort(key=itemgetter(0))
    return frame(part for pair in kept for part in pair)
