"""The sender: gives a request its key, and delivers it. All libraries' transports share it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from oncekey import guard
from oncekey.client import keys, place
from oncekey.client.attempts import Attempts, Call, Ended, Retries
from oncekey.client.budget import RetryBudget
from oncekey.client.place import Outgoing, Placed
from oncekey.client.reuse import Reuse
from oncekey.client.verdict import Broken, Reply
from oncekey.client.watch import Attempted, logged
from oncekey.clock import Clock, SystemClock
from oncekey.core import profiles
from oncekey.core.dates import http_date
from oncekey.core.key import short_hash
from oncekey.core.op import Op
from oncekey.core.policy import INHERIT
from oncekey.core.profiles import BodyField, Header, Profile
from oncekey.core.value import value
from oncekey.errors import Mismatch, Misuse
from oncekey.events import Hook, Hooks

METHODS = ("POST", "PUT", "PATCH", "DELETE")
"""What changes state. Everything else is sent as it is."""
BODY_BYTES_MAX = 8 * 1024 * 1024

_log = logging.getLogger("oncekey.client")


@value
class Mark:
    """What a request that was redirected brings along: its key, and where that may be shown."""

    key: str
    origin: str
    first_sent: float


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
    """Why there was no further attempt, where one would have been in order."""


@value
class Plan:
    """How one request is sent."""

    call: Call
    placed: Placed
    mark: Mark | None
    """To be left on the caller's request, for the case that it is redirected."""
    without: str | None = None
    """A header that must not be sent."""


