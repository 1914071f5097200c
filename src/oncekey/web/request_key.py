"""The key of a request: looked for where its profile has it."""

from __future__ import annotations

from oncekey.core import fingerprint as fingerprints
from oncekey.core import key as keys
from oncekey.core.canonical import parse_query
from oncekey.core.fingerprint import BadBody
from oncekey.core.key import BadKey
from oncekey.core.policy import Policy
from oncekey.core.problem import Kind, Problem
from oncekey.core.profiles import BodyField, Header, Profile, QueryParameter
from oncekey.web.content import content_type, said
from oncekey.web.request import Request


def find_key(
    request: Request, profile: Profile, policy: Policy, body: bytes
) -> str | BadKey | BadBody | None:
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
            kind, plain = content_type(request), said(request, body, policy.request_bytes_max)
            if plain is None and fingerprints.has_fields(kind):
                return BadBody(
                    "The body may carry the key, but what its Content-Encoding hides cannot be "
                    "read here, or is too large. Send it in gzip, or as it is."
                )
            value = fingerprints.extract_field(kind, plain or b"", name)
            return keys.check(value, chars_min=chars_min) if isinstance(value, str) else value


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
