"""A message: what is written to the outbox, and what its publisher gets."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from itertools import chain
from typing import Any

from oncekey._core.framing import as_bytes, frame
from oncekey._core.values import value
from oncekey.errors import Misuse

NAME_CHARS_MAX = 255
HEADERS_BYTES_MAX = 16_384
PAYLOAD_BYTES_MAX = 1_048_576
LANE_BYTES = 16
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@value
class Message:
    """One message, as its publisher sends it to a broker."""

    id: str
    """The same however often it is published: pass it to the broker as the message's id."""
    topic: str
    key: str | None
    headers: Mapping[str, str]
    payload: bytes
    attempts: int = 0
    """The number of this try, 1 for the first."""


@value
class Parked:
    """A dead letter: a message that could not be published and waits for a person."""

    message: Message
    error: str
    age_s: float


def new_message(
    topic: str,
    payload: Any,
    *,
    token: bytes,
    key: str | None,
    headers: Mapping[str, str] | None,
    payload_bytes_max: int,
) -> Message:
    """Make a message; `token` is what its id is made of. A payload that is not bytes is written as
    JSON.
    """
    _must_be_texts("topic", topic)
    _must_be_texts("key", "-" if key is None else key)
    _must_be_texts("header", *chain.from_iterable((headers or {}).items()))
    lines = {name.lower(): text for name, text in (headers or {}).items()}
    if not isinstance(payload, bytes):
        payload = _as_json(payload)
        lines.setdefault("content-type", "application/json")
    message = Message(str(uuid.UUID(bytes=token, version=4)), topic, key, lines, payload)
    _check(message, payload_bytes_max)
    return message


def _must_be_texts(what: str, *given: object) -> None:
    for text in given:
        if not isinstance(text, str):
            raise Misuse(f"a {what} of a message is a text, not {type(text).__name__}")


def _as_json(payload: Any) -> bytes:
    try:
        return json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise Misuse(f"a payload is bytes, or what JSON can write: {error}") from None


def _check(message: Message, payload_bytes_max: int) -> None:
    """Refuse what no worker can publish or no database can store, before it is written."""
    key = "-" if message.key is None else message.key
    for what, text in (("topic", message.topic), ("key", key)):
        if not 0 < len(text) <= NAME_CHARS_MAX or _UNSTORABLE.search(text):
            raise Misuse(
                f"a {what} has 1 to {NAME_CHARS_MAX} characters, no NUL and no half of a surrogate "
                f"pair: {text[:40]!r}"
            )
    for name, text in message.headers.items():
        if _UNSTORABLE.search(name + text):
            raise Misuse(f"header {name!r} has a NUL or half of a surrogate pair")
    if len(encode_headers(message.headers)) > HEADERS_BYTES_MAX:
        raise Misuse(f"the headers of a message have at most {HEADERS_BYTES_MAX} bytes")
    if len(message.payload) > payload_bytes_max:
        raise Misuse(
            f"the payload has {len(message.payload)} bytes, more than payload_bytes_max="
            f"{payload_bytes_max}: store it elsewhere and publish its address"
        )


def lane(message: Message) -> bytes:
    """Return what messages are ordered by: topic and key, or the message alone if it has no key."""
    if message.key is None:
        return uuid.UUID(message.id).bytes
    framed = frame([as_bytes(message.topic), as_bytes(message.key)])
    return hashlib.sha256(framed).digest()[:LANE_BYTES]


def encode_headers(headers: Mapping[str, str]) -> str:
    return json.dumps(dict(headers), separators=(",", ":"))


def decode_headers(text: str) -> Mapping[str, str]:
    headers: dict[str, str] = json.loads(text)
    return headers
