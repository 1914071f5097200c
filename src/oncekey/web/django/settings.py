"""`settings.ONCEKEY`: what it may say, and what `manage.py check` says of it."""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.http import HttpRequest
from django.urls import Resolver404, ResolverMatch, get_resolver, resolve
from django.utils.module_loading import import_string

from oncekey._core.policy import Policy
from oncekey._core.quota import Quota
from oncekey._system.warn_once import warn
from oncekey.atomic import Django
from oncekey.errors import Misuse, OncekeyError
from oncekey.web._app_checks import UNFOUND
from oncekey.web._decorators import KNOWN_MAX, below_mark, mark_on
from oncekey.web._edge import log
from oncekey.web._middleware_order import warn_of_views
from oncekey.web._request import Request
from oncekey.web._routes import USUAL, Routes, as_policies
from oncekey.web._tenant import check_callable
from oncekey.web._views import GuardedViews

MIDDLEWARE = "oncekey.web.django.IdempotencyMiddleware"
REQUEST = "django.request"
"""In the scope of what the edge reads: Django's own request."""

_NAMES = frozenset(
    {"store", "tenant", "policy", "routes", "profile", "docs_url", "hooks", "atomic", "quota"}
)
_REQUIRED = ("store", "tenant")


def views() -> GuardedViews:
    """What the settings ask for. Raises `Misuse` for settings that ask for nothing sensible."""
    given = read()
    tenant = _import("tenant", given["tenant"])
    check_callable(tenant)
    return GuardedViews(
        store=_store(given["store"]),
        tenant=_of_django(tenant),
        policy=_policy("policy", given.get("policy")),
        routes=_routes(given.get("routes")),
        profile=given.get("profile", "oncekey"),
        docs_url=given.get("docs_url"),
        hooks=_hooks(given.get("hooks", ())),
        atomic=_atomic(given.get("atomic")),
        quota=_quota(given.get("quota")),
    )


def read() -> Mapping[str, Any]:
    """`settings.ONCEKEY`, as it is written. Raises `Misuse` for what is missing or unknown."""
    given = getattr(settings, "ONCEKEY", None)
    if not isinstance(given, Mapping):
        raise Misuse(
            'settings.ONCEKEY is missing: ONCEKEY = {"store": "sqlite:///keys.db", "tenant": '
            '"shop.accounts.account_of"}'
        )
    if unknown := given.keys() - _NAMES:
        raise Misuse(
            f"settings.ONCEKEY has {', '.join(sorted(map(str, unknown)))}, which means nothing: "
            f"choose from {', '.join(sorted(_NAMES))}"
        )
    for name in _REQUIRED:
        if not given.get(name):
            raise Misuse(f"settings.ONCEKEY has no {name!r}: {_MISSING[name]}")
    return given


_MISSING = {
    "store": "give the URL of a store, such as sqlite:///keys.db",
    "tenant": "name the function from a request to the stable id of its account, such as "
    "'shop.accounts.account_of', or 'oncekey.single_tenant'",
}


def _store(given: Any) -> Any:
    if not isinstance(given, str) or ":" in given:
        return given
    try:
        return import_string(given)
    except ImportError as error:
        raise Misuse(
            f"settings.ONCEKEY['store'] is {given!r}: neither a URL, such as sqlite:///keys.db, "
            f"nor the dotted path of a store: {error}"
        ) from error


