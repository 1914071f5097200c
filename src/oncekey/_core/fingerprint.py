"""The fingerprint: tells a retry from another request with the same key.

It covers the method, the concrete path, the query, the media type and the body, each in canonical
form, and the header that names the operation if a profile has one. Nothing else: other headers
differ between honest retries. It is taken from the request as sent, before validation, so that a
new release of the handler does not change it.

Records live longer than releases, so the rules have a version, stored with each digest. Version 2
is written only where version 1 has another form:

- forms: version 1 ignored the order of fields;
- JSON with whole numbers of very many digits: version 1 wrote all digits out;
- JSON and forms of more than `LOOKED_INTO_BYTES_MAX`, also decompressed: they count byte for byte;
- JSON that is called a form, as `curl --data` does: version 1 compared it like a form;
- JSON under AWS's media types, which counted byte for byte; and if a header names the operation.

Everything else has the digest that it always had, so that processes of both releases agree during a
rolling deployment. A record of version 1 is compared by the rules of version 1, whose digest is
computed only then. The version follows from the request's value alone, so two spellings of one
request have the same.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Protocol

from oncekey._core.canonical import (
    AWS_JSON,
    FORM,
    JSON,
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
    "compute",
    "differing_fields",
    "extract_field",
    "field_digests",
    "has_fields",
]

VERSION = 2
"""Raise it when equal requests would get other digests, or different ones the same."""

LOOKED_INTO_BYTES_MAX = 1_048_576
"""A longer body counts byte for byte, except multipart, which counts part by part."""

_CHUNK_BYTES = 65_536
_TAGS = {version: frame((b"oncekey/fingerprint/%d" % version,)) for version in (1, 2)}
_TAG_BYTES = frame((b"oncekey/fingerprint/2/bytes",))
"""Precedes bodies that count byte for byte, which must not look like a canonical form."""


class Content(Protocol):
    """A body that is too long to parse, wherever it is."""

    @property
    def size(self) -> int: ...

    def chunks(self) -> Iterator[bytes]: ...


@value
class Fingerprint:
    """The digest of a canonical request (32 bytes), and the version of the rules that made it."""

    version: int
    digest: bytes
    newest: int = field(default=0, compare=False)
    """The newest known rules for what this is a fingerprint of, if not these."""
    earlier: Callable[[], Collection[bytes]] | None = field(default=None, compare=False, repr=False)
    """Computes the digests that version 1 may have given it; none once the body is gone."""


def compute(
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
    """Compute the fingerprint of a request, by the rules of `version`.

    `unread`: the body is compressed, and too long to decompress. `target` is the header that names
    the operation, if the path alone does not. If the key itself is in the body or the query,
    `exclude_field` (of a form or the outermost JSON object) or `exclude_parameter` leaves it out.
    """
    size = len(body) if isinstance(body, bytes) else body.size
    media_type = essence(content_type) if size else ""  # without a body the type means nothing
    rules = None if unread else version
    tag, canonical = _canonical_body(media_type, content_type, body, size, exclude_field, rules)
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
    texts = method.upper(), path, media_type
    verb, place, kind = [text.encode("utf-8", "surrogatepass") for text in texts]
    if target:  # framed, it begins with a digit, unlike any path
        place = frame((place, as_bytes(target)))
    # What `frame` would write; inlined, because every request needs it.
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
    size: int,
    exclude_field: str | None,
    version: int | None,
) -> tuple[bytes, Iterable[bytes | BadBody]]:
    """Return the tag of the rules that apply, and the canonical form."""
    if version is None:
        return _TAG_BYTES, _chunks(body)
    if media_type == MULTIPART:
        return _TAGS[1], canonical_multipart(content_type, _chunks(body))
    if media_type not in (FORM, JSON) and not is_json(media_type, version):
        return _TAGS[1], _chunks(body)
    if version > 1 and size > LOOKED_INTO_BYTES_MAX:
        return _TAG_BYTES, _chunks(body)
    whole = body if isinstance(body, bytes) else b"".join(body.chunks())
    if media_type == FORM:
        if version > 1 and _begins(whole, b"{", b"["):  # a handler may read it as JSON
            return _TAG_BYTES, (whole,)
        pairs = parse_form(whole)
        if isinstance(pairs, BadBody):
            return _TAGS[version], (pairs,)
        return _TAGS[version], (canonical_form(pairs, without=exclude_field, version=version),)
    canonical = canonical_json(whole, without=exclude_field, version=version)
    written = canonical if version > 1 and isinstance(canonical, bytes) else b""
    is_new = media_type.startswith(AWS_JSON) and not media_type.endswith("+json")
    differs = is_new or LONG in written
    return _TAGS[2 if differs else 1], (canonical,)


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
    """Made by the rules of another release: neither a match nor a mismatch."""


def compare(stored_version: int, stored_digest: bytes, now: Fingerprint) -> Comparison:
    """Compare a stored fingerprint with that of the current request.

    One of an earlier version is compared by its own rules: `compare_earlier`.
    """
    if stored_version > max(now.newest, now.version):
        return Comparison.UNKNOWN_VERSION
    if stored_version > now.version:
        return Comparison.DIFFERENT  # the same request would have that version, too
    if stored_version < now.version:
        return Comparison.UNKNOWN_VERSION
    return compare_earlier(stored_digest, (now.digest,))


def compare_earlier(stored_digest: bytes, now: Collection[bytes]) -> Comparison:
    """Compare with the digests that earlier rules give the current request."""
    if not now:
        return Comparison.UNKNOWN_VERSION
    same = any(hmac.compare_digest(stored_digest, digest) for digest in now)
    return Comparison.SAME if same else Comparison.DIFFERENT


# ----------------------------------------------------------------------------- fields

FIELDS_DIGESTED_MAX = 64
FIELD_NAME_CHARS_MAX = 100


def field_digests(content_type: str, body: bytes, key: str) -> dict[str, str]:
    """Return a short digest per top-level field of a JSON object or form, to name differences.

    The digests are keyed by the idempotency key, so that nobody can confirm a guessed value without
    knowing the key. Stored are the first `FIELDS_DIGESTED_MAX` fields by name, without very long or
    unprintable names; other bodies have none.
    """
    secret = hashlib.sha256(as_bytes(key)).digest()
    fields = _fields(content_type, body)
    names = sorted(filter(_is_nameable, fields))
    return {
        name: hashlib.blake2b(
            frame([as_bytes(name), fields[name]]), key=secret, digest_size=8
        ).hexdigest()
        for name in names[:FIELDS_DIGESTED_MAX]
    }


def differing_fields(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the sorted names of fields that were added, removed or changed. Never values."""
    names = sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))
    # A full side may have left out names after its last one: nothing is known of those.
    ends = [max(side) for side in (stored, now) if len(side) >= FIELDS_DIGESTED_MAX]
    return [name for name in names if all(name <= end for end in ends)]


