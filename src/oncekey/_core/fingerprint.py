"""The fingerprint: tells a retry from another request that came with the same key.

It covers the method, the concrete path, the query, the content type's essence and the body, each in
canonical form, and the header that names the operation, where a profile has one; nothing else, for
other headers differ between honest tries. It is taken from the request as it was sent, before
validation, so that a new release of the handler does not change it.

Records live longer than releases, so the rules have a version, which is kept with each digest. The
second version is written only where the first one has another form:

- forms, whose fields were compared without their order;
- JSON with whole numbers of very many digits, all of which were written out;
- JSON and forms of more than `LOOKED_INTO_BYTES_MAX`, also when they are decompressed, which count
  byte for byte;
- JSON that is called a form, as `curl --data` does, which was compared like one;
- JSON as AWS names it, which counted byte for byte; and where a header names the operation.

All else has the digest that it always had, so that processes of both releases agree on it while a
deployment rolls. A record of the first version is compared by the first version's rules.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Protocol

from oncekey._core.canonical import (
    FORM,
    BadBody,
    canonical_form,
    canonical_json,
    canonical_query,
    essence,
    is_json,
    json_member,
    json_members,
    parse_form,
    parse_query,
)
from oncekey._core.framing import as_bytes, frame
from oncekey._core.json_numbers import LONG
from oncekey._core.multipart import MULTIPART, canonical_multipart, multipart_keys
from oncekey._core.values import value

__all__ = [
    "FIELDS_DIGESTED_MAX",
    "FIELD_NAME_CHARS_MAX",
    "LOOKED_INTO_BYTES_MAX",
    "VERSION",
    "BadBody",
    "Comparison",
    "Content",
    "Fingerprint",
    "compare",
    "compare_earlier",
    "differing_fields",
    "extract_field",
    "field_digests",
    "has_fields",
    "of",
]

VERSION = 2
"""Raised whenever an equal request would get another digest, or another one the same."""

LOOKED_INTO_BYTES_MAX = 1_048_576
"""A longer body counts byte for byte, but for multipart, which counts part by part."""

_CHUNK_BYTES = 65_536
_TAGS = {version: frame((b"oncekey/fingerprint/%d" % version,)) for version in (1, 2)}
_TAG_BYTES = frame((b"oncekey/fingerprint/2/bytes",))
"""Before what counts byte for byte: it must not look like the canonical form of anything."""


class Content(Protocol):
    """A body that is too long to be looked into, wherever it lies."""

    @property
    def size(self) -> int: ...

    def chunks(self) -> Iterator[bytes]: ...


@value
class Fingerprint:
    """The digest of a canonical request (32 bytes), and the version of the rules that made it."""

    version: int
    digest: bytes
    newest: int = field(default=0, compare=False)
    """The newest rules that are known for what this is a fingerprint of, if not these."""
    earlier: Callable[[], Collection[bytes]] | None = field(default=None, compare=False, repr=False)
    """Makes the digests that version 1 may have given the request; none once its body is gone."""


def of(
    method: str,
    path: str,
    query: bytes | str,
    content_type: str,
    body: bytes | Content,
    *,
    target: str = "",
    exclude_field: str | None = None,
    exclude_parameter: str | None = None,
    unread: bool = False,
    version: int = VERSION,
) -> Fingerprint | BadBody:
    """The fingerprint of a request, by the rules of this version.

    `unread`: what the body says is hidden by its coding, and more than may be looked into.

    `target` is what a header says of the operation, where the path alone does not tell it. Where
    the key itself travels in the body or the query, `exclude_field` (of a form, or of the outermost
    JSON object) or `exclude_parameter` leaves it out.
    """
    size = len(body) if isinstance(body, bytes) else body.size
    media_type = essence(content_type) if size else ""  # without a body, the type says nothing
    rules = None if unread else version
    tag, canonical = _canonical_body(media_type, content_type, body, exclude_field, rules)
    if version == 1:
        target = ""
    elif target and tag is _TAGS[1]:
        tag = _TAGS[2]
    query = as_bytes(query) if isinstance(query, str) else query
    if query:
        pairs = parse_query(query)
        if isinstance(pairs, BadBody):
            return pairs
        query = canonical_query(pairs, without=exclude_parameter)
    verb, place, kind = as_bytes(method.upper()), as_bytes(path), as_bytes(media_type)
    if target:  # framed it begins with a digit, as no path does
        place = frame((place, as_bytes(target)))
    # As `frame` would write it; spelt out, because every request needs one.
    head = (len(verb), verb, len(place), place, len(query), query, len(kind), kind)
    digest = hashlib.sha256(tag + b"%d:%b%d:%b%d:%b%d:%b" % head)
    for each in canonical:  # comes last, so it needs no length
        if isinstance(each, BadBody):
            return each
        digest.update(each)
    return Fingerprint(1 if tag is _TAGS[1] else 2, digest.digest(), version)


def _canonical_body(
    media_type: str,
    content_type: str,
    body: bytes | Content,
    exclude_field: str | None,
    version: int | None,
) -> tuple[bytes, Iterable[bytes | BadBody]]:
    """The tag of the rules that apply, and the canonical form."""
    if version is None:
        return _TAG_BYTES, _chunks(body)
    if media_type == MULTIPART:
        return _TAGS[1], canonical_multipart(content_type, _chunks(body))
    if media_type != FORM and not is_json(media_type, version):
        return _TAGS[1], _chunks(body)
    if version > 1 and not _may_look_into(body):
        return _TAG_BYTES, _chunks(body)
    whole = body if isinstance(body, bytes) else b"".join(body.chunks())
    if media_type == FORM:
        if version > 1 and _begins(whole, b"{", b"["):  # its reader may decode nothing
            return _TAG_BYTES, (whole,)
        pairs = parse_form(whole)
        if isinstance(pairs, BadBody):
            return _TAGS[version], (pairs,)
        return _TAGS[version], (canonical_form(pairs, without=exclude_field, version=version),)
    canonical = canonical_json(whole, without=exclude_field, version=version)
    written = canonical if version > 1 and isinstance(canonical, bytes) else b""
    differs = LONG in written or not is_json(media_type, 1)
    return _TAGS[2 if differs else 1], (canonical,)


def _may_look_into(body: bytes | Content) -> bool:
    size = len(body) if isinstance(body, bytes) else body.size
    return size <= LOOKED_INTO_BYTES_MAX


def _chunks(body: bytes | Content) -> Iterable[bytes]:
    if not isinstance(body, bytes):
        return body.chunks()
    if len(body) <= _CHUNK_BYTES:
        return (body,)
    return (body[at : at + _CHUNK_BYTES] for at in range(0, len(body), _CHUNK_BYTES))


# -------------------------------------------------------------------------- comparing


class Comparison(enum.Enum):
    """What a stored fingerprint says about the request at hand."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN_VERSION = "unknown version"
    """Made by rules of another release: neither a match nor a mismatch."""


