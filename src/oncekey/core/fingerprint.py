"""The fingerprint: tells a retry from another request that came with the same key.

It covers the method, the concrete path, the query, the content type's essence and the body, each in
canonical form, and the header that names the operation, where a profile has one; nothing else, for
other headers differ between honest tries. It is taken from the request as it was sent, before
validation, so that a new release of the handler does not change it.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Mapping

from oncekey.core.canonical import (
    FORM,
    BadBody,
    canonical_json,
    canonical_pairs,
    essence,
    is_json,
    json_members,
    parse_form,
    parse_json,
    parse_query,
)
from oncekey.core.framing import as_bytes, frame
from oncekey.core.multipart import MULTIPART, canonical_multipart
from oncekey.core.value import value

__all__ = [
    "FIELDS_DIGESTED_MAX",
    "FIELD_NAME_CHARS_MAX",
    "VERSION",
    "BadBody",
    "Comparison",
    "Fingerprint",
    "compare",
    "differing",
    "extract_field",
    "field_digests",
    "has_fields",
    "of",
]

VERSION = 1
"""Raised whenever an equal request would get another digest. Records live longer than releases."""

_TAG = frame((b"oncekey/fingerprint/%d" % VERSION,))


@value
class Fingerprint:
    """The digest of a canonical request (32 bytes), and the version of the rules that made it."""

    version: int
    digest: bytes


def of(
    method: str,
    path: str,
    query: bytes | str,
    content_type: str,
    body: bytes,
    *,
    target: str = "",
    exclude_field: str | None = None,
    exclude_parameter: str | None = None,
) -> Fingerprint | BadBody:
    """The fingerprint of a request.

    `target` is what a header says of the operation, where the path alone does not tell it. Where
    the key itself travels in the body or the query, `exclude_field` (of a form, or of the outermost
    JSON object) or `exclude_parameter` leaves it out.
    """
    media_type = essence(content_type) if body else ""  # without a body, the type says nothing
    canonical = _canonical_body(media_type, content_type, body, exclude_field)
    if isinstance(canonical, BadBody):
        return canonical
    query = as_bytes(query) if isinstance(query, str) else query
    if query:
        pairs = parse_query(query)
        if isinstance(pairs, BadBody):
            return pairs
        query = canonical_pairs(pairs, without=exclude_parameter)
    verb, place, kind = as_bytes(method.upper()), as_bytes(path), as_bytes(media_type)
    if target:  # framed it begins with a digit, as no path does
        place = frame((place, as_bytes(target)))
    # As `frame` would write it; spelt out, because every request needs one.
    head = (len(verb), verb, len(place), place, len(query), query, len(kind), kind)
    digest = hashlib.sha256(_TAG + b"%d:%b%d:%b%d:%b%d:%b" % head)
    digest.update(canonical)  # comes last, so it needs no length; apart, so it is not copied
    return Fingerprint(VERSION, digest.digest())


def _canonical_body(
    media_type: str, content_type: str, body: bytes, exclude_field: str | None
) -> bytes | BadBody:
    if is_json(media_type):
        return canonical_json(body, without=exclude_field)
    if media_type == FORM:
        pairs = parse_form(body)
        if isinstance(pairs, BadBody):
            return pairs
        return canonical_pairs(pairs, without=exclude_field)
    if media_type == MULTIPART:
        return canonical_multipart(content_type, body)
    return body


# -------------------------------------------------------------------------- comparing


class Comparison(enum.Enum):
    """What a stored fingerprint says about the request at hand."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN_VERSION = "unknown version"
    """Made by rules of another release: neither a match nor a mismatch."""


def compare(stored_version: int, stored_digest: bytes, now: Fingerprint) -> Comparison:
    """Whether the request at hand is the one whose fingerprint was stored."""
    if stored_version != now.version:
        return Comparison.UNKNOWN_VERSION
    same = hmac.compare_digest(stored_digest, now.digest)
    return Comparison.SAME if same else Comparison.DIFFERENT


# ----------------------------------------------------------------------------- fields

FIELDS_DIGESTED_MAX = 64
FIELD_NAME_CHARS_MAX = 100


def field_digests(content_type: str, body: bytes, key: str) -> dict[str, str]:
    """A short digest per top-level field of a JSON object or form, to name later what differs.

    The digests are keyed by the idempotency key, so that a stored one does not tell a guessed value
    to those who do not know the key. Kept are the first fields by name, at most
    `FIELDS_DIGESTED_MAX`, without very long or unprintable names; a body of another kind has none.
    """
    secret = hashlib.sha256(as_bytes(key)).digest()
    fields = _fields(content_type, body)
    names = sorted(filter(_nameable, fields))
    return {
        name: hashlib.blake2b(
            frame([as_bytes(name), fields[name]]), key=secret, digest_size=8
        ).hexdigest()
        for name in names[:FIELDS_DIGESTED_MAX]
    }


def differing(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of fields that were added, removed or changed, sorted. Never values."""
    names = sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))
    # A side that is full may have left out names behind its last one: nothing is known of those.
    ends = [max(side) for side in (stored, now) if len(side) >= FIELDS_DIGESTED_MAX]
    return [name for name in names if all(name <= end for end in ends)]


def has_fields(content_type: str) -> bool:
    """Whether a key can travel in a body of this type."""
    media_type = essence(content_type)
    return media_type == FORM or is_json(media_type)


def extract_field(content_type: str, body: bytes, name: str) -> str | BadBody | None:
    """A key that travels in a field of a form or of the outermost JSON object.

    None where the field is missing or null. A field that is there but cannot be a key is refused:
    taking it for missing would run the request unprotected.
    """
    media_type = essence(content_type)
    if media_type == FORM:
        return _form_field(body, name)
    if not body or not is_json(media_type):
        return None
    value = parse_json(body)
    if isinstance(value, BadBody):
        return value
    found = value.get(name) if isinstance(value, dict) else None
    if found is None or isinstance(found, str):
        return found
    return BadBody("The body field that carries the key is not a string. Send it as a string.")


def _form_field(body: bytes, name: str) -> str | BadBody | None:
    pairs = parse_form(body)
    if isinstance(pairs, BadBody):
        return pairs
    wanted = as_bytes(name)
    values = [value for field, value in pairs if field == wanted]
    if len(values) > 1:
        return BadBody("The form carries the key in a field that is there twice. Send it once.")
    return values[0].decode("latin-1") if values else None


def _fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """The canonical bytes of each top-level field; none where the body cannot be read."""
    media_type = essence(content_type)
    if is_json(media_type):
        members = json_members(body)
        return {} if isinstance(members, BadBody) else members
    values: dict[str, list[bytes]] = {}
    if media_type == FORM and not isinstance(pairs := parse_form(body), BadBody):
        for name, value in pairs:
            values.setdefault(name.decode("utf-8", "backslashreplace"), []).append(value)
    return {name: frame(parts) for name, parts in values.items()}


def _nameable(name: str) -> bool:
    # Names go into stores and answers: no control characters or surrogates, nothing endless.
    return len(name) <= FIELD_NAME_CHARS_MAX and name.isprintable()
