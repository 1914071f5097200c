"""The key of a request: looked for where its profile has it."""

from __future__ import annotations

from oncekey._core import fingerprint as fingerprints
from oncekey._core import key as keys
from oncekey._core.canonical import essence, parse_query
from oncekey._core.fingerprint import LOOKED_INTO_BYTES_MAX, BadBody
from oncekey._core.key import BadKey
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem
from oncekey._core.profiles import BodyField, Header, Profile, QueryParameter
from oncekey.web._body import Body
from oncekey.web._content import content_coding, content_type, said
from oncekey.web._request import Request

_NO_JSON = ("image/", "audio/", "video/", "font/")


def find_key(
    request: Request, profile: Profile, policy: Policy, body: Body
) -> str | BadKey | BadBody | Problem | None:
    """The key, None if the request brings none; or why it cannot be read."""
    chars_min = policy.key_chars_min
    match profile.key_in:
        case Header(name):
            lines = request.headers.all(name)
            return keys.parse(lines, chars_min=chars_min) if lines else None
        case QueryParameter(name):
            pairs = parse_query(request.query)
            if isinstance(pairs, BadBody):
                return pairs
            values = [v for n, v in pairs if n == name.encode()]
            if len(values) > 1:
                return BadKey(f"The query names {name} {len(values)} times. Send it once.")
            return keys.check(values[0].decode("latin-1"), chars_min=chars_min) if values else None
        case BodyField(name):
            value = _in_body(request, body, name)
            return keys.check(value, chars_min=chars_min) if isinstance(value, str) else value


def _in_body(request: Request, body: Body, name: str) -> str | BadBody | Problem | None:
    kind, plain = content_type(request), said(request, body)
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
    length = request.headers.first(b"content-length")
    is_long = length.isdigit() and int(length) > LOOKED_INTO_BYTES_MAX
    return not is_long and not essence(kind).startswith(_NO_JSON)


def missing(profile: Profile) -> Problem:
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
