"""Order: what runs inside a guard never sees a replay.

Whatever checks who sends a request must run outside of it, or a retry gets a stored answer without
being checked. This looks at the stacks that frameworks keep, and knows what stands there by its
name only: so it warns, and refuses where nothing else could have checked a retry.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from oncekey._core.policy import are_names
from oncekey._system.warn_once import listed, warn
from oncekey.errors import Misuse
from oncekey.web._decorators import SAFE
from oncekey.web._tenant import single_tenant

_LAYERS_MAX = 50
_WITHIN_MAX = 10
_WITHIN = ("app", "wsgi_app", "application", "asgi_app", "_app", "inner", "wrapped")
"""Where layers keep what they are around."""
_HARMLESS = frozenset(
    {
        *("ServerErrorMiddleware", "ExceptionMiddleware", "AsyncExitStackMiddleware"),
        "ExceptionHandlerMiddleware",  # Litestar's
        *("ExceptionTelemetryMiddleware", "RequestBodyLimitMiddleware"),
        *("HTTPSRedirectMiddleware", "TrustedHostMiddleware", "SessionMiddleware", "ProxyFix"),
        *("WSGIMiddleware", "WsgiToAsgi", "DispatcherMiddleware", "SharedDataMiddleware"),
        "IdempotencyMiddleware",  # of which there may be one: that is looked at apart
    }
)
_SIGNS_IN = r"(?<![a-z])(?:log|logged|sign|signed)_?in(?![a-z])"
_CHECKS = re.compile(rf"auth(?!or)|authori[sz]|jwt|bearer|{_SIGNS_IN}")
"""In the name of what checks who sends a request, as `_spelt` writes it."""
_SAYS_WHO = re.compile(
    r"(?:current|active|requires?|verify|check|validate|is|has|needs?)_(?:\w+_)?"
    r"(?:user|token|key|account|admin|role|permission|member)s?(?![a-z])|(?<![a-z])api_?key"
)
"""In the name of a dependency that does."""
_MAY_CHECK = re.compile(
    rf"{_CHECKS.pattern}|(?<![a-z])(?:token|permission|perm|role|admin|staff|member|superuser|"
    r"user(?!_agent)|account|scope|access(?!_log)|protect|protected|allowed)s?(?![a-z])|api_?key|"
    r"_only(?![a-z])|^requires?$"
)
"""In the name of a decorator that may."""
_WATCHES = re.compile(
    r"request_?id|correlation|trac(?:e|ing)|telemetry|tim(?:er|ing)|metric|prometheus|sentry|"
    r"(?<![a-z])log(?:s|ger|ging)?(?![a-z])|profil|proxy|context|debug"
)
"""In the name of what only looks on."""
_CODES = re.compile(r"gzip|brotli|compress|zstd|deflate")


def check_one_guard(app: Any, guard: type) -> None:
    """Raise `Misuse` for an application that such a guard is around already, or within."""
    for layer in layers(app):
        added = (each.cls for each in getattr(layer, "user_middleware", ()))
        if isinstance(layer, guard) or guard in added:
            raise Misuse(
                "there are two IdempotencyMiddleware around this application: keep one, and write "
                "what differs between routes as routes={'POST /orders': Policy(…)}"
            )
        if "oncekey" in getattr(_flask_of(layer), "extensions", ()):
            raise Misuse(BOTH)


BOTH = (
    "this application has an Oncekey(app, …), and an IdempotencyMiddleware around it: keep one of "
    "them"
)


def layers(app: Any) -> Iterator[Any]:
    """An application's layers, from the outside, as far as they can be seen."""
    for _ in range(_LAYERS_MAX):
        if app is None:
            return
        yield app
        if hasattr(app, "routes") and not hasattr(app, "user_middleware"):
            return  # a router
        if hasattr(app, "user_middleware") or getattr(app, "__self__", None) is not None:
            return
        app = next(
            (vars(app)[name] for name in _WITHIN if name in getattr(app, "__dict__", ())), None
        )


def check_meant(inside: object) -> None:
    """Raise `Misuse` for what does not name what is meant to run inside."""
    if not are_names(inside):
        raise Misuse(f"inside={inside!r}: takes names of middleware, such as ['Timing']")


_ADD = "add it after IdempotencyMiddleware: what is added last runs first"


def check_inside(app: Any, tenant: Callable[..., Any], meant: Iterable[str] = ()) -> None:
    """Warn of what runs inside the middleware for ASGI and should not; refuse what checks the
    sender there, if the tenant function does not.
    """
    _check(_inside(app), meant, tenant, _ADD)


