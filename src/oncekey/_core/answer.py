"""Build a response to store, from its parts or from the result of a function."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from oncekey._core.record import Answer
from oncekey.errors import Misuse

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEXT = re.compile(rb"[^\0\r\n]*")

Text = str | bytes
Headers = Mapping[str, Text] | Iterable[tuple[Text, Text]]


def answer_of(status: int, body: Any = b"", headers: Headers = ()) -> Answer:
    """Build a response from its parts. A body that is not bytes becomes JSON, and is typed so.

    Raises `Misuse` for parts that no response can have.
    """
    if not _is_status(status):
        raise Misuse(f"an answer's status is a number from 200 to 599, not {status!r:.80}")
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines = [(_line(name, _NAME).lower(), _line(text, _TEXT)) for name, text in pairs]
    if not isinstance(body, bytes):
        body = _json(body)
        if all(name != b"content-type" for name, _ in lines):
            lines.append((b"content-type", b"application/json"))
    return Answer(int(status), tuple(lines), body)


def _is_status(given: object) -> bool:
    return isinstance(given, int) and 200 <= given <= 599


def _line(given: object, pattern: re.Pattern[bytes]) -> bytes:
    """Encode a header's name or text; refuse what would break the response."""
    line = given
    if isinstance(given, str):
        with contextlib.suppress(UnicodeEncodeError):
            line = given.encode("latin-1")
    if not isinstance(line, bytes) or not pattern.fullmatch(line):
        raise Misuse(
            "an answer's headers are names, and texts of one line in Latin-1, such as "
            f"{{'location': '/orders/1'}}, not {given!r:.80}"
        )
    return line


def _json(body: object) -> bytes:
    try:
        return json.dumps(body, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise Misuse(f"an answer's body is bytes, or what JSON can write: {error}") from error


def encode_result(what: str, result: Any, bytes_max: int) -> bytes:
    """Encode a result as JSON, so that the next release can read it; `what` names it in errors."""
    try:
        text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(
            f"{what} returned what JSON cannot keep ({error}): return text, numbers, lists and "
            "dicts, and of those only what is needed later"
        ) from error
    encoded = text.encode()
    if len(encoded) > bytes_max:
        raise Misuse(f"{what} returned {len(encoded)} bytes, more than {bytes_max}")
    return encoded
