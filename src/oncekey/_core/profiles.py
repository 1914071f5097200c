"""Profiles: named sets of rules that imitate a provider, so that its clients work unchanged.

A profile is data: where the key is, which status means what, what errors look like, which headers
a response carries, and a sparse policy. Take one from `PROFILES` and change what you need:

    PROFILES["oncekey"].derive(name="ours", mismatch_status=409, in_flight_status=425)

Each row of the table says which published fact it follows, and what was chosen if nothing is
published. No row imitates a provider that answers a different request with a stored response.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from oncekey._core import key as keys
from oncekey._core.error_bodies import SHAPES, Shape
from oncekey._core.key import BadKey
from oncekey._core.policy import INHERIT, Policy, keep_success
from oncekey._core.problems import MEANINGS, Kind, Problem, json_bytes, reply_headers
from oncekey._core.record import Answer
from oncekey.errors import Misuse


@dataclass(frozen=True, slots=True)
class Header:
    """The key is in a request header."""

    name: str


@dataclass(frozen=True, slots=True)
class BodyField:
    """The key is in a top-level field of the body, which the fingerprint leaves out."""

    name: str


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """The key is in the query; the fingerprint leaves the parameter out."""

    name: str


_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One set of rules. The defaults are those of the profile `oncekey`."""

    name: str

    # what the client sends
    key_in: Header | BodyField | QueryParameter = Header("Idempotency-Key")
    key_quoted: bool = False
    """Whether a client writes the key's header as a quoted string. A server takes both."""
    key_chars_max: int = keys.CHARS_MAX
    uuid_only: bool = False
    case_insensitive: bool = False
    """Whether keys that differ only in case are the same key; they are stored in lower case."""
    first_sent_in: Header | None = None
    """Where the client says when it first sent the request: see `oncekey._core.key_age`."""
    target_in: Header | None = None
    """Where the client names the operation, if the path does not: part of the fingerprint."""

    # rules for records
    policy: Policy = field(default_factory=Policy)
    """What the profile sets; the policies of the application and the route lie over it."""
    retention_from: Literal["completion", "first use"] = "completion"
    relied_s: float = 86_400.0
    """How long a client assumes that the server remembers a key, until the server says how long. A
    provider may remember keys for longer than it promises, so this can be less than what the same
    profile sets for a server.
    """

    # refusals
    statuses: Mapping[Kind, int] = field(default_factory=dict, hash=False)
    """Statuses that differ from `MEANINGS`."""
    shape: str | Shape = "problem"
    """A name from `SHAPES`, or a function like those in `oncekey._core.error_bodies`."""
    docs_url: str | None = None
    """The page that explains each kind to your clients; a full URL is also sent as a Link. None:
    refusals name no page.
    """

    # headers of responses; None leaves one out
    replay_marker: tuple[str, str] | None = ("idempotent-replayed", "true")
    key_echo: str | None = "idempotency-key"
    expiry_header: str | None = "idempotency-expires"
    request_id_headers: tuple[str, ...] = ("request-id", "x-request-id")
    """Headers that identify one exchange. A replay does not repeat them, but sends the first one in
    `original_request_header`.
    """
    original_request_header: str | None = "original-request"
    should_retry_header: str | None = None
    """Tells clients with automatic retries whether to retry: on refusals and stored errors."""
    result_header: str | None = None
    """Says `accepted` or `rejected`: whether the request counts as this key's request."""
    transient_header: str | None = None
    """`true` on refusals that may be retried. A response of a handler with it is not stored."""

    own_names: frozenset[bytes] = field(init=False, repr=False, compare=False)
    """Headers of responses that only the profile writes."""
    request_id_names: frozenset[bytes] = field(init=False, repr=False, compare=False)
    """`request_id_headers`, as bytes."""

    def __post_init__(self) -> None:
        _check(self)
        marker = self.replay_marker[0] if self.replay_marker else None
        own = (
            marker,
            self.key_echo,
            self.expiry_header,
            self.original_request_header,
            self.result_header,
        )
        names = frozenset(name.encode("ascii") for name in own if name)
        object.__setattr__(self, "own_names", names)
        ids = frozenset(name.encode("ascii") for name in self.request_id_headers)
        object.__setattr__(self, "request_id_names", ids)
        object.__setattr__(self, "statuses", MappingProxyType(dict(self.statuses)))

    def derive(
        self,
        *,
        missing_status: int | None = None,
        mismatch_status: int | None = None,
        in_flight_status: int | None = None,
        statuses: Mapping[Kind, int] | None = None,
        policy: Policy | None = None,
        **changes: Any,
    ) -> Profile:
        """Return this profile with changes; `statuses` and `policy` lie over its own.

        A new retention is also how long clients rely on a key, unless you set `relied_s`.
        """
        shortcuts = {
            Kind.MISSING_KEY: missing_status,
            Kind.MISMATCH: mismatch_status,
            Kind.IN_FLIGHT: in_flight_status,
        }
        set_by_name = {kind: status for kind, status in shortcuts.items() if status is not None}
        unknown = changes.keys() - _DERIVABLE
        if unknown:
            raise Misuse(
                f"Profile has no {', '.join(sorted(unknown))}: choose from "
                f"{', '.join(sorted(_DERIVABLE | _SHORTCUTS))}"
            )
        if policy and policy.retention_s is not INHERIT:
            # If requests are dated, half of it is the window (`oncekey._core.key_age`).
            dated = changes.get("first_sent_in", self.first_sent_in) is not None
            changes.setdefault("relied_s", policy.retention_s / (2 if dated else 1))
        return dataclasses.replace(
            self,
            statuses={**self.statuses, **(statuses or {}), **set_by_name},
            policy=policy.over(self.policy) if policy else self.policy,
            **changes,
        )

    @property
    def cors_allow_headers(self) -> tuple[str, ...]:
        """Request headers that scripts of other origins must be allowed to send."""
        headers = (self.key_in, self.first_sent_in, self.target_in)
        return tuple(header.name for header in headers if isinstance(header, Header))

    @property
    def cors_expose_headers(self) -> tuple[str, ...]:
        """Response headers that scripts of other origins must be allowed to read."""
        names = {name.decode() for name in self.own_names}
        names |= {name for name in (self.should_retry_header, self.transient_header) if name}
        ours = {"idempotency-outcome", "idempotency-stored"}
        return tuple(sorted(names | ours | {"retry-after", "location", "link"}))

    def status(self, kind: Kind) -> int:
        """Return the status for this kind of refusal."""
        return self.statuses.get(kind, MEANINGS[kind].status)

    def key(self, text: str) -> str | BadKey:
        """Return a valid key as this profile compares it, or why it refuses it."""
        if len(text) > self.key_chars_max:
            return BadKey(
                f"The key is longer than {self.key_chars_max} characters. Send a shorter one."
            )
        if self.uuid_only and not _UUID.fullmatch(text):
            return BadKey("The key is not a UUID. Send a new UUID for each operation.")
        return text.lower() if self.case_insensitive else text


