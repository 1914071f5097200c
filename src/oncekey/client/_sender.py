"""The sender: gives a request its key, and delivers it. All libraries' transports share it."""

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
from oncekey.client import _errors as failing
from oncekey.client import _key_placement as place
from oncekey.client import keys
from oncekey.client._budget import RetryBudget
from oncekey.client._classify import Broken, Headers, Reply, replayed
from oncekey.client._counters import logged
from oncekey.client._errors import show
from oncekey.client._key_placement import NOTHING, Outgoing, Placed
from oncekey.client._request_mark import DELIVERY, Given, Mark
from oncekey.client._retention import usable_until
from oncekey.client._retry import Attempts, Call, Ended, Retries
from oncekey.client._reuse import Reuse
from oncekey.errors import Mismatch, Misuse
from oncekey.events import Attempted, Hook, Hooks

METHODS = ("POST", "PUT", "PATCH", "DELETE")
"""What changes state. Everything else is sent as it is."""
BODY_BYTES_MAX = 8 * 1024 * 1024
LATE = "the time for all attempts was over before the whole answer was there"

_log = logging.getLogger("oncekey.client")


@value
class Outcome:
    """What there is to know about a delivered request, beside its answer."""

    key: str | None
    attempts: int
    replayed: bool
    """The answer is a kept one: an earlier attempt had arrived after all."""
    expires: str | None
    """Until when the server remembers the key, as it says (Idempotency-Expires)."""
    gave_up: str | None
    """Why there was no further attempt, though what came back is no outcome: nothing that could be
    asked for again, or the server's word that nobody knows. The intent keeps its key.
    """
    sent: bool = True
    """False where no connection was made: this request was not carried out."""

    __repr__ = show


@value
class Plan(Call):
    """How one request is sent."""

    placed: Placed = NOTHING
    mark: Mark | None = None
    """To be left on the caller's request, for the case that it is redirected."""
    without: str | None = None
    """A header that must not be sent."""
    first: bool = False
    """Nothing can have been sent under its key before."""

    __repr__ = show

    @property
    def shown(self) -> tuple[str, str] | None:
        """The key's header, to be written on the caller's request too."""
        is_shown = self.mark is not None and self.mark.shown
        return self.placed.headers[0] if is_shown and self.placed.headers else None


class Options(TypedDict, total=False):
    """What `retrying` takes beside a transport; what each means is said at `Sender`."""

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


