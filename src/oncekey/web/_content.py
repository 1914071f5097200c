"""A request's content: its type, its plain body and its fingerprint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from oncekey._core import fingerprint as fingerprints
from oncekey._core.canonical import SHORT_BYTES_MAX, essence
from oncekey._core.content_coding import decode, is_readable
from oncekey._core.fingerprint import LOOKED_INTO_BYTES_MAX, BadBody, Fingerprint
from oncekey._core.profiles import BodyField, Profile, QueryParameter
from oncekey.web._body import Body
from oncekey.web._request import Request

Rules = Callable[..., Fingerprint | BadBody]


def content_type(request: Request) -> str:
    """Return the content type as sent, empty if there is none."""
    return request.headers.first.get(b"content-type", b"").decode("latin-1")


def content_coding(request: Request) -> str:
    """Return the content coding, empty if there is none."""
    coding = request.headers.first.get(b"content-encoding", b"").decode("latin-1").strip()
    return "" if coding.lower() == "identity" else coding


def plain_body(request: Request, body: Body) -> bytes | None:
    """Return the body without its coding; None if it cannot be decoded or is too long to parse."""
    if body.size > LOOKED_INTO_BYTES_MAX:
        return None
    coding, content = content_coding(request), body.content()
    return decode(content, coding, LOOKED_INTO_BYTES_MAX) if coding and content else content


def fingerprint(
    request: Request, body: Body, profile: Profile, target: str, bytes_max: int
) -> Fingerprint | BadBody:
    """Compute the fingerprint of a request. A compressed body counts as what was compressed; if
    that cannot be read, as its bytes, of a type that is not parsed.
    """
    key_in = profile.key_in
    rules = partial(
        fingerprints.compute,
        request.method,
        request.path,
        request.query,
        target=target,
        exclude_field=key_in.name if isinstance(key_in, BodyField) else None,
        exclude_parameter=key_in.name if isinstance(key_in, QueryParameter) else None,
    )
    kind = request.headers.first.get(b"content-type", b"").decode("latin-1")
    coding = content_coding(request) if b"content-encoding" in request.headers.first else ""
    if not coding or not body.size:
        made = rules(kind, body.content() if body.size <= LOOKED_INTO_BYTES_MAX else body)
    elif (plain := plain_body(request, body)) is not None:
        made = rules(kind, plain)
    else:
        made = rules(_coded_type(kind), body, unread=is_readable(coding))
    if isinstance(made, BadBody) or made.version == 1:
        return made
    return dataclasses.replace(made, earlier=partial(_earlier, rules, request, body, bytes_max))


def _earlier(rules: Rules, request: Request, body: Body, bytes_max: int) -> tuple[bytes, ...]:
    """The digests that version 1 may have given the request. How much it decompressed was up to its
    `request_bytes_max`, which is not known any more.
    """
    if body.is_closed:
        return ()
    kind, coding, content = content_type(request), content_coding(request), body.content()
    seen = [(_coded_type(kind), content)] if coding else [(kind, content)]
    if coding and (plain := decode(content, coding, bytes_max)) is not None:
        seen.append((kind, plain))
    made = [rules(*each, version=1) for each in seen]
    digests = [each.digest for each in made if isinstance(each, Fingerprint)]
    return tuple(digests) or (b"",)  # what it refused, no record is of


def _coded_type(kind: str) -> str:
    return f"{essence(kind)}+coded"


def takes_long(request: Request, body: Body) -> bool:
    """Whether looking into a body may block other requests: do it in `cpu_thread` then."""
    if body.size > SHORT_BYTES_MAX:
        return True
    is_coded = b"content-encoding" in request.headers.first
    return is_coded and body.size > 0 and bool(content_coding(request))