def check_mounted(router: Any, guard: type, meant: Iterable[str] = ()) -> None:
    """The same for what stands around a router's routes, and within the applications that are
    mounted there, which may be guarded by no key at all. So it only warns.
    """
    for app in _mounted_apps(router):
        _check(_inside(app), meant, None, f"{_ADD}, around the whole application")
        for each in getattr(app, "user_middleware", ()):
            if each.cls is guard:
                warn(
                    "order",
                    "an application that is mounted in one with IdempotencyMiddleware has another "
                    "one: keep one, or let the outer one leave its routes out, "
                    "routes={'/path/{rest}': Policy(methods=())}",
                )


def _mounted_apps(router: Any, within: int = 0) -> Iterator[Any]:
    for route in getattr(router, "routes", ()):
        if (app := getattr(route, "app", None)) is not None:
            yield app
        if within < _WITHIN_MAX:
            yield from _mounted_apps(route, within + 1)


def check_inside_wsgi(app: Any, meant: Iterable[str] = ()) -> None:
    """The same for WSGI, where only a warning can come before the first request."""
    _check(
        _inside(app),
        meant,
        None,
        "put it around IdempotencyMiddleware, or use the form of your framework",
    )


def _inside(app: Any) -> list[str]:
    """The names of what stands in an application. The last layer is the application itself, unless
    its name says something else.
    """
    *around, last = list(layers(app)) or [None]
    names = [name for layer in around for name in _names_of(layer)]
    own = type(last).__name__
    return [*names, *(n for n in _names_of(last) if n != own or _tells(n))]


def _tells(name: str) -> bool:
    lower = name.lower()
    return "cors" in lower or bool(_CODES.search(lower) or _CHECKS.search(_spelt(name)))


def _spelt(name: str) -> str:
    """A name in lower case, with its words apart: `LogIncoming` logs in nobody."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _flask_of(layer: Any) -> Any:
    """The application of Flask or Quart that a layer is, or is the entrance of."""
    return next(
        (
            each
            for each in (layer, getattr(layer, "__self__", None))
            if hasattr(each, "before_request_funcs") and hasattr(each, "view_functions")
        ),
        None,
    )


def _names_of(layer: Any) -> Iterator[str]:
    """The name of a layer, and of those that it knows itself to have."""
    for each in getattr(layer, "user_middleware", ()):  # Starlette's application
        dispatch = each.kwargs.get("dispatch")
        yield dispatch.__name__ if callable(dispatch) else str(getattr(each.cls, "__name__", ""))
    if hasattr(layer, "routes"):
        return
    flask = _flask_of(layer)
    if flask is not None:
        yield from (f.__name__ for fs in flask.before_request_funcs.values() for f in fs)
        for rule in flask.url_map.iter_rules():
            if rule.methods and rule.methods - SAFE:
                yield from _decorators(flask.view_functions.get(rule.endpoint))
    elif type(layer).__name__ in ("WSGIHandler", "ASGIHandler") and "django.conf" in sys.modules:
        listed_ = sys.modules["django.conf"].settings.MIDDLEWARE
        names = (path.rpartition(".")[2] for path in listed_)
        yield from (name for name in names if _CHECKS.search(_spelt(name)))
    elif getattr(layer, "__self__", None) is None and type(layer).__module__ != "builtins":
        dispatch = getattr(layer, "dispatch_func", None)
        is_plain = type(layer).__name__ == "BaseHTTPMiddleware"
        yield str(getattr(dispatch, "__name__", "")) if is_plain else type(layer).__name__


def _check(names: Iterable[str], meant: Iterable[str], tenant: Any, what_to_do: str) -> None:
    harmless = _HARMLESS.union(meant)
    inside = [name for name in dict.fromkeys(names) if name and name not in harmless]
    cors = [name for name in inside if "cors" in name.lower()]
    codes = [name for name in inside if _CODES.search(name.lower())]
    checks = [name for name in inside if _CHECKS.search(_spelt(name))]
    known = {*cors, *codes, *(name for name in inside if _WATCHES.search(_spelt(name)))}
    others = [name for name in inside if name in checks or name not in known]
    if checks and tenant is single_tenant:
        raise Misuse(
            f"{listed(checks)} runs inside IdempotencyMiddleware, and tenant=single_tenant checks "
            f"nobody: a retry that is not signed in would get a stored answer; {what_to_do}"
        )
    if others:
        warn(
            "order",
            f"{listed(others)} runs inside IdempotencyMiddleware, where no replay comes: if it "
            f"checks who sends a request, a retry gets a stored answer unchecked; {what_to_do}. "
            f"inside={others[:5]!r} says that it is meant",
        )
    if cors:
        warn(
            "order",
            f"{listed(cors)} runs inside IdempotencyMiddleware: pages on other origins cannot read "
            f"its refusals; {what_to_do}",
        )
    if codes:
        warn(
            "order",
            f"{listed(codes)} runs inside IdempotencyMiddleware, where nothing is compressed: a "
            f"stored answer must suit every client; {what_to_do}",
        )


# --------------------------------------------------------------------------- within a route


def check_dependencies(routes: Iterable[tuple[Any, str]], tenant: Callable[..., Any]) -> None:
    """Warn of FastAPI's routes whose dependencies check who sends a request; refuse that, if the
    tenant function does not.
    """
    found = [
        (path, name, is_sure) for route, path in routes for name, is_sure in _checked_by(route)
    ]
    if not found:
        return
    names = listed(list(dict.fromkeys(f"{name} of {path}" for path, name, _ in found)))
    text = (
        f"{names} checks who sends a request inside the route, where no replay comes: use "
        "oncekey.web.fastapi.Idempotency, which claims the key after the dependencies, or check "
        "the sender in the tenant function too"
    )
    if tenant is single_tenant and any(is_sure for _, _, is_sure in found):
        raise Misuse(f"tenant=single_tenant checks nobody, and {text}")
    warn("order", text)


def _checked_by(route: Any) -> Iterator[tuple[str, bool]]:
    """The dependencies that check a sender, by their names or, surely, as FastAPI's schemes do."""
    stack = list(getattr(getattr(route, "dependant", None), "dependencies", ()))
    while stack:
        each = stack.pop()
        stack += each.dependencies
        call = each.call.func if isinstance(each.call, functools.partial) else each.call
        name = str(getattr(call, "__name__", type(call).__name__))
        is_scheme = hasattr(each.call, "scheme_name") and hasattr(each.call, "model")
        headers = {param.alias.lower() for param in each.header_params}
        if is_scheme or "authorization" in headers or _says_who(name):
            yield name, is_scheme or "authorization" in headers


