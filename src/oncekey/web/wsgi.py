"""The WSGI middleware: the same rules for Flask, Django and every other WSGI application.

    app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, store="sqlite:///keys.db", tenant=account_of)

The application runs in the server's thread. The server gets no byte of its response before the
response is recorded.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from oncekey._core.op import Op, run
from oncekey._core.policy import Policy
from oncekey._core.problems import Problem
from oncekey._core.profiles import Profile
from oncekey._core.quota import Quota
from oncekey._core.record import Answer, Claim
from oncekey._engine import attempt as attempts
from oncekey._engine.guard import (
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
from oncekey._engine.handler_calls import Ports
from oncekey._engine.keyless import PLAIN, Parts, keyless, passing
from oncekey._engine.registry import Orphan
from oncekey._engine.session import Session
from oncekey._system.offload import cpu_thread
from oncekey._system.probes import probe
from oncekey.atomic import Adapter, Unit, check_thread
from oncekey.errors import Misuse
from oncekey.events import Hook
from oncekey.stores.base import Store
from oncekey.web import _wsgi_environ as environs
from oncekey.web._application import check_ask_blocks, check_wsgi
from oncekey.web._body import Body
from oncekey.web._capture import Capture
from oncekey.web._content import takes_long
from oncekey.web._edge import OVERRIDES, UNSTORED, Edge, log
from oncekey.web._middleware_order import check_inside_wsgi, check_meant, check_one_guard
from oncekey.web._recovery import WsgiRunner
from oncekey.web._replay_cache import RECENT_S
from oncekey.web._request import GUARDED, Request, check_guarded_once, check_refused_once
from oncekey.web._routers import spelled_by
from oncekey.web._routes import Route
from oncekey.web._settings_check import Checked
from oncekey.web._status import METHODS as STATUS_METHODS
from oncekey.web._status import state_of, status, status_answer
from oncekey.web._tenant import Tenant, check_sync
from oncekey.web._wsgi_environ import Environ

StartResponse = Callable[..., Any]
Write = Callable[[bytes], Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_OVERRIDES = frozenset(map(environs.variable, OVERRIDES))

Drive = Callable[[Op[Any]], Any]
"""How operations of the engine are driven: on the store's connections, or in a transaction."""


