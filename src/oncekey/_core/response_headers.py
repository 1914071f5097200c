"""The headers of an answer: which are kept, and what the first answer and its replays carry.

Header lines stay lines: in their order, never joined and never split (two cookies are two lines).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from oncekey._core.http_dates import http_date
from oncekey._core.policy import Policy
from oncekey._core.profiles import Profile
from oncekey._core.record import Answer

Lines = list[tuple[bytes, bytes]]

UNKNOWN = (b"idempotency-outcome", b"unknown")
"""On the answer of an attempt of which nobody knows what it did."""

BODILESS = (204, 304)
"""Statuses whose answers have no body, whatever the application says."""

# True of one connection, or of one moment: the server writes them anew for every message.
_OF_ONE_MESSAGE = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade http2-settings "
    b"date age content-length traceparent tracestate traceresponse server-timing".split()
)
# Secrets and session state: useful to a thief of the store, harmful when they come a second time.
_SECRET = frozenset(
    b"set-cookie set-cookie2 authorization proxy-authorization www-authenticate proxy-authenticate "
    b"authentication-info proxy-authentication-info x-auth-token".split()
)
_NEVER = _OF_ONE_MESSAGE | _SECRET
_CSRF = re.compile(rb"csrf|xsrf")
# Counted anew for a body that is sent whole.
_OF_A_WHOLE_BODY = (b"content-length", b"transfer-encoding")
# Without these nobody can read the body: no list leaves them out.
_FOR_THE_BODY = frozenset({b"content-type", b"content-encoding"})

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]{1,1000}")  # no server sends a longer name
_BREAKS_A_LINE = re.compile(rb"[\0-\x08\n-\x1f\x7f]")  # a server that refuses it sends nothing


def kept_headers(
    headers: Iterable[tuple[bytes, bytes]], policy: Policy, profile: Profile
) -> tuple[tuple[bytes, bytes], ...]:
    """What of a handler's headers is stored, under a settled policy. Names become lower case;
    blanks around a value are no part of it, and some servers send no message that has them.

    Never kept: what belongs to one message, secrets, what this profile writes itself, and lines
    that would break the message they are replayed in. `policy.headers_kept` narrows the rest; of
    what is never kept it can only bring back Set-Cookie, by naming it.
    """
    lines = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    own, hop_by_hop = profile.own_names, _named_by_connection(lines)
    listed = None if policy.headers_kept is None else tuple(policy.headers_kept)
    kept = [
        line
        for line in lines
        if _may_be_kept(line[0], listed)
        and line[0] not in own
        and line[0] not in hop_by_hop
        and not _BREAKS_A_LINE.search(line[1])
    ]
    return tuple(kept)


def kept_answer(answer: Answer, policy: Policy, profile: Profile) -> Answer:
    """What is stored of an answer that the application gives whole: only the fact, if it is too
    large.
    """
    body = answer.body
    if body is not None and len(body) > policy.answer_bytes_max:
        body = None
    return Answer(answer.status, kept_headers(answer.headers, policy, profile), body)


@functools.lru_cache(maxsize=1024)  # an application's answers use the same few names
def _may_be_kept(name: bytes, headers_kept: tuple[str, ...] | None) -> bool:
    if headers_kept is not None:
        listed = name.decode("latin-1") in headers_kept
        if not listed and name not in _FOR_THE_BODY:
            return False
        if listed and name == b"set-cookie":
            return True
    harmless = _TOKEN.fullmatch(name) is not None and not _CSRF.search(name)
    return harmless and name not in _NEVER


def first_headers(
    answer: Answer, profile: Profile, key: str, expires_at_wall: float | None
) -> Lines:
    """The headers of a handler's own answer, all of them, with what is to be said about its key.

    `expires_at_wall` is None where the answer was not kept.
    """
    added = _about_the_key(answer, profile, key, expires_at_wall, kept=expires_at_wall is not None)
    return _lines(answer, profile, added)


def replay_headers(
    answer: Answer, profile: Profile, key: str, expires_at_wall: float | None
) -> Lines:
    """The headers of a kept answer that is sent again. Date is left to the server: it is fresh.

    The first answer's request id is not this one's: it moves to a header of its own.
    """
    added = _about_the_key(answer, profile, key, expires_at_wall, kept=True)
    if profile.replay_marker:
        added.append(_line(*profile.replay_marker))
    ids = profile.request_id_names
    lines = [line for line in _lines(answer, profile, added) if line[0].lower() not in ids]
    if b"cache-control" not in [name for name, _ in lines]:
        lines.append((b"cache-control", b"no-store"))
    return lines


def unknown_headers(headers: Iterable[tuple[bytes, bytes]], profile: Profile) -> Lines:
    """The headers of a handler's own answer after which nobody knows what it did: a retry does not
    run it again, and says so.
    """
    added = [UNKNOWN]
    if profile.should_retry_header:
        added.append(_line(profile.should_retry_header, "false"))
    names = [name for name, _ in added]
    return [line for line in headers if line[0].lower() not in names] + added


def says_transient(headers: Iterable[tuple[bytes, bytes]], profile: Profile) -> bool:
    """Whether a handler marked its answer as transient, in a profile that has a header for that:
    such an answer is not kept.
    """
    if profile.transient_header is None:
        return False
    marker = profile.transient_header.encode("ascii")
    return any(
        name.lower() == marker and value.strip().lower() == b"true" for name, value in headers
    )


# ------------------------------------------------------------------------------- parts


def _named_by_connection(lines: Lines) -> list[bytes]:
    options = [value.split(b",") for name, value in lines if name == b"connection"]
    return [option.strip(b" \t").lower() for line in options for option in line]


def _lines(answer: Answer, profile: Profile, added: Lines) -> Lines:
    """The answer's own lines, its length counted, then what is added. Added lines replace those of
    the same name, and nobody but the profile writes what is the profile's to say.
    """
    own, replaced = profile.own_names, [name for name, _ in added]
    if answer.body is not None:  # else it streams, and only the handler knows how
        added = [*_length(answer.status, answer.body), *added]
        replaced += _OF_A_WHOLE_BODY
    return [
        line
        for line in answer.headers
        if (name := line[0].lower()) not in own and name not in replaced
    ] + added


def _length(status: int, body: bytes) -> Lines:
    """Content-Length, but for the statuses that must not have one."""
    bare = status < 200 or status in BODILESS
    return [] if bare else [(b"content-length", b"%d" % len(body))]


def _about_the_key(
    answer: Answer, profile: Profile, key: str, expires_at_wall: float | None, *, kept: bool
) -> Lines:
    lines: Lines = []
    if profile.original_request_header:
        names = profile.request_id_names
        ids = [value for name, value in answer.headers if name.lower() in names]
        lines += [(profile.original_request_header.encode("ascii"), first) for first in ids[:1]]
    if profile.key_echo:
        lines.append((profile.key_echo.encode("ascii"), _echo(key)))
    if profile.expiry_header and expires_at_wall is not None:
        lines.append((profile.expiry_header.encode("ascii"), http_date(expires_at_wall)))
    if profile.should_retry_header and kept and answer.status >= 400:
        # However often a client retries, it gets this error: it is kept.
        lines.append(_line(profile.should_retry_header, "false"))
    if profile.result_header:
        lines.append(_line(profile.result_header, "accepted"))
    return lines


def _line(name: str, value: str) -> tuple[bytes, bytes]:
    return name.encode("ascii"), value.encode("ascii")


def _echo(key: str) -> bytes:
    """The key so that it reads back as itself: bare as clients send it, quoted where it must be."""
    if '"' in key or "," in key:
        key = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return key.encode("ascii")