def _import(name: str, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return import_string(given)
    except ImportError as error:
        raise Misuse(f"settings.ONCEKEY[{name!r}] is {given!r}: {error}") from error


def _policy(name: str, given: Any) -> Policy | None:
    if isinstance(given, Policy | None):
        return given
    try:
        return Policy(**given)
    except TypeError as error:
        raise Misuse(
            f"settings.ONCEKEY: {name} takes an oncekey.Policy, or its fields as a dict: {error}"
        ) from error


def _routes(given: Any) -> dict[str, Policy]:
    if not isinstance(given, Mapping | None):
        raise Misuse(
            "settings.ONCEKEY: routes takes policies by route, such as "
            '{"POST /orders": {"recovery": "block"}}'
        )
    named = (given or {}).items()
    return as_policies({route: _policy(f"routes[{route!r}]", each) for route, each in named})


def _quota(given: Any) -> Quota | None:
    if isinstance(given, Quota | None):
        return given
    try:
        return Quota(**given)
    except TypeError as error:
        raise Misuse(
            f"settings.ONCEKEY: quota takes an oncekey.Quota, or its fields as a dict: {error}"
        ) from error


def _hooks(given: Any) -> Any:
    """A text alone is refused as it is: it is not a list of letters."""
    listed = isinstance(given, list | tuple)
    return [_import("hooks", hook) for hook in given] if listed else given


def _atomic(alias: Any) -> Django | None:
    if alias is None:
        return None
    if alias not in connections:
        raise Misuse(
            f"settings.ONCEKEY['atomic'] is {alias!r}, which DATABASES has not: name one of "
            f"{', '.join(connections)}"
        )
    return Django(alias)


def _of_django(tenant: Callable[[Any], Any]) -> Callable[[Request], Any]:
    # `request.user` is a query when it is first looked at, which Django refuses in an event loop.
    awaited = tenant if iscoroutinefunction(tenant) else sync_to_async(tenant)

    def tenant_of(request: Request) -> Any:
        asked: HttpRequest = request.scope[REQUEST]
        return awaited(asked) if _in_a_loop() else tenant(asked)

    return tenant_of


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# ------------------------------------------------------------------------------------- routes


def find_view(path: str) -> ResolverMatch | None:
    """What Django finds for a path, one of a policy's route."""
    return _find_view(get_resolver(), path)


@functools.lru_cache(maxsize=KNOWN_MAX)
def _find_view(urls: Any, path: str) -> ResolverMatch | None:
    try:
        return urls.resolve(path)
    except Resolver404:
        return None


def are_alike(found: ResolverMatch, meant: ResolverMatch) -> bool:
    """Whether two paths lead to one call of a view, apart from what stands for a variable."""
    named = {name: value for name, value in meant.kwargs.items() if value not in USUAL}
    placed = zip(found.args, meant.args, strict=False)
    return (
        found.route == meant.route
        and all(found.kwargs.get(name) == value for name, value in named.items())
        and all(value == other for value, other in placed if other not in USUAL)
    )


# ----------------------------------------------------------------------------- manage.py check


def check(**_: Any) -> list[CheckMessage]:
    """Wrong settings, before the first request finds them."""
    try:
        made = views()
        made.close()
    except OncekeyError as error:
        return [Error(str(error), id="oncekey.E001")]
    except ImportError as error:
        return [Error(f"settings.ONCEKEY needs a package: {error}", id="oncekey.E001")]
    return _check_place() + _check_marks(made) + _check_routes(made.edge.routes)


_ADMIN = ("django.contrib.admin.sites", "django.contrib.admin.options")
"""Where Django's admin checks who sends a request to its views."""


def tell_marks(made: GuardedViews) -> None:
    """The same for a site that does not check: in the log, since a site may have other views, by
    which some requests are served. Those of Django's admin nobody can mark.
    """
    for told in [*_check_marks(made), *_check_place()]:
        if isinstance(told, Error):
            log.error("%s", told.msg)
        else:
            warn("order", f"{told.msg}; {told.hint}")
    warn_of_views(
        below_mark(view) or view
        for view in _views_of(get_resolver())
        if below_mark(view)
        or (
            all(mark_on(view, method) is None for method in made.edge.routes.methods)
            and getattr(view, "__globals__", {}).get("__name__") not in _ADMIN
        )
    )


def _check_marks(made: GuardedViews) -> list[CheckMessage]:
    try:
        made.check(_views_of(get_resolver()))
    except Misuse as error:
        return [Error(str(error), id="oncekey.E003")]
    return []


def _views_of(urls: Any) -> Iterator[Any]:
    for each in urls.url_patterns:
        if hasattr(each, "url_patterns"):
            yield from _views_of(each)
        else:
            yield each.callback


def _check_routes(routes: Routes) -> list[CheckMessage]:
    def finds(method: str | None, path: str) -> bool:
        try:
            resolve(path)
        except Resolver404:
            return False
        return True

    unfound = routes.unfound(finds)
    return [Warning(f"routes[{each!r}]: {UNFOUND}", id="oncekey.W002") for each in unfound]


def _check_place() -> list[CheckMessage]:
    middleware = list(settings.MIDDLEWARE)
    if MIDDLEWARE not in middleware:
        return [
            Error(
                "nothing is guarded: the middleware is missing",
                hint=f"Add {MIDDLEWARE!r} to MIDDLEWARE, as the last one.",
                id="oncekey.E002",
            )
        ]
    if middleware.count(MIDDLEWARE) > 1:
        return [
            Error(
                f"{MIDDLEWARE} stands in MIDDLEWARE twice: requests would be guarded twice",
                hint="Keep the last one.",
                id="oncekey.E004",
            )
        ]
    following = middleware[middleware.index(MIDDLEWARE) + 1 :]
    if codes := [path for path in following if "gzip" in path.lower()]:
        return [
            Warning(
                f"{', '.join(codes)} compresses answers before they are stored, and a stored "
                "answer must suit every client",
                hint=f"Put {MIDDLEWARE!r} last.",
                id="oncekey.W003",
            )
        ]
    after = [path for path in following if _looks(path)]
    if not after:
        return []
    return [
        Warning(
            f"{', '.join(after)} check requests after their keys were claimed: a retry gets the "
            "first answer without being checked",
            hint=f"Put {MIDDLEWARE!r} last.",
            id="oncekey.W001",
        )
    ]


def _looks(path: str) -> bool:
    """Whether a middleware may refuse a request, or reads its body."""
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    return hasattr(found, "process_view") or hasattr(found, "process_request")
