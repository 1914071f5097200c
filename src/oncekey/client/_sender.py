"""The sender gives each request its key and retries it; shared by all libraries' transports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import TypedDict

from oncekey._core import profiles
from oncekey._core.http_dates import http_date
from oncekey._core.key import short_hash
from oncekey._core.policy import INHERIT, are_names
from oncekey._core.profiles import BodyField, Header, Profile
from oncekey._core.validation import must_be_limits
from oncekey._core.values import value
from oncekey._system.chance import chance, random_token
from oncekey._system.clock import Clock, SystemClock
from oncekey.client import keys
from oncekey.client._budget import RetryBudget
from oncekey.client._classify import HeaderLookup, NoResponse, WholeResponse, is_replay
from oncekey.client._counters import logged
from oncekey.client._errors import error_note, redact, redact_error, redacted_repr
from oncekey.client._key_placement import (
    DELIVERY,
    NO_CHANGES,
    GivenKey,
    KeyChanges,
    OutgoingRequest,
    RequestMark,
    SentRequests,
    fingerprint,
    origin_of,
    place_key,
    read_key,
    valid_key,
)
from oncekey.client._retention import usable_until
from oncekey.client._retry import Delivery, DeliveryResult, Retries, RetryLoop
from oncekey.errors import Mismatch, Misuse
from oncekey.events import Attempted, Hook, Hooks

METHODS = ("POST", "PUT", "PATCH", "DELETE")
"""The methods that change state. Other requests are sent unchanged."""
BODY_BYTES_MAX = 8 * 1024 * 1024
TIMED_OUT = "the time for all attempts was over before the response was complete"

_log = logging.getLogger("oncekey.client")


@value
class Outcome:
    """The delivery of a request: its key, attempts and result."""

    key: str | None
    attempts: int
    replayed: bool
    """Whether this is a stored response: an earlier attempt had arrived after all."""
    expires: str | None
    """Until when the server says it remembers the key (Idempotency-Expires)."""
    gave_up: str | None
    """Why there was no further attempt although the outcome is not known: retries were exhausted or
    not allowed, or the server says that the outcome is unknown. The intent keeps its key.
    """
    sent: bool = True
    """False if no connection was made: then this request was not carried out."""

    __repr__ = redacted_repr


@value
class DeliveryPlan(Delivery):
    """How one request is sent."""

    changes: KeyChanges = NO_CHANGES
    mark: RequestMark | None = None
    """To leave on the caller's request, in case it is resent or redirected."""
    removed_header: str | None = None
    """A header that must not be sent."""
    first: bool = False
    """Nothing was sent with this key before."""

    __repr__ = redacted_repr

    @property
    def visible_header(self) -> tuple[str, str] | None:
        """The key's header, which is also written into the caller's request."""
        is_visible = self.mark is not None and self.mark.is_visible
        return self.changes.headers[0] if is_visible and self.changes.headers else None


class Options(TypedDict, total=False):
    """The options of `retrying`, explained there."""

    profile: str | Profile
    retries: Retries | None
    budget: RetryBudget | None
    methods: Collection[str] | None
    keys_as: str
    body_bytes_max: int
    answer_bytes_max: int
    hooks: Iterable[Hook]
    clock: Clock | None
    chance: Callable[[], float]


