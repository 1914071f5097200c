"""Guard views: claim a request's key just before its view runs, and record the response it returns.

For frameworks that check a request before they call its view (Flask, Django): a request that they
refuse leaves its key unused. Each step is here twice, blocking and awaited.
"""

from __future__ import annotations

import atexit
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from oncekey._core.op import Op
from oncekey._core.policy import INHERIT, Policy
from oncekey._core.problems import Problem
from oncekey._core.profiles import Profile
from oncekey._core.quota import Quota
from oncekey._core.record import Answer
from oncekey._engine import attempt as attempts
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import (
    Bypass,
    Call,
    Decision,
    Execute,
    Finished,
    Given,
    GivenUp,
    Refuse,
    Replay,
)
from oncekey._engine.keyless import PLAIN, keyless, passing
from oncekey._engine.session import Session
from oncekey._system.offload import cpu_thread
from oncekey._system.probes import probe
from oncekey._system.warn_once import warn
from oncekey.atomic import Adapter, Unit, check_thread
from oncekey.errors import Misuse
from oncekey.events import Hook
from oncekey.stores.base import Store
from oncekey.web._body import Body
from oncekey.web._capture import Capture
from oncekey.web._content import takes_long
from oncekey.web._decorators import SAFE, Mark, Marked, adapter_of_routes
from oncekey.web._edge import UNSTORED, Edge, log
from oncekey.web._request import Request, within
from oncekey.web._routes import Route, Serves
from oncekey.web._tenant import Tenant

_VARIABLE = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")


class ViewCall:
    """One call of a guarded view, whose response is then recorded."""

    __slots__ = ("attempt", "capture", "given_up", "outer", "session", "unit")

    def __init__(self, session: Session, unit: Unit | None = None) -> None:
        self.session = session
        self.attempt: Attempt | None = None
        """None if it runs unprotected: the store is down, and the policy allows it."""
        self.unit = unit
        """In atomic mode: its transaction."""
        self.outer = attempts.position()
        """What `current()` gave before: a handler may have sent this request itself."""
        self.capture = Capture(session.policy.answer_bytes_max)
        self.capture.matched = True
        self.given_up = False
        """It raised, and its outcome is unknown: the framework's response must say so."""


def _must_change(whose: str, methods: Iterable[str]) -> None:
    """Raise `Misuse` for rules of methods that are not guarded here."""
    if safe := SAFE.intersection(methods):
        raise Misuse(
            f"{whose}: Policy(methods={(*sorted(safe),)}) guards nothing here, where only views "
            "are guarded that change something; around the application, IdempotencyMiddleware of "
            "oncekey.web.wsgi or .asgi guards any method"
        )


def _widest(policies: Iterable[Policy]) -> Policy:
    return max(policies, key=lambda policy: policy.request_bytes_max)


Begun = ViewCall | Answer | None
"""Run the view and record its response; or send this response instead; or just run the view."""


