"""Views: a request that is claimed where its view would run, and whose answer is an object.

For frameworks that check a request before they call its view (Flask, Django). What is refused by
then has spent nothing. The pairs here are one thing each, blocking and awaited.
"""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oncekey import attempt as attempts
from oncekey import learning
from oncekey.atomic import Adapter, Unit, check_thread
from oncekey.attempt import Attempt
from oncekey.core.op import Op
from oncekey.core.policy import Policy
from oncekey.core.problem import Problem
from oncekey.core.profiles import Profile
from oncekey.core.quota import Quota
from oncekey.core.record import Answer
from oncekey.decision import Bypass, Call, Decision, Execute, Finished, Given, Refuse, Replay
from oncekey.errors import Misuse
from oncekey.events import Hook
from oncekey.probes import probe
from oncekey.stores.base import Store
from oncekey.web.capture import Capture
from oncekey.web.edge import UNSTORED, Edge, log
from oncekey.web.marks import SAFE, Mark, Marked, adapter_of_routes
from oncekey.web.request import Request
from oncekey.web.routes import Route
from oncekey.web.tenant import Tenant

_VARIABLE = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")


class Visit:
    """A view that is to run, and whose answer is then recorded."""

    __slots__ = ("attempt", "call", "capture", "outer", "unit")

    def __init__(self, call: Call, route: Route, unit: Unit | None = None) -> None:
        self.attempt: Attempt | None = None
        """None: the store is down, and the policy lets it run unprotected."""
        self.call = call
        self.unit = unit
        """In atomic mode: its transaction."""
        self.outer = attempts.current_or_none()
        """The attempt whose handler sent this request itself, if one did."""
        self.capture = Capture(route.policy.answer_bytes_max)
        self.capture.matched = True


def _must_change(whose: str, methods: Iterable[str]) -> None:
    """Raise `Misuse` for rules of methods at which nobody looks here."""
    if safe := SAFE.intersection(methods):
        raise Misuse(
            f"{whose}: Policy(methods={(*sorted(safe),)}) guards nothing here, where only views "
            "are guarded that change something; around the application, IdempotencyMiddleware of "
            "oncekey.web.wsgi or .asgi guards any method"
        )


Begun = Visit | Answer | None
"""Run it and record its answer; do not run it, this is its answer; just run it."""