class Sender:
    """One set of rules for all requests of a client."""

    def __init__(
        self,
        *,
        profile: str | Profile = "oncekey",
        retries: Retries | None = None,
        budget: RetryBudget | None = None,
        methods: Iterable[str] | None = None,
        keys_as: str = "uuid7",
        body_bytes_max: int = BODY_BYTES_MAX,
        answer_bytes_max: int = BODY_BYTES_MAX,
        hooks: Iterable[Hook] = (),
        clock: Clock | None = None,
        chance: Callable[[], float] = guard.chance,
        token: Callable[[], bytes] = guard.random_token,
    ) -> None:
        self.profile = profiles.profile(profile)
        self.clock = clock or SystemClock()
        self.body_bytes_max = body_bytes_max
        self.answer_bytes_max = answer_bytes_max
        self._make_key = keys.kind(keys_as)
        if self.profile.uuid_only and keys_as == "ulid":
            raise Misuse(f"profile {self.profile.name!r} takes only UUIDs: leave keys_as out")
        own = self.profile.policy.methods
        chosen = methods if methods is not None else METHODS if own is INHERIT else own
        self._methods = frozenset(method.upper() for method in chosen)
        self._token = token
        self._reuse = Reuse()
        self._hooks = Hooks(hooks)
        self._attempts = Attempts(
            self.profile,
            retries or Retries(),
            budget or RetryBudget(),
            self.clock,
            chance,
            self._observe,
            self._watched,
        )

    def new_key(self) -> str:
        """A key that nobody has used."""
        return self._make_key(self.clock.wall(), self._token())

    def concerns(self, method: str, mark: object) -> bool:
        """Whether a request is ours to change: the others are sent as they are."""
        return method.upper() in self._methods or isinstance(mark, Mark)

    def plan(self, request: Outgoing, brought: str | Mark | None = None) -> Plan:
        """How to send it. `brought` is a key that the caller gives beside the request, or the mark
        of one that is redirected.
        """
        origin = place.origin_of(request.url)
        host = origin.partition("://")[2]
        if isinstance(brought, Mark):
            if brought.origin != origin:
                return self._elsewhere(request, host, brought)
            if request.method.upper() not in self._methods:  # a 303, followed by a GET
                call = Call(request.method, host, brought.key, "it is a redirected read")
                return Plan(call, Placed(), brought)
        standing = place.given(request, self.profile)
        if isinstance(brought, Mark):
            key, first_sent = brought.key, brought.first_sent
        else:
            key, first_sent = self._key(request, origin, brought, standing), self.clock.wall()
        # What stands there is the caller's: it is not written again, in another spelling.
        changes = Placed() if standing else place.placed(request, self.profile, key)
        once = "its body is a stream, which cannot be sent twice" if request.body is None else None
        if changes is None:
            once = f"it has no place for a key: {_place_of(self.profile)}"
            if isinstance(brought, str):  # asked for with a key, it must not leave without
                raise Misuse(f"this request was not sent: {once}")
            _log.warning("%s %s is sent without a key, once: %s", request.method, host, once)
            return Plan(Call(request.method, host, None, once), Placed(), None)
        changes = self._dated(request, changes, first_sent)
        call = Call(request.method, host, key, once)
        return Plan(call, changes, Mark(key, origin, first_sent))

    def deliver(self, plan: Plan) -> Op[Ended]:
        """Ask for it to be sent until it is settled."""
        return self._attempts.deliver(plan.call)

    def settle(self, plan: Plan, ended: Ended) -> tuple[Reply, Outcome]:
        """The answer; or the error, in its library's own words and with a note of ours."""
        if ended.mismatch is not None:
            raise Mismatch(ended.mismatch.detail, ended.mismatch)
        if isinstance(ended.answer, Broken):
            ended.answer.error.add_note(_note(plan, ended))
            raise ended.answer.error
        expires = ended.answer.headers.get(self.profile.expiry_header or "idempotency-expires")
        key = plan.mark.key if plan.mark else None
        told = Outcome(key, ended.attempts, ended.replayed, expires, ended.gave_up)
        return ended.answer, told

    # ------------------------------------------------------------------------------------ parts

    def _elsewhere(self, request: Outgoing, host: str, mark: Mark) -> Plan:
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
        return Plan(Call(request.method, host, mark.key, once), Placed(), mark, bare)

    def _key(
        self, request: Outgoing, origin: str, brought: str | None, standing: str | None
    ) -> str:
        if brought and standing and brought != standing:
            raise Misuse("this request was not sent: it holds one key, and is given another")
        chosen = brought or standing
        if chosen is None:
            return self.new_key()
        key = place.usable(chosen, self.profile)
        self._warn_of_reuse(request, origin, key)
        return key

    def _dated(self, request: Outgoing, changes: Placed, first_sent: float) -> Placed:
        stamp = self.profile.first_sent_in
        if stamp is None or request.headers.get(stamp.name.lower()) is not None:
            return changes
        line = stamp.name, http_date(first_sent).decode("ascii")
        return Placed((*changes.headers, line), changes.url, changes.body)

    def _warn_of_reuse(self, request: Outgoing, origin: str, key: str) -> None:
        now = place.fingerprint(request, self.profile)
        if now is not None and self._reuse.differs(origin, key, now):
            _log.warning(
                "%s %s key=%s: this key was sent before with another request. A server refuses "
                "that, or answers with the outcome of the other one: use one key per intent.",
                request.method,
                origin,
                short_hash(key),
            )

    def _watched(self) -> bool:
        """Whether anybody wants to see what goes as it should."""
        return bool(self._hooks) or _log.isEnabledFor(logging.DEBUG)

    def _observe(self, event: Attempted) -> None:
        logged(event)
        if self._hooks:
            self._hooks(event)


def _place_of(profile: Profile) -> str:
    where = profile.key_in
    what = "the body's field" if isinstance(where, BodyField) else "the request's"
    return f"the profile {profile.name!r} wants it in {what} {where.name}"


def _note(plan: Plan, ended: Ended) -> str:
    times = "once" if ended.attempts == 1 else f"{ended.attempts} times"
    why = f" Not again, because {ended.gave_up}." if ended.gave_up else ""
    key = plan.mark.key if plan.mark else None
    move = (
        f"To retry, send the same request with the same key, {key}."
        if key
        else "It carried no key: find out whether it was done before you send it again."
    )
    return f"oncekey: sent {times}, and nobody knows whether it was carried out.{why} {move}"