class GuardedViews:
    """Guards the views of one application."""

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
            docs_url=docs_url,
            hooks=hooks,
            atomic=adapter_of_routes(atomic, policy, routes),
            quota=quota,
        )
        settled = self.edge.routes
        looks = ", ".join(
            settled.names_where(lambda policy: bool(SAFE.intersection(policy.methods)))
        )
        _must_change(looks, settled.methods)
        self.runtime = self.edge.runtime
        self._marked = Marked(self.edge, policy, atomic)
        self.reading = _widest(settled.policies)
        """The policy for reading a body before its view is known."""
        atexit.register(self.close)

    def route(
        self,
        request: Request,
        template: str,
        mark: Mark | None,
        path: str | None = None,
        serves: Serves | None = None,
    ) -> Route | None:
        """Find the rules of a view; None if it is not guarded. `template` is the path as the
        framework writes it: `/orders/<int:number>`; `path` the request's as it reads it, below the
        root; `serves` tells whether the view is called alike for another one.
        """
        method = request.method
        named = _VARIABLE.sub(r"{\1}", template)
        if mark is None:
            path = within(request.root, request.path) if path is None else path
            policy = self.edge.routes.policy_of(method, path, named, serves)
        elif (marked := self._marked.policy(mark, frozenset({method}))) is not None:
            policy = marked
        else:
            return None
        if method not in policy.methods:
            return None
        operation = f"{method} {request.root}{named}"
        self.edge.routes.note(operation)
        return Route(operation, policy, is_named=True)

    def check(self, views: Iterable[Any]) -> None:
        """Raise `Misuse` for decorators on these views, which are all there are, that cannot work;
        and for an atomic mode that none of them uses.
        """
        policies = self._marked.check(views)
        for policy in policies:
            _must_change("@idempotent", policy.methods)
        self.reading = _widest(policies)
        if any(policy.recovery in ("resume", "ask") for policy in policies):
            warn(
                "recovery",
                "no recoverer finishes views with recovery='resume' or 'ask', only a retry of the "
                "client: it could not sign in as one. What must be finished without a client needs "
                "IdempotencyMiddleware of oncekey.web.wsgi or .asgi around the application",
            )

    def is_guarded(self, method: str, template: str) -> bool:
        """Return whether a view without a decorator is guarded."""
        path = _VARIABLE.sub(r"{\1}", template)
        return method in self.edge.routes.match(method, path).policy.methods

    def undecided_views(self, served: Iterable[tuple[str, str, Mark | None]]) -> list[str]:
        """The guarded views that run again after a crash because nobody has chosen otherwise: of
        these, each with its method, its path and its mark.
        """
        routes, found = self.edge.routes, []
        for method, template, mark in served:
            path = _VARIABLE.sub(r"{\1}", template)
            if mark is None:
                found += routes.undecided_routes([(method, path)])
            elif not routes.chosen and mark.policy is not None:
                settled = self._marked.policy(mark, frozenset({method}))
                is_chosen = mark.policy.recovery is not INHERIT
                if settled and method in settled.methods and not is_chosen | settled.atomic:
                    found.append(f"{method} {path}")
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Stop what runs beside the requests and give the connections back."""
        atexit.unregister(self.close)
        self.runtime.close()

    # ------------------------------------------------------------------- before the view

    def begin_sync(self, request: Request, route: Route, body: Body) -> Begun:
        """Claim the request's key and return what to do next."""
        is_long = takes_long(request, body)
        find = partial(self.edge.key, request, route, body)
        key = self._key(request, route, cpu_thread.run_sync(find) if is_long else find())
        if key is None:
            return self.begin_keyless(route)
        if isinstance(key, Answer):
            return key
        read = partial(self._read, request, route, self.edge.tenant(request), key, body)
        call = self._call(route, cpu_thread.run_sync(read) if is_long else read())
        if isinstance(call, Answer):
            return call
        unit = self.edge.unit(route.policy)
        drive = (unit or self.runtime).drive_sync
        ports = None if unit is not None else self.runtime.ports_sync()
        session = Session(self.runtime.guard, call, route.policy, ports)
        visit = ViewCall(session, unit)
        with self._leave_on_error(visit):
            decision: Decision = drive(session.open())
            begun = self._enter(decision, visit)
            if visit.attempt is not None and visit.attempt.asks:
                learned = session.ask_sync()
                finished = drive(
                    session.learned(self.edge.storable_finding(visit.attempt, learned))
                )
                return self._answer_asked(visit, learned, finished)
        return begun

    def begin_keyless(self, route: Route) -> Begun:
        """Begin a request that has no key and needs none: in atomic mode, a transaction."""
        unit = self.edge.unit(route.policy, plain=True)
        if unit is None:
            return None
        session = Session(PLAIN, keyless(route.operation), route.policy, ports=None)
        decision: Decision = unit.drive_sync(session.open())
        if isinstance(decision, Refuse):
            return self.edge.refusal(decision.problem)
        visit = ViewCall(session, unit)
        if isinstance(decision, Execute):
            visit.attempt = decision.attempt
            attempts.enter(decision.attempt)
        return visit

    async def begin(self, request: Request, route: Route, body: Body) -> Begun:
        """`begin_sync`, awaited. Not for atomic mode: what opens its transaction belongs to a
        thread.
        """
        is_long = takes_long(request, body)
        find = partial(self.edge.key, request, route, body)
        key = self._key(request, route, await cpu_thread.run(find) if is_long else find())
        if not isinstance(key, str):
            return key
        tenant = self.edge.tenant(request)
        tenant = await tenant if inspect.isawaitable(tenant) else tenant
        read = partial(self._read, request, route, tenant, key, body)
        call = self._call(route, await cpu_thread.run(read) if is_long else read())
        if isinstance(call, Answer):
            return call
        runtime = self.runtime
        session = Session(runtime.guard, call, route.policy, runtime.ports())
        visit = ViewCall(session)
        with self._leave_on_error(visit):
            decision = await runtime.drive(session.open())
            begun = self._enter(decision, visit)
            if visit.attempt is not None and visit.attempt.asks:
                learned = await session.ask()
                kept = self.edge.storable_finding(visit.attempt, learned)
                finished = await runtime.drive(session.learned(kept))
                return self._answer_asked(visit, learned, finished)
        return begun

    def _key(
        self, request: Request, route: Route, key: str | Problem | None
    ) -> str | Answer | None:
        if isinstance(key, str):
            key = self.edge.check_age(request, route) or key
        return self.edge.decline(key, route) if isinstance(key, Problem) else key

    def _read(
        self, request: Request, route: Route, tenant: Any, key: str, body: Body
    ) -> Call | Problem | Answer:
        known = self.edge.check_tenant(tenant)
        if isinstance(known, Problem):
            return known
        return self.edge.call(request, route, known, key, body)

    def _call(self, route: Route, call: Call | Problem | Answer) -> Call | Answer:
        edge = self.edge
        if isinstance(call, Problem):
            return edge.decline(call, route)
        if isinstance(call, Answer):
            return call
        edge.start()
        # Who sent it was checked before, outside: no recoverer could pass there without the client.
        return dataclasses.replace(call, request=None)

    def _enter(self, decision: Decision, visit: ViewCall) -> ViewCall | Answer:
        session = visit.session
        match decision:
            case Execute(attempt):
                visit.attempt = attempt
                attempts.enter(attempt)
                return visit
            case Replay():
                return self.edge.replay(decision, session.call.key, session.call.asked)
            case Refuse(problem):
                return self.edge.refusal(problem)
            case Bypass():
                applies = session.call.operation, session.policy
                attempts.serve(passing(lambda: applies, self.edge.store, session.claim))
                return visit

    def _answer_asked(
        self, visit: ViewCall, learned: object, finished: Finished | None
    ) -> ViewCall | Answer:
        """Return the response, now that it is known what became of the attempt that died; the call
        itself if the view must run.
        """
        if finished is None:
            return visit
        self.leave(visit)
        return self.edge.answer_asked(finished, learned, visit.capture, visit.session.call.key)

    # -------------------------------------------------------------------- after the view

    def end_sync(self, visit: ViewCall) -> Answer | None:
        """Record the view's response, which is in the capture. None: send that, with the headers
        that it has now; otherwise send this instead.
        """
        if (op := self._conclusion(visit)) is None:
            return None
        finished: Finished = (visit.unit or self.runtime).drive_sync(op)
        return self.edge.answer(finished, visit.capture, visit.session.call.key)

    async def end(self, visit: ViewCall) -> Answer | None:
        """`end_sync`, awaited."""
        if (op := self._conclusion(visit)) is None:
            return None
        finished = await self.runtime.drive(op)
        return self.edge.answer(finished, visit.capture, visit.session.call.key)

    def _conclusion(self, visit: ViewCall) -> Op[Finished] | None:
        attempt, capture, edge = visit.attempt, visit.capture, self.edge
        if attempt is None:
            capture.headers.append(UNSTORED)
            return None
        probe("after_handler")
        verdict, kept = edge.classify(attempt, capture)
        return visit.session.answered(verdict, kept)

    def fail_sync(self, visit: ViewCall, error: BaseException) -> Answer | None:
        """Record that the view raised; the response, if there is one all the same."""
        if visit.attempt is None:
            return None
        drive = (visit.unit or self.runtime).drive_sync
        return self._answer_failure(visit, error, drive(visit.session.failed(error)))

    async def fail(self, visit: ViewCall, error: BaseException) -> Answer | None:
        """`fail_sync`, awaited."""
        if visit.attempt is None:
            return None
        finished = await self.runtime.drive(visit.session.failed(error))
        return self._answer_failure(visit, error, finished)

    def _answer_failure(
        self, visit: ViewCall, error: BaseException, finished: Finished | None
    ) -> Answer | None:
        visit.given_up = isinstance(finished, GivenUp)
        if finished is None or isinstance(finished, Given | GivenUp):
            return None
        log.error("%r failed after its outcome was decided", visit.attempt, exc_info=error)
        return self.edge.answer(finished, visit.capture, visit.session.call.key)

    @contextmanager
    def _leave_on_error(self, visit: ViewCall) -> Iterator[None]:
        """Let the attempt lapse if it is interrupted before the view begins."""
        try:
            yield
        except BaseException:
            self.leave(visit)
            raise

    def leave(self, visit: ViewCall) -> None:
        """Clean up after the view, however it ended."""
        visit.session.close()
        if visit.unit is not None:
            visit.unit.close()
        attempts.leave(visit.outer)