class IdempotencyMiddleware(metaclass=Checked):
    """Guards a WSGI application. `tenant` gives the stable account of a request, never a token."""

    def __init__(
        self,
        app: App,
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
        inside: Collection[str] = (),
    ) -> None:
        check_wsgi(app)
        check_sync(tenant)
        check_one_guard(app, IdempotencyMiddleware)
        check_meant(inside)
        self._meant = frozenset(inside)
        self.app = app
        self._placed = False
        self.edge = Edge(
            store=store,
            tenant=tenant,
            policy=policy,
            routes=routes,
            profile=profile,
            docs_url=docs_url,
            hooks=hooks,
            status_path=status_path,
            recent_s=recent_s,
            atomic=atomic,
            quota=quota,
        )
        check_thread(atomic)
        self._gatherer = self.edge.runtime.gatherer
        header = self.edge.key_header
        self._key_variable = None if header is None else environs.variable(header)
        self._always = self.edge.reads_all or self.edge.adapter is not None
        self.edge.routes.spelled = spelled_by(app)
        check_ask_blocks(self.edge.routes.names_where)
        self.edge.runtime.registry.add(WsgiRunner(self))
        atexit.register(self.close)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if not self._placed:
            self._check_place()
        method = environ["REQUEST_METHOD"]
        if method in STATUS_METHODS and environ.get("PATH_INFO", "") == self.edge.status_path:
            return _as_asked(method, self._tell_status(environ, start_response))
        if self._always or self._key_variable in environ:
            overrides = not _OVERRIDES.isdisjoint(environ)
            if overrides or method.upper() in self.edge.routes.watched:
                return _as_asked(method, self._guard(environ, start_response))
        return self._serve(environ, start_response)

    def _check_place(self) -> None:
        """Check at the first request where the middleware was put: it is visible only then."""
        if getattr(self.app, "wsgi_app", None) is self:
            raise Misuse(
                "this middleware is around the application whose wsgi_app it is, and would call "
                "itself: write app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, …)"
            )
        check_inside_wsgi(self.app, self._meant)
        self._placed = True

    def _guard(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        edge = self.edge
        request = environs.request(environ)
        route = edge.route(request)
        if route is None:
            return self._serve(environ, start_response)
        if isinstance(route, Answer):
            return _respond(start_response, route)
        in_body = edge.key_in_body and edge.may_bring_key(request)
        key = None if in_body else edge.key(request, route)
        if key is None and not in_body:
            return self._serve_keyless(environ, start_response, route)
        if isinstance(key, Problem):
            return _respond(start_response, edge.decline(key, route))
        body = environs.read(environ, route.policy)
        if isinstance(body, Problem):
            return _respond(start_response, edge.decline(body, route))
        try:
            call = self._call(request, route, key, body)
        except BaseException:  # which may be kept for long, and with it all that was read
            body.close()
            raise
        if isinstance(call, Problem):
            return _respond(start_response, edge.decline(call, route))
        if isinstance(call, Answer):
            return _respond(start_response, call)
        environ = environs.resupply(environ, body)
        if call is None:
            return self._serve_keyless(environ, start_response, route)
        edge.start()
        return self._decide(environ, start_response, route, call)

    def _serve(
        self, environ: Environ, start_response: StartResponse, claim: Claim | None = None
    ) -> Iterable[bytes]:
        """Let the application answer a request that nothing protects."""
        unprotected = passing(partial(self._applies, environ), self.edge.store, claim)
        with attempts.served(unprotected):
            parts = self.app(environ, start_response)
        return parts if _is_whole(parts, environ) else Parts(parts, unprotected)

    def _serve_keyless(
        self, environ: Environ, start_response: StartResponse, route: Route
    ) -> Iterable[bytes]:
        """Let the application answer a request that has no key and needs none."""
        unit = self.edge.unit(route.policy, plain=True)
        if unit is None:
            return self._serve(environ, start_response)
        session = Session(PLAIN, keyless(route.operation), route.policy, ports=None)
        decision = unit.drive_sync(session.open())
        if isinstance(decision, Refuse):
            return _respond(start_response, self.edge.refusal(decision.problem))
        return self._execute(environ, start_response, session, unit)

    def _applies(self, environ: Environ) -> tuple[str, Policy]:
        request = environs.request(environ)
        route = self.edge.routes.match(request.method, request.path, request.root)
        return route.operation, route.policy

    def _call(
        self, request: Request, route: Route, key: str | None, body: Body
    ) -> Call | Problem | Answer | None:
        """Make the engine's `Call` of a request, or return its response if that was sent a moment
        ago; None if it has no key and needs none.
        """
        edge = self.edge
        found: str | Problem | None = key
        if found is None:
            find = partial(edge.key, request, route, body)
            found = cpu_thread.run_sync(find) if takes_long(request, body) else find()
        if found is None or isinstance(found, Problem):
            return found
        if (old := edge.check_age(request, route)) is not None:
            return old
        tenant = edge.check_tenant(edge.tenant(request))
        if isinstance(tenant, Problem):
            return tenant
        read = partial(edge.call, request, route, tenant, found, body)
        return cpu_thread.run_sync(read) if takes_long(request, body) else read()

    def _decide(
        self, environ: Environ, start_response: StartResponse, route: Route, call: Call
    ) -> Iterable[bytes]:
        edge, unit, around = self.edge, self.edge.unit(route.policy), environ.get(GUARDED)
        registry = edge.runtime.registry
        session = Session(edge.guard, call, route.policy, self._ports(unit))
        check_guarded_once(around, registry, session.claim)
        environ = environs.inner(environ, (registry, session.claim.id))
        try:
            drive = (unit or edge.runtime).drive_sync
            decision: Decision = drive(session.open())
            if isinstance(decision, Execute):
                return self._execute(environ, start_response, session, unit)
        finally:
            session.close()
        match decision:
            case Replay() as replay:
                return _respond(start_response, edge.replay(replay, call.key, call.asked))
            case Refuse(problem):
                check_refused_once(around, session.claim, problem)
                return _respond(start_response, edge.refusal(problem))
            case Bypass():
                return self._serve(environ, _mark_unstored(start_response), session.claim)

    def _ports(self, unit: Unit | None) -> Ports | None:
        return None if unit is not None else self.edge.runtime.ports_sync()

    def take_up(self, environ: Environ, route: Route, call: Call, orphan: Orphan) -> bool:
        """Run an abandoned request for the recoverer; False if there is nothing to run."""
        session = Session(self.edge.guard, call, route.policy, self._ports(None))
        try:
            if self.ask(session.take_up(orphan.record, orphan.looked_at)) is None:
                return False
            rest = self._execute(environs.inner(environ), _nobody, session)
            if isinstance(rest, _Rest):
                rest.close()
            return True
        finally:
            session.close()

    def _execute(
        self,
        environ: Environ,
        start_response: StartResponse,
        session: Session,
        unit: Unit | None = None,
    ) -> Iterable[bytes]:
        """Run the handler and record its response; return what is left to send."""
        attempt, capture = session.attempt, Capture(session.policy.answer_bytes_max)
        drive = (unit or self.edge.runtime).drive_sync
        outlet = _Outlet(capture, start_response, partial(self._conclude, session, capture, drive))
        outer, rest = attempts.position(), None
        attempts.enter(attempt)
        try:
            if attempt.asks:
                settled = self._settle(session, capture, drive)
                if settled is not None:
                    return _respond(start_response, settled)
            rest = _run_app(self.app, environ, capture, outlet.write)
            outlet.open()
        except BaseException as error:
            if rest is not None:
                rest.close()
            decided = self._conclude_failed(session, capture, drive, error)
            if decided is None:
                raise
            return _respond(start_response, decided)
        finally:
            if unit is not None:
                unit.close()
            attempts.leave(outer)
        if outlet.instead is not None:
            rest.close()
            return [outlet.instead.body or b""]
        return rest

    def _conclude(self, session: Session, capture: Capture, drive: Drive) -> Answer | None:
        """Record the response. None: send the application's own; otherwise this one instead."""
        end, kept = self.edge.classify(session.attempt, capture)
        finished: Finished = drive(session.answered(end, kept))
        return self.edge.answer(finished, capture, session.call.key)

    def _settle(self, session: Session, capture: Capture, drive: Drive) -> Answer | None:
        """Ask the application about the attempt that died. None: run the handler."""
        learned = session.ask_sync()
        finished = drive(session.learned(self.edge.storable_finding(session.attempt, learned)))
        return finished and self.edge.answer_asked(finished, learned, capture, session.call.key)

    def _conclude_failed(
        self, session: Session, capture: Capture, drive: Drive, error: BaseException
    ) -> Answer | None:
        """Record that the handler raised; the response, if there is one all the same."""
        finished: Finished | None = drive(session.failed(error))
        if finished is None or isinstance(finished, Given):
            return None
        if isinstance(finished, GivenUp):
            if not isinstance(error, Exception):
                return None
            log.error("%r failed, and nobody knows what it did", session.attempt, exc_info=error)
            return self.edge.render_broken()
        log.error("%r failed after its outcome was decided", session.attempt, exc_info=error)
        return self.edge.answer(finished, capture, session.call.key)

    def _tell_status(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = environs.request(environ)
        found = self.ask(status(self.edge, request, self.edge.tenant(request)))
        return _respond(start_response, status_answer(self.edge, found))

    def state_of(self, environ: Environ) -> str | None:
        """What became of the key that a request brings: "running", "lapsed", "completed",
        "released" or "unknown". None if nothing is known, or it brings no key in a header or query.

        Claims nothing and reads no body. For middleware that stands outside of this one, such as a
        rate limiter that lets replays pass. Raises `StoreUnavailable`.
        """
        request = environs.request(environ)
        state: str | None = self.ask(state_of(self.edge, request, self.edge.tenant(request)))
        return state

    def ask(self, op: Op[Any]) -> Any:
        """Drive an operation of the engine."""
        return run(op, self._gatherer.ask)

    def close(self) -> None:
        """Stop what runs beside the requests and give the connections back."""
        atexit.unregister(self.close)
        self.edge.stop()
        self._gatherer.close()


class _Outlet:
    """Records a response once it is known as far as it is stored, then begins to send it."""

    def __init__(
        self,
        capture: Capture,
        start_response: StartResponse,
        conclude: Callable[[], Answer | None],
    ) -> None:
        self._capture = capture
        self._start_response = start_response
        self._conclude = conclude
        self._write: Write | None = None
        """The server's, once it is open."""
        self.instead: Answer | None = None
        """The response in place of the application's."""

    def open(self) -> Write:
        """Record the response and begin it, unless that is done."""
        if self._write is None:
            probe("after_handler")
            instead = self.instead = self._conclude()
            answer = instead or Answer(self._capture.status, tuple(self._capture.headers))
            write = _start(self._start_response, answer.status, answer.headers)
            self._write = write if instead is None else _discard
            probe("after_send")
        return self._write

    def write(self, part: bytes) -> None:
        """WSGI's `write`. What is too large to store is not collected."""
        if self._write is not None:
            self._write(part)
        elif self._capture.add(part, last=False):
            self.open()(self._capture.take())


class _Rest:
    """The rest of a response: the parts that were collected, then what the application yields."""

    def __init__(self, capture: Capture, chunks: Iterator[bytes], source: Iterable[bytes]) -> None:
        self._capture = capture
        self._chunks = chunks
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        yield self._capture.take()
        yield from self._chunks

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            close()


def _run_app(app: App, environ: Environ, capture: Capture, write: Write) -> _Rest:
    """Run the application until its response is known as far as it is stored. `write` takes what it
    does not yield.
    """

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if exc_info and capture.flowing:  # too late for an error page: a beginning was sent
            raise exc_info[1]
        lines = ((n.encode("latin-1"), v.encode("latin-1")) for n, v in headers)
        capture.start(int(status[:3]), lines)
        capture.matched = environs.found_route(environ)  # later the framework may have forgotten
        capture.has_static_route = environs.has_static_route(environ)
        return write

    source = app(environ, start)
    chunks = iter(source)
    try:
        for chunk in chunks:
            if chunk and capture.add(chunk, last=False):  # an empty one begins no answer
                return _Rest(capture, chunks, source)
        capture.add(b"", last=True)
    except BaseException:
        _Rest(capture, chunks, source).close()
        raise
    return _Rest(capture, iter(()), source)


def _is_whole(parts: Iterable[bytes], environ: Environ) -> bool:
    """Return whether no application code runs while it is read: a list, or a file."""
    wrapper = environ.get("wsgi.file_wrapper")
    is_file = isinstance(wrapper, type) and isinstance(parts, wrapper)
    return is_file or isinstance(parts, list | tuple) or hasattr(parts, "read")


def _nobody(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
    """Start a response that no client waits for."""
    return _discard


def _discard(part: bytes) -> None:
    """WSGI's `write` for such a response."""


def _mark_unstored(start_response: StartResponse) -> StartResponse:
    def start_unstored(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        name, value = UNSTORED
        return start_response(status, [*headers, (name.decode(), value.decode())], exc_info)

    return start_unstored


def _start(
    start_response: StartResponse, status: int, headers: Iterable[tuple[bytes, bytes]]
) -> Write:
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = "Unknown"
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    write: Write = start_response(f"{status} {reason}", lines)
    return write


def _as_asked(method: str, parts: Iterable[bytes]) -> Iterable[bytes]:
    """Drop the body of our own response, a list, for HEAD: not every server does, and the client
    would take it for the next response.
    """
    return [] if method == "HEAD" and isinstance(parts, list) else parts


def _respond(start_response: StartResponse, answer: Answer) -> list[bytes]:
    _start(start_response, answer.status, answer.headers)
    return [answer.body or b""]