class Sender:
    """One set of rules for all requests of a client."""

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
        self._reuse = Reuse()
        self._hooks = Hooks(hooks)
        attempts = Attempts(
            self.profile,
            retries or Retries(),
            budget or RetryBudget(),
            self.clock,
            chance,
            self._observe,
            # Whether anybody wants to see what goes as it should.
            (lambda: True) if self._hooks else partial(_log.isEnabledFor, logging.DEBUG),
        )
        self.begin, self.smooth, self.go_on = attempts.begin, attempts.smooth, attempts.go_on

    def new_key(self) -> str:
        """A key that nobody has used."""
        return self._make_key(self.clock.wall(), random_token())

    def concerns(self, method: str, mark: object) -> bool:
        """Whether a request is ours to change: the others are sent as they are."""
        return method.upper() in self._methods or mark is not None

    def plan(
        self, request: Outgoing, brought: str | Given | Mark | None = None, body: object = None
    ) -> Plan:
        """How to send it. `brought` is a key that the caller gives beside the request, or the mark
        of one that was sent before; `body` is the request's, as its library has it.
        """
        if isinstance(brought, Mark):
            return self._marked(request, brought, body)
        return self._begun(request, brought, place.given(request, self.profile), body)

    def _begun(
        self, request: Outgoing, brought: str | Given | None, standing: str | None, body: object
    ) -> Plan:
        given = Given(brought) if isinstance(brought, str) else brought
        key = self._key(request, given, standing)
        first_sent = given.first_sent if given else None
        mark = Mark(
            key,
            request.url,
            body,
            self.clock.wall() if first_sent is None else first_sent,
            given.until if given else None,
        )
        first = given is None and standing is None
        return self._placed(request, mark, standing, must=given is not None, first=first)

    def outcome(
        self, key: str | None, attempts: int, headers: Headers, gave_up: str | None
    ) -> Outcome:
        """What an answer says beside what it answers."""
        expires = headers.get(self.profile.expiry_header or "idempotency-expires")
        return Outcome(key, attempts, replayed(headers, self.profile), expires, gave_up)

    def settle(self, plan: Plan, ended: Ended, first: bool) -> Reply:
        """The answer; or the error, in its library's own words and with a note of ours.

        `first`: nothing can have been sent under its key before.
        """
        key = plan.key if plan.mark is not None else None
        error: Exception
        if ended.mismatch is not None:
            detail = failing.hidden(ended.mismatch.detail, key) if key else ended.mismatch.detail
            error = Mismatch(detail, replace(ended.mismatch, detail=detail))
        elif isinstance(ended.answer, Broken):
            error = ended.answer.error
            about = failing.note(key, ended.attempts, ended.reason, sent=ended.sent, first=first)
            error.add_note(about)
            if key:
                failing.hide(error, key)
        else:
            return ended.answer
        told = Outcome(key, ended.attempts, False, None, ended.gave_up, ended.sent)
        setattr(error, DELIVERY, told)
        raise error

    # ------------------------------------------------------------------------------------ parts

    def _marked(self, request: Outgoing, mark: Mark, body: object) -> Plan:
        """It goes on under its key, within what is left of its time and of its retries."""
        origin = place.origin_of(request.url)
        if mark.spent is None:
            return self._resent(request, mark, origin, body)
        if mark.origin != origin:
            return self._elsewhere(request, origin, mark)
        standing = self._standing(request, mark)
        if request.method.upper() not in self._methods:  # a 303, followed by a GET
            once, where = "it is a redirected read", self.profile.key_in
            ours = where.name if mark.shown and standing is None else None
            return self._planned(request, mark, once=once, without=ours)
        if standing is not None and place.usable(standing, self.profile) != mark.key:
            standing = None  # somebody gives each request a new one
        return self._placed(request, mark, standing)

    def _resent(self, request: Outgoing, mark: Mark, origin: str, body: object) -> Plan:
        """The caller sends it again, and may have changed it."""
        standing = self._standing(request, mark)
        another = standing is not None and place.usable(standing, self.profile) != mark.key
        if another or mark.origin != origin:
            return self._begun(request, None, standing, body)
        if body != mark.body or request.url != str(mark.url):
            self._warn(request, mark.key)
        return self._placed(request, mark, standing)

    def _standing(self, request: Outgoing, mark: Mark) -> str | None:
        """The key that its caller has put into a request; what we wrote there ourselves is none."""
        standing = place.given(request, self.profile)
        if standing is None or not mark.shown:
            return standing
        return None if place.usable(standing, self.profile) == mark.key else standing

    def _elsewhere(self, request: Outgoing, origin: str, mark: Mark) -> Plan:
        """Another origin must not see the key, so nothing there can tell a retry: it is sent once.

        The mark goes on, so that a redirect back does not lose the key.
        """
        where = self.profile.key_in
        bare = (
            where.name
            if isinstance(where, Header) and request.headers.get(where.name.lower())
            else None
        )
        once = "it was redirected to another origin, where its key is not shown"
        return self._planned(request, mark, once=once, without=bare, host=_host(origin))

    def _placed(
        self,
        request: Outgoing,
        mark: Mark,
        standing: str | None,
        *,
        must: bool = False,
        first: bool = False,
    ) -> Plan:
        # What stands there is the caller's: it is not written again, in another spelling.
        changes = NOTHING if standing else place.placed(request, self.profile, mark.key)
        if changes is None:
            no_place = f"it has no place for a key: {_place_of(self.profile)}"
            if must:  # asked for with a key, it must not leave without
                raise Misuse(f"this request was not sent: {no_place}")
            host = _host(mark.origin)
            _log.warning("%s %s is sent without a key, once: %s", request.method, host, no_place)
            return Plan(request.method, host, None, no_place, first=first)
        is_shown = standing is None and isinstance(self.profile.key_in, Header)
        mark = replace(mark, shown=is_shown)
        once = "its body is a stream, which cannot be sent twice" if request.body is None else None
        if self.profile.first_sent_in is not None:
            changes = self._dated(request, changes, self.profile.first_sent_in, mark.first_sent)
        return self._planned(request, mark, once=once, placed=changes, first=first)

    def _planned(
        self,
        request: Outgoing,
        mark: Mark,
        *,
        once: str | None,
        placed: Placed = NOTHING,
        without: str | None = None,
        host: str | None = None,
        first: bool = False,
    ) -> Plan:
        return Plan(
            request.method,
            host or _host(mark.origin),
            mark.key,
            once,
            retried=mark.attempts - 1,
            until=mark.until or usable_until(mark.first_sent, self.profile.relied_s),
            placed=placed,
            mark=mark,
            without=without,
            first=first,
        )

    def _key(self, request: Outgoing, given: Given | None, standing: str | None) -> str:
        if given and standing and given.key != standing:
            raise Misuse("this request was not sent: it holds one key, and is given another")
        chosen = given.key if given else standing
        if chosen is None:
            return self.new_key()
        key = place.usable(chosen, self.profile)
        self._warn_of_reuse(request, key)
        return key

    def _dated(
        self, request: Outgoing, changes: Placed, stamp: Header, first_sent: float
    ) -> Placed:
        if request.headers.get(stamp.name.lower()) is not None:
            return changes
        line = stamp.name, http_date(first_sent).decode("ascii")
        return Placed((*changes.headers, line), changes.url, changes.body)

    def _warn_of_reuse(self, request: Outgoing, key: str) -> None:
        now = place.fingerprint(request, self.profile)
        if now is not None and self._reuse.differs(place.origin_of(request.url), key, now):
            self._warn(request, key)

    def _warn(self, request: Outgoing, key: str) -> None:
        _log.warning(
            "%s %s key=%s: this key was sent before with another request. A server refuses that, "
            "or answers with the outcome of the other one: use one key per intent.",
            request.method,
            place.origin_of(request.url),
            short_hash(key),
        )

    def _observe(self, event: Attempted) -> None:
        logged(event)
        if self._hooks:
            self._hooks(event)


def _plain_header(profile: Profile) -> str | None:
    """The header that holds the key and nothing else, if that is all there is to a request."""
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
