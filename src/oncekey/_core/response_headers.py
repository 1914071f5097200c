"""Headers of responses: which are stored, and what the first response and its replays carry.

Header lines stay lines: in order, never joined and never split (two cookies are two lines).
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
"""On the response of an attempt whose outcome is unknown."""

BODILESS = (204, 304)
"""Statuses whose responses have no body, whatever the application says."""

# They belong to one connection or one moment: the server writes them anew for every message.
_OF_ONE_MESSAGE = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade http2-settings "
    b"date age content-length traceparent tracestate traceresponse server-timing".split()
)
# Secrets and session state: useful to a thief of the store, harmful if replayed.
_SECRET = frozenset(
    b"set-cookie set-cookie2 authorization proxy-authorization www-authenticate proxy-authenticate "
    b"authentication-info proxy-authentication-info x-auth-token".split()
)
_NEVER = _OF_ONE_MESSAGE | _SECRET
_CSRF = re.compile(rb"csrf|xsrf")
# Computed anew for a body that is sent at once.
_OF_A_WHOLE_BODY = (b"content-length", b"transfer-encoding")
# Without these nobody can read the body: they are always stored.
_FOR_THE_BODY = frozenset({b"content-type", b"content-encoding"})

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]{1,1000}")  # servers send no longer name
_BREAKS_A_LINE = re.compile(rb"[\0-\x08\n-\x1f\x7f]")  # a server that refuses one sends no response


def kept_headers(
    headers: Iterable[tuple[bytes, bytes]], policy: Policy, profile: Profile
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of a handler to store, under a settled policy. Names become lower case;
    blanks around values are dropped, because some servers refuse to send them.

    Never stored: what belongs to one message, secrets, what this profile writes itself, and lines
    that would break the response in which they are replayed. `policy.headers_kept` narrows the
    rest; of what is never stored it can only allow Set-Cookie, by naming it.
    """
    lines = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    own = profile.own_names
    named = [value.split(b",") for name, value in lines if name == b"connection"]
    hop_by_hop = [each.strip(b" \t").lower() for names in named for each in names]
    listed = None if policy.headers_kept is None else tuple(policy.headers_kept)
    lines_to_keep = [
        line
        for line in lines
        if _may_be_kept(line[0], listed)
        and line[0] not in own
        and line[0] not in hop_by_hop
        and not _BREAKS_A_LINE.search(line[1])
    ]
    return tuple(lines_to_keep)


def kept_answer(answer: Answer, policy: Policy, profile: Profile) -> Answer:
    """Return what to store of a complete response: only the fact, if it is too large."""
    body = answer.body
    if body is not None and len(body) > policy.answer_bytes_max:
        body = None
    return Answer(answer.status, kept_headers(answer.headers, policy, profile), body)


@functools.lru_cache(maxsize=1024)  # an application's responses use the same few names
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
    """Return all headers of a handler's own response with its length, and those about its key,
    which replace lines of the same name. Only the profile writes the profile's headers.

    `expires_at_wall` is None if the response was not stored.
    """
    added: Lines = []
    replaced: tuple[bytes, ...] = ()
    if answer.body is not None:  # a stream's length only the handler knows
        replaced = _OF_A_WHOLE_BODY
        if answer.status >= 200 and answer.status not in BODILESS:
            added.append((b"content-length", b"%d" % len(answer.body)))
    if profile.original_request_header:
        names = profile.request_id_names
        ids = [value for name, value in answer.headers if name.lower() in names]
        added += [(profile.original_request_header.encode("ascii"), first) for first in ids[:1]]
    if profile.key_echo:
        if '"' in key or "," in key:  # bare as clients send it, quoted where it must be
            key = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        added.append((profile.key_echo.encode("ascii"), key.encode("ascii")))
    if profile.expiry_header and expires_at_wall is not None:
        added.append((profile.expiry_header.encode("ascii"), http_date(expires_at_wall)))
    if profile.should_retry_header and expires_at_wall is not None and answer.status >= 400:
        # However often a client retries, it gets this error: it is stored.
        added.append(_line(profile.should_retry_header, "false"))
        replaced += (added[-1][0],)
    if profile.result_header:
        added.append(_line(profile.result_header, "accepted"))
    own = profile.own_names
    return [
        line
        for line in answer.headers
        if (name := line[0].lower()) not in own and name not in replaced
    ] + added


def replay_headers(answer: Answer, profile: Profile, key: str, expires_at_wall: float) -> Lines:
    """Return the headers of a replay. The server adds a fresh Date.

    The first response's request id is not that of this one: it moves to another header.
    """
    lines = first_headers(answer, profile, key, expires_at_wall)
    if profile.replay_marker:
        lines.append(_line(*profile.replay_marker))
    ids = profile.request_id_names
    lines = [line for line in lines if line[0].lower() not in ids]
    if b"cache-control" not in [name for name, _ in lines]:
        lines.append((b"cache-control", b"no-store"))
    return lines


def unknown_headers(headers: Iterable[tuple[bytes, bytes]], profile: Profile) -> Lines:
    """Return the headers of a handler's own response if its outcome is unknown, so that clients
    know that a retry does not run it again.
    """
    added = [UNKNOWN]
    if profile.should_retry_header:
        added.append(_line(profile.should_retry_header, "false"))
    names = [name for name, _ in added]
    return [line for line in headers if line[0].lower() not in names] + added


def says_transient(headers: Iterable[tuple[bytes, bytes]], profile: Profile) -> bool:
    """Return whether a handler marked its response as transient, in a profile with a header for it.
    Such a response is not stored.
    """
    if profile.transient_header is None:
        return False
    marker = profile.transient_header.encode("ascii")
    return any(
        name.lower() == marker and value.strip().lower() == b"true" for name, value in headers
    )


# ------------------------------------------------------------------------------- parts


def _line(name: str, value: str) -> tuple[bytes, bytes]:
    return name.encode("ascii"), value.encode("ascii")