_DERIVABLE = frozenset(f.name for f in dataclasses.fields(Profile) if f.init)
_SHORTCUTS = frozenset({"missing_status", "mismatch_status", "in_flight_status"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_LINK = re.compile(r"[!#-;=?-~]+")


def _check(profile: Profile) -> None:
    def misuse(what: str) -> Misuse:
        return Misuse(f"Profile {profile.name!r}: {what}")

    marker = profile.replay_marker
    for name in (
        *(marker[:1] if marker else ()),
        profile.key_echo,
        profile.expiry_header,
        *profile.request_id_headers,
        profile.original_request_header,
        profile.should_retry_header,
        profile.result_header,
        profile.transient_header,
    ):
        if name is not None and not _TOKEN.fullmatch(name):
            raise misuse(f"{name!r} is not the name of a header in lower case")
    for kind, status in profile.statuses.items():
        if status not in range(400, 600):
            raise misuse(f"the status for {kind} must be from 400 to 599, not {status!r}")
    if not 1 <= profile.key_chars_max <= keys.CHARS_MAX:
        raise misuse(f"key_chars_max must be from 1 to {keys.CHARS_MAX}")
    if isinstance(profile.shape, str) and profile.shape not in SHAPES:
        raise misuse(f"there is no shape {profile.shape!r}: choose from {', '.join(SHAPES)}")
    if not 0 < profile.relied_s < math.inf:
        raise misuse(f"relied_s={profile.relied_s}: give seconds, more than 0")
    if profile.retention_from not in ("completion", "first use"):
        raise misuse("retention_from is 'completion' or 'first use'")
    docs_url: object = profile.docs_url
    if docs_url is not None and not (isinstance(docs_url, str) and _LINK.fullmatch(docs_url)):
        raise misuse("docs_url must be a URL as it is sent, with special characters encoded")


# ------------------------------------------------------------------------------- refusals

# The request counts as this key's request, but there is no response to send, now or ever.
_OF_THIS_KEY = frozenset(
    {Kind.IN_FLIGHT, Kind.OUTCOME_UNKNOWN, Kind.ANSWER_NOT_KEPT, Kind.STALE_ANSWER}
)


def render(problem: Problem, profile: Profile, status: int | None = None) -> Answer:
    """Render a refusal under this profile, with its status unless you pass another."""
    status = status or profile.status(problem.kind)
    shape = SHAPES[profile.shape] if isinstance(profile.shape, str) else profile.shape
    shaped = shape(problem, status, profile.docs_url)
    body = json_bytes(shaped.body)
    lines = [(b"content-type", shaped.content_type), (b"content-length", b"%d" % len(body))]
    lines += [*reply_headers(problem, profile.docs_url), *shaped.headers]
    if profile.should_retry_header:
        says = b"true" if problem.retryable else b"false"
        lines.append((profile.should_retry_header.encode("ascii"), says))
    if profile.result_header:
        says = b"accepted" if problem.kind in _OF_THIS_KEY else b"rejected"
        lines.append((profile.result_header.encode("ascii"), says))
    if profile.transient_header and problem.retryable:
        lines.append((profile.transient_header.encode("ascii"), b"true"))
    return Answer(status, tuple(lines), body)


# ---------------------------------------------------------------------------------- table
#
# Headers that a provider does not send (a replay marker, an expiry) are sent all the same: one more
# header breaks no client. The key is echoed only if the provider echoes its key header.

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S

# 409 in flight: stripe-python, stripe-node and the SDKs that Stainless builds all retry it by
# themselves. 422 on a mismatch: none of them does. Two more kinds are 409 and must not be retried;
# Stainless SDKs obey this header before they look at the status.
_ONCEKEY = Profile(name="oncekey", should_retry_header="x-should-retry")

# The draft fixes 400, 409 and 422, and asks for a link to the documentation: in the body, or as
# Link with rel="describedby". It has no RFC number and says nothing about markers, expiry, length,
# or which errors are kept; those are oncekey's. The draft's own page is linked until the
# application derives a profile with the page that describes its API.
_IETF = _ONCEKEY.derive(
    name="ietf",
    key_quoted=True,
    docs_url="https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/",
)

# Keys belong to the account: the endpoint is compared, not part of the scope. POST only. Pruned
# once they are at least 24 hours old. Mismatch is 400, because its libraries raise IdempotencyError
# only for 400 and 404 with that type; a 422 becomes a plain APIError.
#
# In flight: by default the libraries retry twice, with 0.5 to 1 s in between, ignore Retry-After,
# and give up after 1.0 to 1.5 s of instant 409s although the charge goes on to succeed. So a retry
# waits for the first request. Two retries that wait 10 s each outlast a handler of 20 s, and each
# stays well below the 30 s after which many proxies hang up, and the libraries' own 80 s.
#
# Stripe keeps 500s as well, because it cannot know what happened. Here that is a choice:
# Policy(keep=keep_errors_too). Which type the 409 has today is not published; its older type was
# invalid_request_error, and `code` is what to compare.
_STRIPE = Profile(
    name="stripe",
    shape="stripe",
    statuses={Kind.MISMATCH: 400, Kind.TOO_OLD: 400},
    policy=Policy(scope="tenant", methods=("POST",), in_flight="wait", wait_s=10.0),
    retention_from="first use",
    should_retry_header="stripe-should-retry",
)

# The body's idempotency_key; 45 characters is the limit of 27 request types, CreatePayment among
# them, and the smallest of all. The first *successful* answer is returned again. Reuse gives
# IDEMPOTENCY_KEY_REUSED with 400. Not published: retention (72 hours were chosen, so that a queue
# that stood still over a weekend is covered; a client counts on 24) and what happens in flight (409
# was chosen).
_SQUARE = Profile(
    name="square",
    shape="square",
    key_in=BodyField("idempotency_key"),
    key_chars_max=45,
    statuses={Kind.MISMATCH: 400},
    policy=Policy(methods=("POST",), retention_s=72 * _HOUR_S, keep=keep_success),
    key_echo=None,
)

# 108 characters is the limit of orders v2. Retention differs by API, from 3 hours to 45 days;
# orders v2 keeps 6 hours, and up to 72 on request, which was chosen. In flight: 409
# PREVIOUS_REQUEST_IN_PROGRESS (payments v2). Reuse: 422 PAYPAL_REQUEST_ID_PREVIOUSLY_USED (payment
# tokens v3). PayPal answers with the resource's present state; here the answer is replayed. Clients
# count on the shortest of its APIs.
_PAYPAL = Profile(
    name="paypal",
    shape="paypal",
    key_in=Header("PayPal-Request-Id"),
    key_chars_max=108,
    policy=Policy(methods=("POST",), retention_s=72 * _HOUR_S),
    relied_s=3 * _HOUR_S,
    key_echo=None,
)

# 64 characters, POST only, unique per company account, kept for at least 7 days after the first
# submission. In flight: 422 with errorCode 704, already processed or in progress. Transient-Error:
# true marks errors that are not kept and may be retried. Adyen is said to replay the first answer
# whatever the request; here that is refused, with the same 704 but not as transient.
_ADYEN = Profile(
    name="adyen",
    shape="adyen",
    key_chars_max=64,
    statuses={Kind.IN_FLIGHT: 422, Kind.MISMATCH: 422},
    policy=Policy(scope="tenant", methods=("POST",), retention_s=7 * _DAY_S),
    retention_from="first use",
    relied_s=7 * _DAY_S,
    transient_header="transient-error",
)

# A token in the body, mostly of up to 64 characters, case-sensitive, unique per account and
# region. Its name differs by service: ClientToken, clientToken, ClientRequestToken. Reuse: 400
# IdempotentParameterMismatch. In flight differs by service; DynamoDB's 400
# TransactionInProgressException was chosen, because botocore retries by that code but does not
# retry 409. Retention is stated by few services: clients count on the shortest (DynamoDB's, 10
# minutes after completion); for servers, oncekey's 24 hours were chosen. Where a service speaks
# JSON by one path, a header names the action. botocore retries whatever is a 5xx.
_AWS = Profile(
    name="aws",
    shape="aws",
    key_in=BodyField("ClientToken"),
    target_in=Header("X-Amz-Target"),
    key_chars_max=64,
    statuses={Kind.MISMATCH: 400, Kind.IN_FLIGHT: 400, Kind.TRANSACTION_ENDED: 400},
    policy=Policy(scope="tenant", methods=("POST",)),
    relied_s=600.0,
    key_echo=None,
)

# OASIS Repeatable Requests, as Azure Communication Services publishes them: the id is a GUID, in
# either case; either header malformed: 400; first sent outside the window of 5 minutes: 412; other
# request: 400; in progress: 409; 2xx and 4xx are replayed, 5xx runs again. The window is half the
# retention (`_core.key_age`), so records are kept for 10 minutes. OASIS allows POST, PUT,
# PATCH and DELETE, and forbids to run a repeatable request unprotected: all four are guarded.
_AZURE = Profile(
    name="azure",
    shape="azure",
    key_in=Header("Repeatability-Request-ID"),
    first_sent_in=Header("Repeatability-First-Sent"),
    uuid_only=True,
    case_insensitive=True,
    statuses={Kind.MISMATCH: 400},
    policy=Policy(methods=("POST", "PUT", "PATCH", "DELETE"), retention_s=600.0),
    retention_from="first use",
    relied_s=300.0,
    key_echo=None,
    result_header="repeatability-result",
)

# The query's requestId: a UUID, but not that of only zeros, which no profile accepts. The second
# request is not refused but ignored, in progress or completed: so it waits for the first one's
# answer, then is told ABORTED (409). Many services remember for at least 60 minutes, others do not
# say: oncekey's 24 hours were chosen. Reuse is not published either: INVALID_ARGUMENT (400) was
# chosen. Canonical codes have fixed statuses: FAILED_PRECONDITION is 400.
_GCP = Profile(
    name="gcp",
    shape="gcp",
    key_in=QueryParameter("requestId"),
    uuid_only=True,
    case_insensitive=True,
    statuses={
        Kind.MISMATCH: 400,
        Kind.OUTCOME_UNKNOWN: 400,
        Kind.TOO_OLD: 400,
        Kind.TRANSACTION_ENDED: 400,
    },
    policy=Policy(
        scope="tenant", methods=("POST", "PUT", "PATCH", "DELETE"), in_flight="wait", wait_s=10.0
    ),
    relied_s=_HOUR_S,
    key_echo=None,
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        each.name: each
        for each in (
            _ONCEKEY,
            _IETF,
            _STRIPE,
            _SQUARE,
            _PAYPAL,
            _ADYEN,
            _AWS,
            _AZURE,
            _GCP,
        )
    }
)


def profile(name_or_profile: str | Profile, docs_url: str | None = None) -> Profile:
    """Return the profile, by its name if need be, with `docs_url` as the page for its refusals."""
    if isinstance(name_or_profile, Profile):
        found = name_or_profile
    elif str(name_or_profile) in PROFILES:
        found = PROFILES[name_or_profile]
    else:
        raise Misuse(
            f"there is no profile {name_or_profile!r}: choose from {', '.join(PROFILES)}, "
            "or pass a Profile"
        )
    return found if docs_url is None else found.derive(docs_url=docs_url)