def _says_who(name: str) -> bool:
    spelt = _spelt(name)
    found = _CHECKS.search(spelt) or _SAYS_WHO.search(spelt)
    return found is not None and "idempoten" not in spelt


def warn_of_endpoints(routes: Iterable[tuple[Any, str]]) -> None:
    """Warn of guarded endpoints that are decorated with what may check who sends a request: it is
    called where the endpoint would be.
    """
    found = [
        f"{name} of {path}"
        for route, path in routes
        for name in _decorators(getattr(route, "endpoint", None))
    ]
    if found:
        warn(
            "order",
            f"{listed(list(dict.fromkeys(found)))} checks who sends a request within the endpoint, "
            "where no replay comes: check that in middleware outside, in the tenant function, or "
            "in a dependency of a route of oncekey.web.fastapi.Idempotency",
        )


def warn_of_views(views: Iterable[Any]) -> None:
    """Warn of views, or of what stands below their marks, that check who sends a request: the key
    is claimed before they are called.
    """
    found = [f"{name} of {_name_of_view(view)}" for view in views for name in _on(view)]
    if found:
        warn(
            "order",
            f"{listed(list(dict.fromkeys(found)))} checks who sends a request within the view, "
            "where no replay comes: write @idempotent below it, or on the method of a class",
        )


def _owner(view: Any) -> Any:
    """The class that a view was made of, if it was."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def _name_of_view(view: Any) -> str:
    return str(getattr(_owner(view) or view, "__name__", view))


def _on(view: Any) -> Iterator[str]:
    """What may check the sender: a view's decorators, mixins, or Django REST framework."""
    owner = _owner(view)
    if getattr(owner, "permission_classes", None) or getattr(owner, "authentication_classes", None):
        yield "Django REST framework"
    yield from (each.__name__ for each in getattr(owner, "__mro__", ()) if _is_mixin(each))
    yield from _decorators(view)
    for each in getattr(owner, "decorators", ()):
        if _may_check(name := str(getattr(each, "__name__", ""))):
            yield name


def _is_mixin(owner: type) -> bool:
    """Whether it is one of Django's that let only some users pass: all are made of this one."""
    return any(each.__name__ == "AccessMixin" for each in owner.__bases__)


def _decorators(view: Any) -> list[str]:
    """Those of its decorators whose names say that they may check who sends a request."""
    names = []
    while (wrapped := getattr(view, "__wrapped__", None)) is not None:
        code = getattr(view, "__code__", None)
        names.append("" if code is None else code.co_qualname.partition(".<locals>")[0])
        view = wrapped
    return [name for name in dict.fromkeys(names) if _may_check(name)]


def _may_check(name: str) -> bool:
    return _MAY_CHECK.search(_spelt(name)) is not None