class Views:
    """Guards the views of one application."""

    def __init__(
        self,
        *,
        store: str | Store,
        tenant: Tenant,
        policy: Policy | None = None,
        routes: Mapping[str, Policy] | None = None,
        profile: str | Profile = "oncekey",
        hooks: Iterable[Hook] = (),
        atomic: Adapter | None = None,
        quota: Quota | None = None,
    ) -> None:
        check_thread(atomic)
        self.edge = Edge(
            store=store,
            tenant=tenant,
            policy=policy,
            routes=routes,
            profile=profile,
            hooks=hooks,
            atomic=adapter_of_routes(atomic, policy, routes),
            quota=quota,
        )
        settled = self.edge.routes
        looks = ", ".join(settled.named(lambda policy: bool(SAFE.intersection(policy.methods))))
        _must_change(looks, settled.methods)
        self.runtime = self.edge.runtime
        self._marked = Marked(self.edge, policy, atomic)
        atexit.register(self.close)

    def route(self, request: Request, template: str, mark: Mark | None) -> Route | None:
        """What applies to a view; None where nothing does. `template` is the path as the framework
        writes it: `/orders/<int:number>`.
        """
        method = request.method
        if mark is None:
            policy = self.edge.routes.match(method, request.path, request.root).policy
        elif (marked := self._marked.policy(mark, frozenset({method}))) is not None:
            policy = marked
        else:
            return None
        if method not in policy.methods:
            return None
        named = _VARIABLE.sub(r"{\1}", template)
        return Route(f"{method} {request.root}{named}", policy)

    def check(self, views: Iterable[Any]) -> None:
        """Raise `Misuse` for marks on these views, which are all that there are, that cannot be
        heeded; and where atomic mode was prepared that none of them asks for.
        """
        for policy in self._marked.check(views):
            _must_change("@idempotent", policy.methods)

    def close(self) -> None:
        """Stop what runs beside the requests and give the connections back."""
        atexit.unregister(self.close)
        self.runtime.close()

    # ------------------------------------------------------------------- before the view

    def begin_sync(self, request: Request, route: Route, body: bytes) -> Begun:
        """Claim the request's key; what to do then."""
        key = self._key(request, route, body)
        if not isinstance(key, str):
            return key
        call = self._call(request, route, self.edge.tenant(request), key, body)
        if isinstance(call, Answer):
            return call
        guard, background = self.runtime.guard, self.runtime.background
        unit = self.edge.unit(route.policy)
        drive = (unit or self.runtime).drive_sync
        claim = guard.claim(call, route.policy)
        try:
            decision: Decision = drive(guard.begin(call, route.policy, claim))
        except BaseException:  # a signal's: the insert may have happened, and nobody would own it
            if unit is None:
                background.forget_sync(claim)
            raise
        if isinstance(decision, Refuse) and decision.lost_claim is not None:
            background.forget_sync(decision.lost_claim)
        begun = self._begun(decision, Visit(call, route, unit))
        if isinstance(begun, Visit) and begun.attempt is not None:
            if unit is None:
                begun.attempt.ports = self.runtime.ports_sync()
            if begun.attempt.asks:
                with self._leaving(begun):
                    learned = learning.ask_sync(begun.attempt)
                    kept = self.edge.learned(begun.attempt, learned)
                    finished = drive(guard.learned(begun.attempt, kept, call))
                return self._learned(begun, learned, finished)
        return begun

    async def begin(self, request: Request, route: Route, body: bytes) -> Begun:
        """`begin_sync`, awaited. Not for atomic mode: what opens its transaction belongs to a
        thread.
        """
        key = self._key(request, route, body)
        if not isinstance(key, str):
            return key
        tenant = self.edge.tenant(request)
        tenant = await tenant if inspect.isawaitable(tenant) else tenant
        call = self._call(request, route, tenant, key, body)
        if isinstance(call, Answer):
            return call
        guard, background = self.runtime.guard, self.runtime.background
        claim = guard.claim(call, route.policy)
        try:
            decision = await self.runtime.drive(guard.begin(call, route.policy, claim))
        except asyncio.CancelledError:  # the insert may be under way, and nobody would own it
            background.forget(claim)
            raise
        if isinstance(decision, Refuse) and decision.lost_claim is not None:
            background.forget(decision.lost_claim)
        begun = self._begun(decision, Visit(call, route))
        if isinstance(begun, Visit) and begun.attempt is not None:
            begun.attempt.ports = self.runtime.ports()
            if begun.attempt.asks:
                with self._leaving(begun):
                    learned = await learning.ask(begun.attempt)
                    kept = self.edge.learned(begun.attempt, learned)
                    finished = await self.runtime.drive(guard.learned(begun.attempt, kept, call))
                return self._learned(begun, learned, finished)
        return begun

    def _key(self, request: Request, route: Route, body: bytes) -> str | Answer | None:
        key = self.edge.key(request, route, body)
        if isinstance(key, str):
            key = self.edge.check_age(request, route) or key
        return self.edge.decline(key, route) if isinstance(key, Problem) else key

    def _call(
        self, request: Request, route: Route, tenant: Any, key: str, body: bytes
    ) -> Call | Answer:
        edge = self.edge
        known = edge.check_tenant(tenant)
        call = known if isinstance(known, Problem) else edge.call(request, route, known, key, body)
        if isinstance(call, Problem):
            return edge.decline(call, route)
        if isinstance(call, Answer):
            return call
        edge.start()
        # Who sent it was checked before, outside: no recoverer could pass there without the client.
        return dataclasses.replace(call, request=None)

    def _begun(self, decision: Decision, visit: Visit) -> Visit | Answer:
        match decision:
            case Execute(attempt):
                visit.attempt = attempt
                if visit.unit is None:
                    self.edge.heartbeat.add(attempt)
                attempts.enter(attempt)
                return visit
            case Replay():
                return self.edge.replay(decision, visit.call)
            case Refuse(problem):
                return self.edge.refusal(problem)
            case Bypass():
                return visit

    def _learned(self, visit: Visit, learned: object, finished: Finished | None) -> Visit | Answer:
        """What is answered, now that it is known what became of the attempt that died; the visit,
        if the view is to run.
        """
        if finished is None:
            return visit
        self.leave(visit)
        return self.edge.settled(finished, learned, visit.capture, visit.call.key)

    # -------------------------------------------------------------------- after the view

    def end_sync(self, visit: Visit) -> Answer | None:
        """Record what the view answered, which is in the visit's capture. None: that is sent, with
        the headers that it has there now; else: this instead.
        """
        if (op := self._conclusion(visit)) is None:
            return None
        finished: Finished = (visit.unit or self.runtime).drive_sync(op)
        return self.edge.answer(finished, visit.capture, visit.call.key)

    async def end(self, visit: Visit) -> Answer | None:
        """`end_sync`, awaited."""
        if (op := self._conclusion(visit)) is None:
            return None
        finished = await self.runtime.drive(op)
        return self.edge.answer(finished, visit.capture, visit.call.key)

    def _conclusion(self, visit: Visit) -> Op[Finished] | None:
        attempt, capture, edge = visit.attempt, visit.capture, self.edge
        if attempt is None:
            capture.headers.append(UNSTORED)
            return None
        probe("after_handler")
        verdict, kept = edge.judged(attempt, capture)
        return edge.guard.conclude(attempt, verdict, kept, visit.call)

    def fail_sync(self, visit: Visit, error: BaseException) -> Answer | None:
        """The view raised. What is to be answered all the same, if there is something."""
        if (op := self._failure(visit, error)) is None:
            return None
        finished: Finished = (visit.unit or self.runtime).drive_sync(op)
        return self._survived(visit, error, finished)

    async def fail(self, visit: Visit, error: BaseException) -> Answer | None:
        """`fail_sync`, awaited."""
        if (op := self._failure(visit, error)) is None:
            return None
        return self._survived(visit, error, await self.runtime.drive(op))

    def _failure(self, visit: Visit, error: BaseException) -> Op[Finished] | None:
        attempt, edge = visit.attempt, self.edge
        if attempt is None or attempt.finished or not edge.failed_honestly(attempt, error):
            return None
        return edge.guard.conclude_failed(attempt, visit.call)

    def _survived(self, visit: Visit, error: BaseException, finished: Finished) -> Answer | None:
        if isinstance(finished, Given):
            return None
        log.error("%r failed after its outcome was decided", visit.attempt, exc_info=error)
        return self.edge.answer(finished, visit.capture, visit.call.key)

    @contextmanager
    def _leaving(self, visit: Visit) -> Iterator[None]:
        """What is interrupted before the view could begin is left to lapse."""
        try:
            yield
        except BaseException:
            self.leave(visit)
            raise

    def leave(self, visit: Visit) -> None:
        """The view has ended, however it did."""
        if visit.attempt is None:
            return
        if visit.unit is None:
            self.edge.heartbeat.drop(visit.attempt)
        else:
            visit.unit.close()
        attempts.leave(visit.outer)
