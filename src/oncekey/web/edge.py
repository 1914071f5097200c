"""The edge: what ASGI and WSGI share. It reads requests into calls and knows no sync from async.

From the raw request to the engine's `Call`: key, tenant, size, fingerprint, in the order in which a
refusal must not have cost anything. And back: what an answer means for its record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from oncekey.atomic import Adapter, AsyncUnit, Unit, check
from oncekey.attempt import Attempt, failed_honestly
from oncekey.core import declared, profiles
from oncekey.core import fingerprint as fingerprints
from oncekey.core.fingerprint import BadBody
from oncekey.core.first_sent import check_first_sent, first_sent
from oncekey.core.headers import (
    first_headers,
    kept_answer,
    kept_headers,
    replay_headers,
    says_transient,
)
from oncekey.core.key import BadKey
from oncekey.core.policy import Policy, Verdict, as_policy
from oncekey.core.printable import printable
from oncekey.core.problem import Kind, Problem
from oncekey.core.profiles import BodyField, Header, Profile, QueryParameter
from oncekey.core.quota import Quota
from oncekey.core.record import Answer
from oncekey.core.scope import OPERATION_CHARS_MAX, TENANT_CHARS_MAX, is_kept
from oncekey.errors import Misuse
from oncekey.events import Hook
from oncekey.guard import Call, Finished, Given, Refuse, Replay, Stored, Unstored
from oncekey.runtime import Runtime
from oncekey.stores.base import Store
from oncekey.web import kept_request as kept_requests
from oncekey.web.capture import Capture
from oncekey.web.content import compared, content_type
from oncekey.web.recent import BODY_BYTES_MAX, RECENT_S, Asked, Recent
from oncekey.web.request import Request
from oncekey.web.request_key import find_key, missing
from oncekey.web.routes import Route, Routes
from oncekey.web.tenant import Tenant, check_callable

log = logging.getLogger("oncekey")

UNSTORED = (b"idempotency-stored", b"false")

_FINISHED_ALONE = ("resume", "ask")
"""Recoveries by which an operation is finished without its client: its request is kept."""
_MAY_PASS = frozenset({404, 408, 409, 425, 429})
TOLD_MAX = 100
"""About so many operations is told that their requests are too large to keep."""


class Edge:
    """The settings of one middleware and the parts that it runs on."""

    def __init__(
        self,
        *,
        store: str | Store,
        tenant: Tenant,
        policy: Policy | None = None,
        routes: Mapping[str, Policy] | None = None,
        profile: str | Profile = "oncekey",
        hooks: Iterable[Hook] = (),
        status_path: str | None = None,
        recent_s: float = RECENT_S,
        atomic: Adapter | None = None,
        quota: Quota | None = None,
    ) -> None:
        check_callable(tenant)
        if status_path is not None and not str(status_path).startswith("/"):
            raise Misuse(f"status_path={status_path!r}: paths begin with a slash")
        self.profile = profiles.profile(profile)
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
        check(atomic, self.store, self.routes.named)
        self.adapter = atomic
        self.recent = Recent(recent_s)
        self._too_large: set[str] = set()
        key_in = self.profile.key_in
        self.key_header = key_in.name.lower().encode() if isinstance(key_in, Header) else None
        self.key_in_body = isinstance(key_in, BodyField)
        stamped = self.profile.first_sent_in is not None
        self.reads_all = self.routes.required or self.key_header is None or stamped
        """Whether also requests without the header of a key are looked at."""

    # ---------------------------------------------------------------------- reading a request

    def may_bring_key(self, request: Request) -> bool:
        """Whether a request may bring a key, or has to: what can be told without its body."""
        if self.key_header is not None:
            brought = any(name == self.key_header for name, _ in request.headers.lines)
            return brought or self._is_stamped(request)
        return not self.key_in_body or fingerprints.has_fields(content_type(request))

    def key(self, request: Request, route: Route, body: bytes = b"") -> str | Problem | None:
        """The key that the request brings, None if it brings none and needs none."""
        found = find_key(request, self.profile, route.policy, body)
        if isinstance(found, str):
            found = self.profile.key(found)
        if isinstance(found, BadKey):
            return Problem(Kind.INVALID_KEY, found.reason)
        if isinstance(found, BadBody):
            return Problem(Kind.MALFORMED_REQUEST, found.reason)
        is_missed = found is None and (route.policy.required or self._is_stamped(request))
        return missing(self.profile) if is_missed else found

    def _is_stamped(self, request: Request) -> bool:
        """Whether its client says when it first sent it, and so takes it for safe to repeat."""
        stamp = self.profile.first_sent_in
        return stamp is not None and bool(request.headers.all(stamp.name))

    def check_tenant(self, tenant: object) -> str | Problem:
        """A tenant function's result, if it can be one."""
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
        self, request: Request, route: Route, tenant: str, key: str, body: bytes
    ) -> Call | Problem | Answer:
        """The request as the engine sees it; or its answer, where that was sent a moment ago."""
        method, path, query = request.method, request.path, request.query
        kind, coding = map(request.headers.first, (b"content-type", b"content-encoding"))
        asked: Asked | None = None
        if len(body) <= BODY_BYTES_MAX:
            target = self._target(request)
            whole = (key, tenant, route.operation, method, path, query, kind, coding, target, body)
            asked = whole, self.clock.monotonic()
            if (known := self.recent.find(asked)) is not None:
                self.guard.replay(known.replay.record, known.replay.answer, known.ago_s)
                return known.sent
        return self._read(request, route, tenant, key, body, asked)

    def _read(
        self,
        request: Request,
        route: Route,
        tenant: str,
        key: str,
        body: bytes,
        asked: Asked | None,
    ) -> Call | Problem:
        """`call` for what is not remembered."""
        if not is_kept(route.operation, OPERATION_CHARS_MAX) or not is_kept(request.path):
            return Problem(
                Kind.MALFORMED_REQUEST,
                f"The request's path is longer than {OPERATION_CHARS_MAX} characters, or holds "
                "bytes that are not UTF-8, or a zero byte. Send a shorter one, encoded as UTF-8.",
            )
        if not is_kept(tenant, TENANT_CHARS_MAX):
            return Problem(
                Kind.MALFORMED_REQUEST,
                f"The account that this request names is no text of at most {TENANT_CHARS_MAX} "
                "characters. Authenticate with another one.",
            )
        policy, key_in = route.policy, self.profile.key_in
        kind, plain = compared(request, body, policy.request_bytes_max)
        fingerprint = fingerprints.of(
            request.method,
            request.path,
            request.query,
            kind,
            plain,
            target=self._target(request),
            exclude_field=key_in.name if isinstance(key_in, BodyField) else None,
            exclude_parameter=key_in.name if isinstance(key_in, QueryParameter) else None,
        )
        if isinstance(fingerprint, BadBody):
            return Problem(Kind.MALFORMED_REQUEST, fingerprint.reason)
        kept = self._keep(request, route, body) if policy.recovery in _FINISHED_ALONE else None
        digests = fingerprints.field_digests(kind, plain, key) if policy.field_digests else {}
        stamp = self.profile.first_sent_in
        sent = None if stamp is None else first_sent(request.headers.all(stamp.name))
        lasts_s = self._declared(request, policy)
        if isinstance(lasts_s, Problem):
            return lasts_s
        return Call(tenant, route.operation, key, fingerprint, digests, kept, asked, sent, lasts_s)

    def _target(self, request: Request) -> str:
        """What the request asks for beside its path, in profiles that have a header for that."""
        target = self.profile.target_in
        return "" if target is None else request.headers.get(target.name, "")

    def _declared(self, request: Request, policy: Policy) -> float | Problem | None:
        """The retention that the client asks for, where it may."""
        if policy.retention_declared_s is None:
            return None
        lines = request.headers.all(declared.HEADER)
        return declared.declared_retention_s(lines, policy.retention_declared_s) if lines else None

    def _keep(self, request: Request, route: Route, body: bytes) -> bytes | None:
        """The request as it is kept beside its record; None if it is too large."""
        bytes_max = route.policy.request_kept_bytes_max
        if len(body) <= bytes_max:
            kept = kept_requests.encode(kept_requests.keep(request, body))
            if len(kept) <= bytes_max:
                return kept
        if route.operation not in self._too_large and len(self._too_large) < TOLD_MAX:
            self._too_large.add(route.operation)
            log.warning(
                "a request of %s is larger than request_kept_bytes_max=%d: it is not kept, and no "
                "recoverer can finish it if its process dies, only its client's retry",
                printable(route.operation),
                bytes_max,
            )
        return None

    def check_age(self, request: Request, route: Route) -> Problem | None:
        """For profiles whose clients say when they first sent: refuse what is older than memory."""
        stamp = self.profile.first_sent_in
        if stamp is None:
            return None
        lines = request.headers.all(stamp.name)
        return check_first_sent(lines, stamp.name, self.clock.wall(), route.policy.memory_s)

    # ------------------------------------------------------------------------- atomic mode

    def unit(self, policy: Policy) -> Unit | None:
        """What runs a request in one transaction, where its policy says so; for threads."""
        if not policy.atomic or self.adapter is None:
            return None
        return Unit(self.adapter, self.store, policy.atomic_s_max, self.runtime.gatherer.ask)

    def async_unit(self, policy: Policy) -> AsyncUnit | None:
        """The same for an event loop."""
        if not policy.atomic or self.adapter is None:
            return None
        ask = self.runtime.async_gatherer.ask
        return AsyncUnit(self.adapter, self.store, policy.atomic_s_max, ask)

    # ------------------------------------------------------------------- judging an answer

    def judged(self, attempt: Attempt, capture: Capture) -> tuple[Verdict, Answer | None]:
        """What an answer means for its record, and what of it is stored, None where nothing is."""
        verdict = self._verdict(attempt, capture)
        if verdict is not Verdict.KEEP:
            return verdict, None
        headers = kept_headers(capture.headers, attempt.policy, self.profile)
        return verdict, Answer(capture.status, headers, capture.body())

    def _verdict(self, attempt: Attempt, capture: Capture) -> Verdict:
        """What the handler said counts most."""
        if attempt.verdict is not None:
            return attempt.verdict
        if says_transient(capture.headers, self.profile):
            return Verdict.FAILED
        if capture.status == 404 and not capture.matched:  # the router refused, no handler ran
            verdict = Verdict.NO_EFFECT
        else:
            verdict = attempt.policy.keep(capture.status)
        return _of_recovered(attempt, verdict, capture.status) if attempt.recovering else verdict

    def learned(self, attempt: Attempt, learned: object) -> object:
        """What `ask` found out, an answer without what must not be kept of it."""
        if not isinstance(learned, Answer):
            return learned
        return kept_answer(learned, attempt.policy, self.profile)

    def failed_honestly(self, attempt: Attempt, error: BaseException) -> bool:
        """Whether a handler that raised may be run again at once."""
        return attempt.policy.atomic or failed_honestly(attempt, error)

    def first(self, capture: Capture, key: str, stored: Stored) -> list[tuple[bytes, bytes]]:
        """The headers of a first answer, once it is recorded."""
        answer = Answer(capture.status, tuple(capture.headers), capture.body())
        return first_headers(answer, self.profile, key, self.clock.wall() + stored.expires_in_s)

    def replay(self, decided: Replay, call: Call) -> Answer:
        """A kept answer as it is sent again; remembered, for the case that it is asked for soon."""
        sent = self.replayed(decided, call.key)
        if call.asked is not None:
            self.recent.keep(call.asked, decided, sent)
        return sent

    def replayed(self, replay: Replay, key: str) -> Answer:
        """A kept answer as it is sent again."""
        answer = replay.answer
        expires_at = self.clock.wall() + replay.expires_in_s
        headers = replay_headers(answer, self.profile, key, expires_at)
        return Answer(answer.status, tuple(headers), answer.body)

    def decline(self, problem: Problem, route: Route) -> Answer:
        """The refusal of a request that does not come as far as the engine; it is told of."""
        self.guard.declined(route.operation, problem)
        return self.refusal(problem)

    def refusal(self, problem: Problem) -> Answer:
        return profiles.render(problem, self.profile)

    def answer(self, finished: Finished, capture: Capture, key: str) -> Answer | None:
        """What is sent, once it is known how an attempt ended. None: the application's own answer,
        with the headers that it has in `capture` now; else: this one instead.
        """
        match finished:
            case Stored(_, recorded):
                if recorded is not None:
                    capture.replace(recorded)
                headers = self.first(capture, key, finished)
                if recorded is not None:
                    return Answer(recorded.status, tuple(headers), recorded.body)
                capture.headers = headers
                return None
            case Given():
                return None
            case Unstored():
                capture.headers.append(UNSTORED)
                return None
            case Replay():
                return self.replayed(finished, key)
            case Refuse(problem):
                return self.refusal(problem)

    def settled(self, finished: Finished, learned: object, capture: Capture, key: str) -> Answer:
        """What is sent, once `ask` has found out what became of the attempt that died."""
        if isinstance(learned, Answer):
            capture.replace(learned)
        answer = self.answer(finished, capture, key)
        return answer or Answer(capture.status, tuple(capture.headers), capture.body())

    # ------------------------------------------------------------------------ start and end

    def start(self) -> None:
        """Begin housekeeping, and say once which operations run again after a crash."""
        if not self.runtime.start():
            return
        if rerun := self.routes.named(lambda p: p.recovery == "rerun" and not p.atomic):
            log.warning(
                "if a process dies while it runs one of these, a retry runs it again: %s. Where "
                "that could repeat an effect outside the database, set Policy(recovery='block')",
                ", ".join(rerun),
            )

    def stop(self) -> None:
        """Stop the threads; waits for what they have under way."""
        self.runtime.stop()


def _of_recovered(attempt: Attempt, verdict: Verdict, status: int) -> Verdict:
    """What a refusal means where no client can put it right. One that may pass is a failure: the
    recoverer tries again. So is a 404 of the router: another release may know the route.
    """
    if verdict is not Verdict.NO_EFFECT:
        return verdict
    if status in _MAY_PASS:
        return Verdict.FAILED
    log.error(
        "%s: recovered without its client, it was refused with status %d. What the client sent to "
        "identify itself is not kept: where the handler checks that, let it trust "
        "oncekey.current().tenant when oncekey.current().recovering",
        printable(attempt.operation),
        status,
    )
    return verdict
