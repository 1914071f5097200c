"""Flask: views that run once per key, after whatever checks the request.

    oncekey = Oncekey(app, store="sqlite:///keys.db", tenant=account_of)

All views that change something are guarded when they are about to be called: after routing and all
`before_request` functions. Decorators of a view run inside it; where one of them checks who may
call it, mark the view below it:

    @app.post("/orders")
    @login_required
    @idempotent
    def order(): ...
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast, overload

from flask import Flask, current_app, has_request_context, request
from flask import Request as FlaskRequest
from flask.wrappers import Response
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Rule

from oncekey._core.policy import Policy
from oncekey._core.problems import Problem
from oncekey._core.profiles import Profile
from oncekey._core.quota import Quota
from oncekey._core.record import Answer
from oncekey._engine import attempt as attempts
from oncekey._engine.keyless import Parts, passing
from oncekey.atomic import Adapter
from oncekey.errors import Misuse
from oncekey.events import Hook
from oncekey.stores.base import Store
from oncekey.web import _decorators as marks
from oncekey.web import _wsgi_environ as environs
from oncekey.web._app_checks import tell_unfound
from oncekey.web._application import check_ask_blocks
from oncekey.web._decorators import Mark, mark_of, mark_on, not_idempotent
from oncekey.web._hidden_headers import hide
from oncekey.web._middleware_order import BOTH, layers, warn_of_views
from oncekey.web._request import GUARDED, Request, guarded_twice
from oncekey.web._routes import Finds, Route
from oncekey.web._settings_check import Checked
from oncekey.web._tenant import check_sync
from oncekey.web._views import GuardedViews, ViewCall
from oncekey.web.wsgi import IdempotencyMiddleware as Around

__all__ = ["Oncekey", "idempotent", "not_idempotent"]

F = TypeVar("F", bound=Callable[..., Any])

# In the environ, which is one request's: `g` may be shared by several.
_BODY, _CLAIMED, _SEEN = "oncekey.body", "oncekey.claimed", "oncekey.mark"
_GIVEN_UP = "oncekey.given_up"
_UNPROTECTED = "oncekey._engine.keyless"

_READ_ONCE = ("accept_encodings", "range", "if_range", "if_modified_since", "if_none_match")
"""What Werkzeug reads out of the environ once and then remembers."""

_INSIDE = "__oncekey_inside__"
"""On a view that a mark was put around: as it is, it claims nothing."""


class Oncekey(metaclass=Checked):
    """The extension. `tenant` gets Flask's request and gives the stable account behind it, never a
    token.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        store: str | Store,
        tenant: Callable[[FlaskRequest], Any],
        policy: Policy | None = None,
        routes: Mapping[str, Policy] | None = None,
        profile: str | Profile = "oncekey",
        docs_url: str | None = None,
        hooks: Iterable[Hook] = (),
        atomic: Adapter | None = None,
        quota: Quota | None = None,
    ) -> None:
        check_sync(tenant)
        self.views = GuardedViews(
            store=store,
            tenant=lambda _: tenant(request),
            policy=policy,
            routes=routes,
            profile=profile,
            docs_url=docs_url,
            hooks=hooks,
            atomic=atomic,
            quota=quota,
        )
        check_ask_blocks(self.views.edge.routes.names_where)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        if not isinstance(app, Flask):
            raise Misuse(
                f"Oncekey(app, …) takes the Flask application, not a {type(app).__name__}: what a "
                "blueprint adds to it is guarded there"
            )
        if "oncekey" in app.extensions:
            raise Misuse("this application has an Oncekey already: make one, with all its routes")
        if any(isinstance(layer, Around) for layer in layers(app.wsgi_app)):
            raise Misuse(BOTH)
        app.extensions["oncekey"] = self
        # Before every other: what reads the body later finds it read, and unharmed.
        app.before_request_funcs.setdefault(None, []).insert(0, self._read_body)
        app.after_request(_close_body)
        app.after_request(_serve_parts)
        # Called last: what it adds is said of the answer that Flask makes of an exception.
        app.after_request_funcs.setdefault(None, []).insert(0, self._mark_unknown)
        dispatch = app.dispatch_request

        @functools.cache
        def look_once() -> None:  # at the first request: until then there may be more routes
            self.views.check(app.view_functions.values())
            warn_of_views(
                view if mark is None else marks.below_mark(view)
                for rule, method, mark in _views_of(app)
                for view in (app.view_functions[rule.endpoint],)
                if (self.views.is_guarded(method, rule.rule) if mark is None else mark.policy)
            )
            self.views.edge.undecided_routes = lambda: self.views.undecided_views(
                (method, rule.rule, mark) for rule, method, mark in _views_of(app)
            )
            served = [(method, rule.rule) for rule, method, _ in _views_of(app)]
            tell_unfound(self.views.edge.routes, _finder(app), served)

        def dispatch_served() -> Any:
            look_once()
            if _BODY in request.environ:  # it may bring a key, which is yet to be claimed
                return dispatch_guarded()
            request.environ[_UNPROTECTED] = unprotected = passing(
                self._applies, self.views.edge.store
            )
            with attempts.served(unprotected):
                return dispatch_guarded()

        def dispatch_guarded() -> Any:
            rule = request.url_rule
            view = None if rule is None else app.view_functions.get(rule.endpoint)
            if view is None:
                return dispatch()
            if (mark := mark_on(view, request.method)) is not None:
                marks.check_kind(mark, view, __name__, claims=True)
                return dispatch()
            if hasattr(view, _INSIDE):
                _check_order(app, view)
            return self._run(dispatch, None)

        app.dispatch_request = dispatch_served  # type: ignore[method-assign]

    def close(self) -> None:
        """Stop what runs beside the requests and give the connections back."""
        self.views.close()

    # ------------------------------------------------------------------------- one request

    def _read_body(self) -> Response | None:
        """Keep the body, for its fingerprint, where a key comes with it or may have to."""
        edge = self.views.edge
        if request.url_rule is None or request.method in marks.SAFE:
            return None
        view = current_app.view_functions.get(request.url_rule.endpoint)
        request.environ[_SEEN] = mark = mark_on(view, request.method)
        read, route = self._read(mark)
        if route is None:
            return None
        if edge.may_bring_key(read) or route.policy.required:
            body = environs.read(request.environ, route.policy)
            if isinstance(body, Problem):
                return _response(edge.decline(body, route))
            request.environ.update(environs.resupply({}, body))
            request.environ.pop("HTTP_TRANSFER_ENCODING", None)
            request.environ[_BODY] = body
        return None

    def _mark_unknown(self, response: Response) -> Response:
        """Say that nobody knows what a view did that raised."""
        if _GIVEN_UP in request.environ:
            for name, value in self.views.edge.mark_unknown(()):
                response.headers[name.decode()] = value.decode()
        return response

    def _run(self, view: Callable[[], Any], mark: Mark | None, whose: Any = None) -> Any:
        """Call the view, unless it ran before. `whose`: the function that is marked."""
        body, edge = request.environ.get(_BODY), self.views.edge
        if not _may_claim(whose) or (body is None and edge.adapter is None):
            return view()
        read, route = self._read(mark)
        if route is None or (body is None and not route.policy.atomic):
            return view()
        if GUARDED in request.environ:
            by = "IdempotencyMiddleware and by the extension; choose one of them"
            raise guarded_twice(route.operation, by)
        request.environ[_CLAIMED] = True
        if body is None:
            begun = self.views.begin_keyless(route)
        else:
            begun = self.views.begin_sync(read, route, body)
        if isinstance(begun, Answer):
            return _response(begun)
        if begun is None:
            with attempts.served(passing(lambda: (route.operation, route.policy), edge.store)):
                return view()
        try:
            return self._visit(begun, view)
        finally:
            request.environ[_CLAIMED] = whose

    def _applies(self) -> tuple[str, Policy]:
        """To a view that nothing protects."""
        read, route = self._read(None)
        routes = self.views.edge.routes
        route = route or routes.match(read.method, read.path, read.root)
        return route.operation, route.policy

    def _read(self, mark: Mark | None) -> tuple[Request, Route | None]:
        read = environs.request(request.environ)
        rule = "" if request.url_rule is None else request.url_rule.rule
        return read, self.views.route(read, rule, mark, _as_routed(request.path, rule))

    def _visit(self, visit: ViewCall, view: Callable[[], Any]) -> Any:
        views, response = self.views, None
        try:
            with _hide_headers():
                response = _answer_of(view)
                rest = _collect(response, visit)
            answer = views.end_sync(visit)
        except BaseException as error:
            if response is not None:
                response.close()
            answer = views.fail_sync(visit, error)
            if visit.given_up:
                request.environ[_GIVEN_UP] = True
            if answer is None:
                raise
            return _response(answer)
        finally:
            views.leave(visit)
        if answer is not None:
            response.close()
            return _response(answer)
        return _first(response, visit, rest)