def compare(stored_version: int, stored_digest: bytes, now: Fingerprint) -> Comparison:
    """Whether the request at hand is the one whose fingerprint was stored.

    One that was stored by earlier rules is compared by them: `compare_earlier`.
    """
    if stored_version > max(now.newest, now.version):
        return Comparison.UNKNOWN_VERSION
    if stored_version > now.version:
        return Comparison.DIFFERENT  # else the request at hand would have that version, too
    if stored_version < now.version:
        return Comparison.UNKNOWN_VERSION
    return compare_earlier(stored_digest, (now.digest,))


def compare_earlier(stored_digest: bytes, now: Collection[bytes]) -> Comparison:
    """The same with what earlier rules make of the request at hand."""
    if not now:
        return Comparison.UNKNOWN_VERSION
    same = any(hmac.compare_digest(stored_digest, digest) for digest in now)
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


def differing_fields(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of fields that were added, removed or changed, sorted. Never values."""
    names = sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))
    # A side that is full may have left out names behind its last one: nothing is known of those.
    ends = [max(side) for side in (stored, now) if len(side) >= FIELDS_DIGESTED_MAX]
    return [name for name in names if all(name <= end for end in ends)]


def has_fields(content_type: str) -> bool:
    """Whether a key is expected in a body of this type."""
    media_type = essence(content_type)
    return media_type in (FORM, MULTIPART) or is_json(media_type)


def is_read_by_part(content_type: str) -> bool:
    """Whether a key is found in such a body however long that is."""
    return essence(content_type) == MULTIPART


def extract_field(content_type: str, body: bytes | Content, name: str) -> str | BadBody | None:
    """A key that travels in a field of a form or of the outermost JSON object. What is not in
    memory is a form that `is_read_by_part`.

    None where the field is missing or null. A field that is there but cannot be a key is refused:
    taking it for missing would run the request unprotected. Handlers read JSON whatever its type
    says, so it is looked for in any other body as well that is an object of JSON: `curl --data`
    calls it a form.
    """
    media_type = essence(content_type)
    if media_type == MULTIPART:
        return _part(content_type, body, name)
    if not isinstance(body, bytes):
        raise TypeError(f"{media_type} is not read by part")
    if media_type == FORM and (
        (found := _form_field(body, name)) is not None or not _looks_like_json(body)
    ):
        return found
    if not body or not (is_json(media_type) or _looks_like_json(body)):
        return None
    member = json_member(body, name)
    if isinstance(member, BadBody) and not is_json(media_type) and not _may_name(body, name):
        return None
    if member is None or isinstance(member, str | BadBody):
        return member
    return BadBody("The body field that carries the key is not a string. Send it as a string.")


def _looks_like_json(body: bytes) -> bool:
    return _begins(body, b"{")


def _begins(body: bytes, *marks: bytes) -> bool:
    """Whether JSON may begin so. Handlers read UTF-16 and UTF-32 as well."""
    return body.lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n").startswith(marks)


def _may_name(body: bytes, name: str) -> bool:
    """Whether a body that cannot be read here may have a member of this name."""
    written = body.replace(b"\0", b"")
    return b"\\u" in written or as_bytes(name) in written


def _part(content_type: str, body: bytes | Content, name: str) -> str | BadBody | None:
    found = multipart_keys(content_type, _chunks(body), name)
    if isinstance(found, BadBody):
        return None if isinstance(body, bytes) and as_bytes(name) not in body else found
    if len(set(found)) > 1:
        return BadBody("The parts of the form carry different keys. Send one.")
    return found[0].decode("latin-1") if found else None


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
    if media_type != FORM or _looks_like_json(body):  # its values would be taken for names
        return {}
    if not isinstance(pairs := parse_form(body), BadBody):
        for name, value in pairs:
            values.setdefault(name.decode("utf-8", "backslashreplace"), []).append(value)
    return {name: frame(parts) for name, parts in values.items()}


def _nameable(name: str) -> bool:
    # Names go into stores and answers: no control characters or surrogates, nothing endless.
    return len(name) <= FIELD_NAME_CHARS_MAX and name.isprintable()