class RequestSender:
    """Decides how a client's requests are sent: their keys, retries and errors."""

    def __init__(
        self,
        *,
        profile: str | Profile = "oncekey",
        retries: Retries | None = None,
        budget: RetryBudget | None = None,
        methods: Collection[str] | None = None,
        keys_as: str = "uuid7",
        body_bytes_max: int = BODY_BYTES_MAX,
        answer_bytes_max: int = BODY_BYTES_MAX,
        hooks: Iterable[Hook] = (),
        clock: Clock | None = None,
        chance: Callable[[], float] = chance,
    ) -> None:
        if not isinstance(retries, Retries | None):
            raise Misuse(
                f"retries={retries!r}: it takes a Retries, such as Retries(attempts_max=3)"
            )
        if not isinstance(budget, RetryBudget | None):
            raise Misuse(f"budget={budget!r}: it takes a RetryBudget(…)")
        numbers = {"body_bytes_max": body_bytes_max, "answer_bytes_max": answer_bytes_max}
        must_be_limits("retrying", numbers)
        self.profile = profiles.profile(profile)
        self.clock = clock or SystemClock()
        self.body_bytes_max = body_bytes_max
        self.answer_bytes_max = answer_bytes_max
        self._make_key = keys.kind(keys_as)
        if self.profile.uuid_only and keys_as == "ulid":
            raise Misuse(f"profile {self.profile.name!r} takes only UUIDs: leave keys_as out")
        own = self.profile.policy.methods
        chosen = methods if methods is not None else METHODS if own is INHERIT else own
        if not are_names(chosen):
            raise Misuse(f"methods={chosen!r}: takes a list of names, such as ['POST']")
        self._methods = frozenset(method.upper() for method in chosen)
        self.header = _plain_header(self.profile)
        self._sent_requests = SentRequests()
        self._hooks = Hooks(hooks)
        loop = RetryLoop(
            self.profile,
            retries or Retries(),
            budget or RetryBudget(),
            self.clock,
            chance,
            self._observe,
            # Whether anything observes plain successes.
            (lambda: True) if self._hooks else partial(_log.isEnabledFor, logging.DEBUG),
        )
        self.begin, self.continue_delivery = loop.begin, loop.continue_delivery
        self.is_plain_success = loop.is_plain_success

    def new_key(self) -> str:
        """Make a new key."""
        return self._make_key(self.clock.wall(), random_token())

    def handles(self, method: str, mark: object) -> bool:
        """Whether a request gets a key and retries; others are sent unchanged."""
        return method.upper() in self._methods or mark is not None

    def plan(
        self,
        request: OutgoingRequest,
        prior: str | GivenKey | RequestMark | None = None,
        body: object = None,
    ) -> DeliveryPlan:
        """Plan how to send a request. `prior` is a key the caller passes beside it, or the mark of
        an earlier send; `body` is the library's own body object.
        """
        if isinstance(prior, RequestMark):
            return self._plan_marked(request, prior, body)
        return self._plan_new(request, prior, read_key(request, self.profile), body)

    def _plan_new(
        self,
        request: OutgoingRequest,
        prior: str | GivenKey | None,
        callers_key: str | None,
        body: object,
    ) -> DeliveryPlan:
        given = GivenKey(prior) if isinstance(prior, str) else prior
        key = self._key(request, given, callers_key)
        first_sent = given.first_sent if given else None
        mark = RequestMark(
            key,
            request.url,
            body,
            self.clock.wall() if first_sent is None else first_sent,
            given.until if given else None,
        )
        first = given is None and callers_key is None
        return self._plan_with_key(request, mark, callers_key, must=given is not None, first=first)

    def outcome(
        self, key: str | None, attempts: int, headers: HeaderLookup, gave_up: str | None
    ) -> Outcome:
        """Make the `Outcome` of a response."""
        expires = headers.get(self.profile.expiry_header or "idempotency-expires")
        return Outcome(key, attempts, is_replay(headers, self.profile), expires, gave_up)

    def finish(self, plan: DeliveryPlan, result: DeliveryResult, first: bool) -> WholeResponse:
        """Return the response, or raise the library's own error with a note of ours.

        `first`: nothing was sent with this key before.
        """
        key = plan.key if plan.mark is not None else None
        error: Exception
        if result.mismatch is not None:
            problem = result.mismatch
            detail = redact(problem.detail, key) if key else problem.detail
            error = Mismatch(detail, replace(problem, detail=detail))
        elif isinstance(result.response, NoResponse):
            error = result.response.error
            attempts, reason = result.attempts, result.reason
            error.add_note(error_note(key, attempts, reason, sent=result.sent, first=first))
            if key:
                redact_error(error, key)
        else:
            return result.response
        outcome = Outcome(key, result.attempts, False, None, result.gave_up, result.sent)
        setattr(error, DELIVERY, outcome)
        raise error

    # ------------------------------------------------------------------------------------ parts

    def _plan_marked(
        self, request: OutgoingRequest, mark: RequestMark, body: object
    ) -> DeliveryPlan:
        """Plan a request that was sent before: same key, and the rest of its time and retries."""
        origin = origin_of(request.url)
        if mark.redirect is None:
            return self._plan_resend(request, mark, origin, body)
        if mark.origin != origin:
            return self._plan_other_origin(request, origin, mark)
        callers_key = self._callers_key(request, mark)
        if request.method.upper() not in self._methods:  # a 303, followed by a GET
            no_retry, where = "it is a redirected read", self.profile.key_in
            ours = where.name if mark.is_visible and callers_key is None else None
            return self._make_plan(request, mark, no_retry=no_retry, removed_header=ours)
        if self._is_another_key(callers_key, mark):
            callers_key = None  # other code puts a new key into each request
        return self._plan_with_key(request, mark, callers_key)

    def _plan_resend(
        self, request: OutgoingRequest, mark: RequestMark, origin: str, body: object
    ) -> DeliveryPlan:
        """Plan a request that the caller sends again, perhaps changed."""
        callers_key = self._callers_key(request, mark)
        if self._is_another_key(callers_key, mark) or mark.origin != origin:
            return self._plan_new(request, None, callers_key, body)
        if body != mark.body or request.url != str(mark.url):
            self._log_reuse(request, mark.key)
        return self._plan_with_key(request, mark, callers_key)

    def _callers_key(self, request: OutgoingRequest, mark: RequestMark) -> str | None:
        """Return the key that the caller put into a request, not one that we wrote there."""
        callers_key = read_key(request, self.profile)
        if callers_key is None or not mark.is_visible:
            return callers_key
        return callers_key if self._is_another_key(callers_key, mark) else None

    def _is_another_key(self, callers_key: str | None, mark: RequestMark) -> bool:
        return callers_key is not None and valid_key(callers_key, self.profile) != mark.key

    def _plan_other_origin(
        self, request: OutgoingRequest, origin: str, mark: RequestMark
    ) -> DeliveryPlan:
        """Plan a redirect to another origin: it must not see the key, so it is sent only once.

        The mark stays, so that a redirect back does not lose the key.
        """
        where = self.profile.key_in
        is_set = isinstance(where, Header) and request.headers.get(where.name.lower())
        header = where.name if is_set else None
        no_retry = "it was redirected to another origin, where its key is not shown"
        return self._make_plan(
            request, mark, no_retry=no_retry, removed_header=header, host=_host(origin)
        )

    def _plan_with_key(
        self,
        request: OutgoingRequest,
        mark: RequestMark,
        callers_key: str | None,
        *,
        must: bool = False,
        first: bool = False,
    ) -> DeliveryPlan:
        # Do not rewrite the caller's own key in another spelling.
        changes = NO_CHANGES if callers_key else place_key(request, self.profile, mark.key)
        if changes is None:
            no_place = f"it has no place for a key: {_place_of(self.profile)}"
            if must:  # the caller asked for a key
                raise Misuse(f"this request was not sent: {no_place}")
            host = _host(mark.origin)
            _log.warning("%s %s is sent once, without a key: %s", request.method, host, no_place)
            return DeliveryPlan(request.method, host, None, no_place, first=first)
        is_visible = callers_key is None and isinstance(self.profile.key_in, Header)
        mark = replace(mark, is_visible=is_visible)
        no_retry = (
            "its body is a stream, which cannot be sent twice" if request.body is None else None
        )
        if self.profile.first_sent_in is not None:
            changes = self._add_first_sent(
                request, changes, self.profile.first_sent_in, mark.first_sent
            )
        return self._make_plan(request, mark, no_retry=no_retry, changes=changes, first=first)

    def _make_plan(
        self,
        request: OutgoingRequest,
        mark: RequestMark,
        *,
        no_retry: str | None,
        changes: KeyChanges = NO_CHANGES,
        removed_header: str | None = None,
        host: str | None = None,
        first: bool = False,
    ) -> DeliveryPlan:
        return DeliveryPlan(
            request.method,
            host or _host(mark.origin),
            mark.key,
            no_retry,
            retries=mark.attempts - 1,
            until=mark.until or usable_until(mark.first_sent, self.profile.relied_s),
            changes=changes,
            mark=mark,
            removed_header=removed_header,
            first=first,
        )

    def _key(
        self, request: OutgoingRequest, given: GivenKey | None, callers_key: str | None
    ) -> str:
        if given and callers_key and given.key != callers_key:
            raise Misuse("this request was not sent: it has one key and was given another")
        chosen = given.key if given else callers_key
        if chosen is None:
            return self.new_key()
        key = valid_key(chosen, self.profile)
        self._check_reuse(request, key)
        return key

    def _add_first_sent(
        self, request: OutgoingRequest, changes: KeyChanges, stamp: Header, first_sent: float
    ) -> KeyChanges:
        if request.headers.get(stamp.name.lower()) is not None:
            return changes
        line = stamp.name, http_date(first_sent).decode("ascii")
        return KeyChanges((*changes.headers, line), changes.url, changes.body)

    def _check_reuse(self, request: OutgoingRequest, key: str) -> None:
        now, origin = fingerprint(request, self.profile), origin_of(request.url)
        if now is not None and self._sent_requests.is_different(origin, key, now):
            self._log_reuse(request, key)

    def _log_reuse(self, request: OutgoingRequest, key: str) -> None:
        _log.warning(
            "%s %s key=%s: this key was sent before with another request. A server refuses "
            "that, or returns the other request's response: use one key per intent.",
            request.method,
            origin_of(request.url),
            short_hash(key),
        )

    def _observe(self, event: Attempted) -> None:
        logged(event)
        if self._hooks:
            self._hooks(event)


def _plain_header(profile: Profile) -> str | None:
    """Return the header to set, if the profile needs nothing but a plain header."""
    where = profile.key_in
    if not isinstance(where, Header) or profile.first_sent_in or profile.key_quoted:
        return None
    return where.name


def _place_of(profile: Profile) -> str:
    where = profile.key_in
    what = "the body's field" if isinstance(where, BodyField) else "the request's"
    return f"the profile {profile.name!r} wants it in {what} {where.name}"


def _host(origin: str) -> str:
    return origin.partition("://")[2]
