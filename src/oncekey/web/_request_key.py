"""The key of a request where it is in the query or the body."""

from __future__ import annotations

from oncekey._core import fingerprint as fingerprints
from oncekey._core import key as keys
from oncekey._core.canonical import essence, parse_query
from oncekey._core.fingerprint import LOOKED_INTO_BYTES_MAX, BadBody
from oncekey._core.key import BadKey
from oncekey._core.problems import Kind, Problem
from oncekey._core.profiles import BodyField, Header, Profile, QueryParameter
from oncekey.web._body import Body
from oncekey.web._content import content_coding, content_type, plain_body
from oncekey.web._request import Request

_NO_JSON = ("image/", "audio/", "video/", "font/")


def find_in_query(request: Request, name: str, chars_min: int) -> str | BadKey | BadBody | None:
    """Find the key in a parameter of the query; None if there is none."""
    pairs = parse_query(request.query)
    if isinstance(pairs, BadBody):
        return pairs
    values = [text for each, text in pairs if each == name.encode()]
    if len(values) > 1:
        return BadKey(f"The query names {name} {len(values)} times. Send it once.")
    return keys.check(values[0].decode("latin-1"), chars_min=chars_min) if values else None


def find_in_body(
    request: Request, body: Body, name: str, chars_min: int
) -> str | BadKey | BadBody | Problem | None:
    """Find the key in a field of the body; None if there is none."""
    found = _read_field(request, body, name)
    return keys.check(found, chars_min=chars_min) if isinstance(found, str) else found


def _read_field(request: Request, body: Body, name: str) -> str | BadBody | Problem | None:
    kind, plain = content_type(request), plain_body(request, body)
    if plain is not None:
        return fingerprints.extract_field(kind, plain, name)
    if fingerprints.is_read_by_part(kind) and not content_coding(request):
        return fingerprints.extract_field(kind, body, name)
    if not fingerprints.has_fields(kind):
        return None
    if body.size > LOOKED_INTO_BYTES_MAX:
        return Problem(
            Kind.TOO_LARGE,
            f"The request's body is larger than {LOOKED_INTO_BYTES_MAX} bytes, the most in which a "
            "key is looked for.",
        )
    return BadBody(
        "The body may carry the key, but what its Content-Encoding hides cannot be read here, or "
        "is too large. Send it in gzip, or as it is."
    )


def may_hold_key(request: Request) -> bool:
    """Whether a key may be in the body: handlers read JSON whatever its type says. What surely is
    none, and what is too large to be looked into, is nobody's business.
    """
    kind = content_type(request)
    if fingerprints.has_fields(kind):
        return True
    length = request.headers.first.get(b"content-length", b"")
    is_long = length.isdigit() and int(length) > LOOKED_INTO_BYTES_MAX
    return not is_long and not essence(kind).startswith(_NO_JSON)


def missing_key(profile: Profile) -> Problem:
    """The refusal of a request that brings no key where one is required."""
    return Problem(
        Kind.MISSING_KEY,
        f"This operation needs an idempotency key: send {_place(profile)}, new for each operation "
        "and the same for every retry of it.",
    )


def _place(profile: Profile) -> str:
    match profile.key_in:
        case Header(name):
            return f"the header {name}"
        case BodyField(name):
            return f"the body field {name}"
        case QueryParameter(name):
            return f"the query parameter {name}"