def has_fields(content_type: str) -> bool:
    """Return whether a body of this type may carry the key."""
    media_type = essence(content_type)
    return media_type in (FORM, MULTIPART) or is_json(media_type)


def is_read_by_part(content_type: str) -> bool:
    """Return whether a key is found in such a body of any length."""
    return essence(content_type) == MULTIPART


def extract_field(content_type: str, body: bytes | Content, name: str) -> str | BadBody | None:
    """Read a key from a field of a form or of the outermost JSON object. A body that is not in
    memory must be one that `is_read_by_part`.

    None if the field is missing or null. A field that cannot be a key is refused: treating it as
    missing would run the request unprotected. Handlers read JSON whatever its type says, so any
    other body that is a JSON object is searched too: `curl --data` calls it a form.
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
    """Return whether the body begins with one of these, in UTF-8, UTF-16 or UTF-32."""
    return body.lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n").startswith(marks)


def _may_name(body: bytes, name: str) -> bool:
    """Return whether a body that cannot be parsed may have a member of this name."""
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
    """Return the canonical bytes of each top-level field; none if the body cannot be parsed."""
    media_type = essence(content_type)
    if is_json(media_type):
        members = json_members(body)
        return {} if isinstance(members, BadBody) else members
    values: dict[str, list[bytes]] = {}
    if media_type != FORM or _looks_like_json(body):  # its values would be read as names
        return {}
    if not isinstance(pairs := parse_form(body), BadBody):
        for name, value in pairs:
            values.setdefault(name.decode("utf-8", "backslashreplace"), []).append(value)
    return {name: frame(parts) for name, parts in values.items()}


def _is_nameable(name: str) -> bool:
    # Names go into stores and responses: no control characters or surrogates, nothing very long.
    return len(name) <= FIELD_NAME_CHARS_MAX and name.isprintable()