@overload
def idempotent(policy: F) -> F: ...
@overload
def idempotent(policy: Policy | None = None) -> Callable[[F], F]: ...
def idempotent(policy: Any = None) -> Any:
    """Guard this view when it is called, by these rules over the application's. Decorators above
    this one run before.
    """
    if callable(policy) and not isinstance(policy, Policy):
        return idempotent()(policy)
    rules = marks.rules(policy)
    check_ask_blocks(lambda meets: ["@idempotent"] if meets(rules) else [])
    mark = Mark(rules, claims=True)

    def decorate(view: F) -> F:
        if isinstance(view, type):
            return marks.put(view, mark)  # which tells how to write it

        @functools.wraps(view)
        def claim_and_view(*args: Any, **kwargs: Any) -> Any:
            def call() -> Any:
                return current_app.ensure_sync(view)(*args, **kwargs)

            if not has_request_context():
                return call()
            extension = current_app.extensions.get("oncekey")
            if extension is None:
                raise Misuse(
                    f"{view.__name__} is @idempotent, but the application has no Oncekey(app, …)"
                )
            if request.environ.get(_SEEN, mark) is None:
                raise marks.hidden_mark(view)
            return extension._run(call, mark_of(claim_and_view), claim_and_view)

        getattr(view, "__dict__", {})[_INSIDE] = True
        return cast(F, marks.put(claim_and_view, mark))

    return decorate


