"""The edge: what ASGI, WSGI and all frameworks share. It knows neither threads nor event loops.

It reads a request into the engine's `Call`: rules, key, tenant, size, fingerprint, in the order in
which a refusal costs least. And it tells what a response means for its record, and what is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from oncekey._core import endings, profiles, refusals, retention
from oncekey._core import key as keys
from oncekey._core.endings import End
from oncekey._core.fingerprint import BadBody, field_digests
from oncekey._core.key import BadKey
from oncekey._core.key_age import check_first_sent, parse_first_sent
from oncekey._core.policy import CONDITIONAL, Policy, Verdict, as_policy
from oncekey._core.printable import printable
from oncekey._core.problems import Kind, Problem
from oncekey._core.profiles import BodyField, Header, Profile, QueryParameter
from oncekey._core.quota import Quota
from oncekey._core.record import Answer
from oncekey._core.response_headers import (
    first_headers,
    kept_answer,
    kept_headers,
    replay_headers,
    says_transient,
    unknown_headers,
)
from oncekey._core.validation import OPERATION_CHARS_MAX, TENANT_CHARS_MAX, is_storable
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call, Finished, Given, GivenUp, Refuse, Replay, Stored, Unstored
from oncekey._engine.runtime import Runtime
from oncekey._system.warn_once import listed, warn
from oncekey.atomic import Adapter, AsyncUnit, Unit, check
from oncekey.errors import Misuse
from oncekey.events import Hook
from oncekey.stores.base import Store
from oncekey.web import _kept_request as kept_requests
from oncekey.web._body import AWAY_BYTES_MIN, Body
from oncekey.web._capture import Capture
from oncekey.web._content import content_type, fingerprint, plain_body
from oncekey.web._replay_cache import BODY_BYTES_MAX, RECENT_S, Asked, Recent
from oncekey.web._request import Headers, Request
from oncekey.web._request_key import find_in_body, find_in_query, may_hold_key, missing_key
from oncekey.web._routes import Route, Routes
from oncekey.web._tenant import Tenant, check_callable

log = logging.getLogger("oncekey")

Line = tuple[bytes, bytes]
UNSTORED = (b"idempotency-stored", b"false")

OVERRIDES = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
"""Headers by which some middleware lets a client name another method than the request has."""
_METHODS_MAX = 4
"""Of those that one request names, how many are looked at."""
_TWO_METHODS = Problem(
    Kind.MALFORMED_REQUEST,
    "The request has one method, and a header of it names another. Send it with the method that is "
    "meant, and without that header.",
)
_HEAD = Problem(
    Kind.MALFORMED_REQUEST,
    "HEAD may run what GET runs, and has no answer that could be kept. Send it with GET.",
)
_TWO_ROUTES = Problem(
    Kind.MALFORMED_REQUEST,
    "The request's path can be read as the path of another operation, which has other rules. Send "
    "it without repeated slashes, dots between slashes or a slash at the end.",
)
_BAD_PATH = Problem(
    Kind.MALFORMED_REQUEST,
    f"The request's path is longer than {OPERATION_CHARS_MAX} characters, or holds bytes that are "
    "not UTF-8, or a zero byte. Send a shorter one, encoded as UTF-8.",
)
_BAD_TENANT = Problem(
    Kind.MALFORMED_REQUEST,
    f"The account that this request names is no text of at most {TENANT_CHARS_MAX} characters. "
    "Authenticate with another one.",
)

_FINISHED_ALONE = ("resume", "ask")
"""Recoveries that finish an operation without its client: its request is stored."""
_MAY_PASS = frozenset({404, 408, 409, 425, 429})
_LIMITS = frozenset({Kind.TOO_LARGE, Kind.NO_ROOM})
TOLD_MAX = 100
"""So often at most the log is told of limits that requests have met, but for those of operations
that have a name: paths that clients make up must not silence it.
"""


class Edge:
    """The settings of one middleware, and the parts that it runs on."""

    def __init__(
        self,
        *,
        store: str | Store,
        tenant: Tenant,
        policy: Policy | None = None,
        routes: Mapping[str, Policy] | None = None,
        profile: str | Profile = "oncekey",
        docs_url: str | None = None,
        hooks: Iterable[Hook] = (),
        status_path: str | None = None,
        recent_s: float = RECENT_S,
        atomic: Adapter | None = None,
        quota: Quota | None = None,
    ) -> None:
        check_callable(tenant)
        if status_path is not None and not str(status_path).startswith("/"):
            raise Misuse(f"status_path={status_path!r}: paths begin with a slash")
        self.profile = profiles.profile(profile, docs_url)
        self.routes = Routes(as_policy(policy).over(self.profile.policy), routes)
        self.tenant = tenant
        self.status_path = status_path
        self.runtime = Runtime(
            store,
            hooks=hooks,
            retention_from=self.profile.retention_from,
            profile=self.profile,
            quota=quota,
        )
        for each in self.routes.policies:
            self.runtime.expect(each)
        self.store, self.clock = self.runtime.store, self.runtime.clock
        self.guard, self.heartbeat = self.runtime.guard, self.runtime.heartbeat
        self.guard.reports.names = self.routes.names
        check(atomic, self.store, self.routes.names_where)
        self.adapter = atomic
        self.undecided_routes: Callable[[], list[str]] = self.routes.undecided_routes
        """Lists the routes without a chosen recovery; a form that knows its routes replaces this.
        """
        self.recent = Recent(recent_s)
        self._told: set[tuple[str, str]] = set()
        key_in = self.profile.key_in
        self.key_header = key_in.name.lower().encode() if isinstance(key_in, Header) else None
        self.key_in_body = isinstance(key_in, BodyField)
        self.is_stamped = self.profile.first_sent_in is not None
        """Whether clients say when they first sent a request."""
        self.reads_all = self.routes.required or self.key_header is None or self.is_stamped
        """Whether requests without the key's header must be read too."""

    # ---------------------------------------------------------------------- reading a request

    def route(self, request: Request) -> Route | Answer | None:
        """Find the rules that apply to a request; or its refusal; or None, where it is not guarded.
        A request that brings no key and needs none passes, whatever it may mean.
        """
        method, routes = request.method, self.routes
        route = routes.match(method, request.path, request.root)
        is_guarded = method in route.policy.methods
        if route.is_named and is_guarded and route.operation not in routes.names:
            routes.note(route.operation)
        others: tuple[str, ...] = ()
        if not OVERRIDES.isdisjoint(request.headers.first):
            others = _overrides(request.headers, method)
        if not others and not route.is_unclear and (method != "HEAD" or is_guarded):
            return route if is_guarded else None
        return self._check_readings(request, route, others)

    def _check_readings(
        self, request: Request, route: Route, others: tuple[str, ...]
    ) -> Answer | None:
        """Refuse a request that may be read as one by another method or of another route, if any of
        its readings is guarded.
        """
        method, routes = request.method, self.routes
        if "HEAD" in (method, *others) and "HEAD" not in route.policy.methods:
            others = (*others, "GET")  # routers give both to one handler
        possible = {method: route}
        for other in others[:_METHODS_MAX]:
            possible[other] = routes.match(other, request.path, request.root)
        policies = [
            each.policy
            for name, each in possible.items()
            if each.is_unclear or name in each.policy.methods
        ]
        if (
            len(others) > _METHODS_MAX
            or any(policy.required for policy in policies)
            or (policies and self.may_bring_key(request))
        ):
            two_methods = _HEAD if (method, *others) == ("HEAD", "GET") else _TWO_METHODS
            return self.decline(two_methods if others else _TWO_ROUTES, route)
        return None

    def may_bring_key(self, request: Request) -> bool:
        """Return whether a request may have a key or must have one, without reading its body."""
        if self.key_header is not None:
            return self.key_header in request.headers.first or self._is_stamped(request)
        return not self.key_in_body or may_hold_key(request)

    def key(self, request: Request, route: Route, body: Body | None = None) -> str | Problem | None:
        """Return the key of the request, None if it has none and needs none."""
        found: str | BadKey | BadBody | Problem | None
        chars_min = route.policy.key_chars_min
        match self.profile.key_in:
            case Header():
                lines = [text for name, text in request.headers.lines if name == self.key_header]
                found = keys.parse(lines, chars_min=chars_min) if lines else None
            case QueryParameter(name):
                found = find_in_query(request, name, chars_min)
            case BodyField(name):
                found = find_in_body(request, body or Body(), name, chars_min)
        if isinstance(found, str):
            found = self.profile.key(found)
        if isinstance(found, BadKey):
            return Problem(Kind.INVALID_KEY, found.reason)
        if isinstance(found, BadBody):
            return Problem(Kind.MALFORMED_REQUEST, found.reason)
        if found is None and (route.policy.required or self._is_stamped(request)):
            return missing_key(self.profile)
        return found

    def _is_stamped(self, request: Request) -> bool:
        """Return whether the client says when it first sent it, and so expects a safe retry."""
        stamp = self.profile.first_sent_in
        return stamp is not None and bool(request.headers.all(stamp.name))

    def check_tenant(self, tenant: object) -> str | Problem:
        """Return the result of a tenant function, if it is a valid tenant."""
        if isinstance(tenant, str) and tenant:
            return tenant
        if tenant is None or tenant == "":
            return Problem(
                Kind.NO_TENANT,
                "The account that this request belongs to is not known, so its key cannot be "
                "looked up. Authenticate first.",
            )
        raise Misuse(f"the tenant function returned {type(tenant).__name__}; it must return a str")

    def call(
        self, request: Request, route: Route, tenant: str, key: str, body: Body
    ) -> Call | Problem | Answer:
        """Make the engine's `Call` of a request; or return its response, if that was sent a moment
        ago. Slow if `takes_long` says so.
        """
        operation, policy, profile = route.operation, route.policy, self.profile
        target = "" if profile.target_in is None else self._target(request)
        asked: Asked | None = None
        if self.recent.seconds and body.size <= BODY_BYTES_MAX:
            first = request.headers.first
            kind, coding = first.get(b"content-type", b""), first.get(b"content-encoding", b"")
            head = request.method, request.path, request.query, kind, coding
            asked = (key, tenant, operation, *head, target, body.content()), self.clock.monotonic()
            if (known := self.recent.find(asked)) is not None:
                self.guard.replays.replay(known.replay.record, known.replay.answer, known.ago_s)
                return known.sent
        if (
            len(operation) > OPERATION_CHARS_MAX
            or len(tenant) > TENANT_CHARS_MAX
            or not is_storable(f"{operation}{request.path}{tenant}")
        ):
            is_path = len(operation) > OPERATION_CHARS_MAX or not is_storable(
                operation + request.path
            )
            return _BAD_PATH if is_path else _BAD_TENANT
        made = fingerprint(request, body, profile, target, policy.request_bytes_max)
        if isinstance(made, BadBody):
            return Problem(Kind.MALFORMED_REQUEST, made.reason)
        kept = self._keep(request, route, body) if policy.recovery in _FINISHED_ALONE else None
        digests = self._digests(request, body, key) if policy.field_digests else {}
        stamp = profile.first_sent_in
        sent = None if stamp is None else parse_first_sent(request.headers.all(stamp.name))
        lasts_s = (
            None
            if policy.retention_declared_s is None
            else self._requested_retention(request, policy)
        )
        if isinstance(lasts_s, Problem):
            return lasts_s
        away = body.put_away if body.size > AWAY_BYTES_MIN else None
        named = tenant, operation, key
        return Call(*named, made, digests, kept, asked, sent, lasts_s, put_away=away)

    @staticmethod
    def _digests(request: Request, body: Body, key: str) -> dict[str, str]:
        """Digest each field; none if the body is not parsed."""
        plain = plain_body(request, body)
        return {} if plain is None else field_digests(content_type(request), plain, key)

    def _target(self, request: Request) -> str:
        """Return the header that names the operation, in profiles that have one."""
        target = self.profile.target_in
        return "" if target is None else request.headers.get(target.name, "")

    def _requested_retention(self, request: Request, policy: Policy) -> float | Problem | None:
        """Return the retention that the client asks for."""
        lines, range_s = request.headers.all(retention.REQUEST_HEADER), policy.retention_declared_s
        return retention.requested_retention_s(lines, range_s) if lines and range_s else None

    def _keep(self, request: Request, route: Route, body: Body) -> bytes | None:
        """Encode the request to store it with its record; None if it is too large."""
        bytes_max = route.policy.request_kept_bytes_max
        if body.size <= bytes_max:
            kept = kept_requests.encode(kept_requests.keep(request, body.content()))
            if len(kept) <= bytes_max:
                return kept
        if self._is_told_first(route.operation, "kept"):
            log.warning(
                "a request of %s is larger than request_kept_bytes_max=%d: it is not kept, and no "
                "recoverer can finish it if its process dies, only its client's retry",
                printable(route.operation),
                bytes_max,
            )
        return None

    def _is_told_first(self, operation: str, what: str) -> bool:
        """Return whether to log this about an operation: it was not logged yet."""
        has_room = len(self._told) < TOLD_MAX or operation in self.routes.names
        first = has_room and (operation, what) not in self._told
        if first:
            self._told.add((operation, what))
        return first

    def check_age(self, request: Request, route: Route) -> Problem | None:
        """Refuse a request that its client first sent longer ago than records are kept."""
        stamp = self.profile.first_sent_in
        if stamp is None:
            return None
        lines = request.headers.all(stamp.name)
        return check_first_sent(lines, stamp.name, self.clock.wall(), route.policy.memory_s)

    # ------------------------------------------------------------------------- atomic mode

    def unit(self, policy: Policy, *, plain: bool = False) -> Unit | None:
        """Make the unit that runs a request in one transaction, if its policy is atomic; for
        threads. `plain`: the request has no key.
        """
        if not policy.atomic or self.adapter is None:
            return None
        ask, unused = self.runtime.gatherer.ask, self.guard.reports.not_atomic
        return Unit(self.adapter, self.store, policy.atomic_s_max, ask, unused, plain=plain)

    def async_unit(self, policy: Policy, *, plain: bool = False) -> AsyncUnit | None:
        """Make the same for an event loop."""
        if not policy.atomic or self.adapter is None:
            return None
        ask = self.runtime.async_gatherer.ask
        unused = self.guard.reports.not_atomic
        return AsyncUnit(self.adapter, self.store, policy.atomic_s_max, ask, unused, plain=plain)

    # ------------------------------------------------------------------- judging an answer

    def classify(self, attempt: Attempt, capture: Capture) -> tuple[End, Answer | None]:
        """Tell what an answer means for its record, and what of it is stored, None where nothing
        is. What the handler said counts most, then a header of the profile, then the status.
        """
        policy, status = attempt.policy, capture.status
        if attempt.verdict is not None and attempt.protected:
            end = endings.end_of_verdict(attempt.verdict)
        elif self.profile.transient_header and says_transient(capture.headers, self.profile):
            end = End.TRANSIENT
        else:
            if status == 404 and not capture.matched:  # the router refused, no handler ran
                verdict = Verdict.NO_EFFECT
            else:
                verdict = policy.keep(status)
            if attempt.recovering:
                verdict = _of_recovered(attempt, verdict, status)
            end = endings.end_of_status(verdict, status, policy)
        operation = attempt.claim.operation
        if capture.has_static_route and operation not in self.routes.names:
            self.routes.note(operation)
        if end is End.KEPT and capture.status in CONDITIONAL:
            end = End.NO_EFFECT
        if end is not End.KEPT:
            return end, None
        headers = kept_headers(capture.headers, policy, self.profile)
        return end, Answer(status, headers, capture.body)

    def storable_finding(self, attempt: Attempt, learned: object) -> object:
        """Return what `ask` found; a response without what must not be stored."""
        if not isinstance(learned, Answer):
            return learned
        return kept_answer(learned, attempt.policy, self.profile)

    def replay(self, replay: Replay, key: str, asked: Asked | None = None) -> Answer:
        """Render a stored response as a replay; `asked` remembers it for a moment, in case the
        request comes once more.
        """
        answer, expires_at = replay.answer, self.clock.wall() + replay.expires_in_s
        headers = replay_headers(answer, self.profile, key, expires_at)
        sent = Answer(answer.status, tuple(headers), answer.body)
        if asked is not None:
            self.recent.keep(asked, replay, sent)
        return sent

    def decline(self, problem: Problem, route: Route) -> Answer:
        """Refuse a request before it reaches the engine; log and count it."""
        if problem.kind in _LIMITS and self._is_told_first(route.operation, problem.kind):
            log.warning("%s: a request was refused. %s", printable(route.operation), problem.detail)
        self.guard.reports.decline(route.operation, problem)
        return self.refusal(problem)

    def refusal(self, problem: Problem) -> Answer:
        return profiles.render(problem, self.profile)

    def mark_unknown(self, headers: Iterable[Line]) -> list[Line]:
        """Add to the headers of the application's response that its outcome is unknown."""
        return unknown_headers(headers, self.profile)

    def render_broken(self) -> Answer:
        """Render the response in place of an exception after which the outcome is unknown."""
        refused = profiles.render(refusals.request_failed(), self.profile, 500)
        headers = self.mark_unknown(refused.headers)
        return Answer(refused.status, tuple(headers), refused.body)

    def answer(self, finished: Finished, capture: Capture, key: str) -> Answer | None:
        """Return what to send now that the attempt has ended. None: the application's own response,
        with the headers that `capture` has now; otherwise this one instead.
        """
        match finished:
            case Stored(_, recorded):
                if recorded is not None:
                    capture.replace(recorded)
                whole = Answer(capture.status, tuple(capture.headers), capture.body)
                expires_at = self.clock.wall() + finished.expires_in_s
                capture.headers = first_headers(whole, self.profile, key, expires_at)
                if recorded is not None:
                    return Answer(recorded.status, tuple(capture.headers), recorded.body)
                return None
            case Given():
                return None
            case GivenUp():
                capture.headers = self.mark_unknown(capture.headers)
                return None
            case Unstored():
                capture.headers.append(UNSTORED)
                return None
            case Replay():
                return self.replay(finished, key)
            case Refuse(problem):
                return self.refusal(problem)

    def answer_asked(
        self, finished: Finished, learned: object, capture: Capture, key: str
    ) -> Answer:
        """Return what to send once `ask` has found what became of the attempt that died."""
        if isinstance(learned, Answer):
            capture.replace(learned)
        answer = self.answer(finished, capture, key)
        return answer or Answer(capture.status, tuple(capture.headers), capture.body)

    # ------------------------------------------------------------------------ start and end

    def start(self) -> None:
        """Start housekeeping, and warn once of operations that run again after a crash because no
        recovery was chosen.
        """
        if self.runtime.start() and (undecided := self.undecided_routes()):
            warn(
                "recovery",
                f"if a process dies while it runs one of these, a retry runs it again: "
                f"{listed(undecided)}. Where that could repeat an effect outside the database, set "
                "Policy(recovery='block'); Policy(recovery='rerun') says that it is right",
            )

    def stop(self) -> None:
        """Stop the threads, and wait for the work that they have begun."""
        self.runtime.stop()


def _of_recovered(attempt: Attempt, verdict: Verdict, status: int) -> Verdict:
    """Tell what a refusal means if no client can correct the request. One that may pass is a
    failure: the recoverer tries again. So is a 404 of the router: another release may know the
    route.
    """
    if verdict is not Verdict.NO_EFFECT:
        return verdict
    if status in _MAY_PASS:
        return Verdict.FAILED
    log.error(
        "%s: recovered without its client, it was refused with status %d. What the client sent to "
        "identify itself is not kept: where the handler checks that, let it trust "
        "oncekey.current().tenant when oncekey.current().recovering; of FastAPI's guarded routes, "
        "name the dependency in recover_as=…",
        printable(attempt.operation),
        status,
    )
    return verdict


def _overrides(headers: Headers, method: str) -> tuple[str, ...]:
    """List the other methods that headers name. Middleware inside that reads one of them would run
    a route whose rules nobody applied.
    """
    named = (
        content.decode("latin-1").strip().upper()
        for name, content in headers.lines
        if name in OVERRIDES
    )
    return tuple(dict.fromkeys(each for each in named if each != method))