def _close_body(response: Response) -> Response:
    """A view that streams may read it until then."""
    body = request.environ.get(_BODY)
    if body is not None:
        response.call_on_close(body.close)
    return response


def _serve_parts(response: Response) -> Response:
    """What a view streams is made after it was called."""
    unprotected = request.environ.get(_UNPROTECTED)
    if unprotected is not None and response.is_streamed and not response.direct_passthrough:
        response.response = Parts(response.response, unprotected)
    return response


def _check_order(app: Flask, inside: Callable[..., Any]) -> None:
    """A misuse, if a view was marked in vain: its route was given what is inside the mark."""
    views = [view for view in app.view_functions.values() if mark_of(view) is not None]
    if not any(inspect.unwrap(view) is inspect.unwrap(inside) for view in views):
        name = getattr(inside, "__name__", inside)
        raise Misuse(f"{name} was marked after it was routed: put @idempotent below the route")


def _may_claim(whose: Any) -> bool:
    """Whether nothing was claimed for this request yet; or for the same view, which is called
    again, as by a decorator that retries: what its record says counts then.
    """
    if _CLAIMED not in request.environ:
        return True
    return whose is not None and request.environ[_CLAIMED] is whose


def _as_routed(path: str, rule: str) -> str:
    """The path as Flask has routed it: to some rules the slash at their end does not matter."""
    path = "/" + path.strip("/")
    return path if path == "/" or not rule.endswith("/") else f"{path}/"


def _views_of(app: Flask) -> Iterator[tuple[Rule, str, Mark | None]]:
    """The rules and methods of all views, and what was said of them."""
    for rule in app.url_map.iter_rules():
        if (view := app.view_functions.get(rule.endpoint)) is not None:
            for method in sorted((rule.methods or set()) - marks.SAFE):
                yield rule, method, mark_on(view, method)


def _finder(app: Flask) -> Finds:
    urls = app.url_map.bind("")

    def finds(method: str | None, path: str) -> bool:
        try:
            urls.match(path, method or "POST")
        except MethodNotAllowed:
            return method is None
        except HTTPException:  # also a redirect: what it leads to is written otherwise
            return app.url_map.host_matching
        return True

    return finds


@contextlib.contextmanager
def _hide_headers() -> Iterator[None]:
    """While this lasts, the view sees what guarded handlers see. What runs after it, such as a
    function that compresses answers, sees the request as it came.
    """
    read: dict[str, Any] = request._get_current_object().__dict__  # type: ignore[attr-defined]
    before = {name: read.pop(name) for name in _READ_ONCE if name in read}
    taken = hide(request.environ)
    try:
        yield
    finally:
        request.environ.update(taken)
        for name in _READ_ONCE:
            read.pop(name, None)
        read.update(before)


def _answer_of(view: Callable[[], Any]) -> Response:
    """What the view answers, by returning, by abort() or by an exception that has a handler."""
    app = current_app
    try:
        answer = view()
    except Exception as error:
        answer = app.handle_user_exception(error)
    return app.make_response(answer)


def _collect(response: Response, visit: ViewCall) -> Iterable[bytes]:
    """Read the answer as far as it is kept; what is left of it."""
    capture = visit.capture
    parts, _, headers = response.get_wsgi_response(request.environ)
    lines = ((n.encode("latin-1"), v.encode("latin-1")) for n, v in headers)
    capture.start(response.status_code, lines)
    chunks = iter(parts)
    for chunk in chunks:
        if capture.add(chunk, last=False):
            return chunks
    capture.add(b"", last=True)
    return ()


def _first(response: Response, visit: ViewCall, rest: Iterable[bytes]) -> Response:
    """The view's own answer, once it is recorded."""
    capture = visit.capture
    answer = Answer(capture.status, tuple(capture.headers), capture.take())
    sent = _response(answer)
    if not capture.complete:
        sent.response = itertools.chain([answer.body or b""], rest)
    sent.call_on_close(response.close)
    return sent


def _response(answer: Answer) -> Response:
    made = current_app.response_class(answer.body, answer.status)
    made.headers.clear()
    for name, value in answer.headers:
        made.headers.add(name.decode("latin-1"), value.decode("latin-1"))
    return made
