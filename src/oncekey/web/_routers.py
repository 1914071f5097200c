"""Routers that give several spellings of a path to one handler, and say so beforehand.

What no template names has its path as its operation. Where a slash at the end does not count for
the router, it must not count for that name either: the two would be two records of one request.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from oncekey.web._routes import Rooted, Spelled, as_url, other_end

_LAYERS_MAX = 20
_INNER = ("app", "wsgi_app", "asgi_app", "__self__", "__wrapped__")
"""Where what is around an application keeps it."""


def spelled_by(app: Any) -> Spelled:
    """How the router of an application spells a path: with the slash at its end, or without."""
    for layer in _layers(app):
        if hasattr(getattr(layer, "url_map", None), "iter_rules"):  # Flask, Quart
            return _Werkzeug(layer.url_map)
        if hasattr(layer, "asgi_router") or _strips(layer):  # Litestar, Falcon
            return _without_end
    return lambda method, path: path


def rooted_by(app: Any) -> Rooted:
    """How the router of an application finds what is below its mount."""
    for layer in _layers(app):
        if hasattr(layer, "asgi_router"):  # Litestar
            return _after_root
        if hasattr(layer, "asgi_app"):  # Quart
            return _behind_root
    return lambda root, path: path


def root_of(app: Any) -> str:
    """The path that an application for ASGI says to be mounted at, whatever its server says."""
    for layer in _layers(app):
        if type(layer).__name__ == "ASGIHandler" and "django.conf" in sys.modules:
            return str(sys.modules["django.conf"].settings.FORCE_SCRIPT_NAME or "").rstrip("/")
        if isinstance(root := getattr(layer, "root_path", None), str) and hasattr(layer, "router"):
            return root.rstrip("/")  # FastAPI's
    return ""


def _layers(app: Any) -> Iterator[Any]:
    for _ in range(_LAYERS_MAX):
        yield app
        found = (getattr(app, name, None) for name in _INNER)
        app = next((inner for inner in found if inner is not None), None)
        if app is None:
            return


def _strips(app: Any) -> bool:
    options = getattr(app, "req_options", None)
    return bool(getattr(options, "strip_url_path_trailing_slash", False))


def _after_root(root: str, path: str) -> str:
    """What stands behind the root counts, whatever stands before it."""
    _, found, rest = path.partition(root)
    return _join(root, rest) if found else path


def _behind_root(root: str, path: str) -> str:
    path = as_url(path)
    return _join(root, path.removeprefix(root)) if path.startswith(root) else path


def _join(root: str, rest: str) -> str:
    base = root.rstrip("/")
    return f"{base}{rest}" if rest[:1] in ("", "/") else f"{base}/{rest}"


def _without_end(method: str, path: str) -> str:
    return path.rstrip("/") or "/"


class _Werkzeug:
    """A map of rules, some of which may not be strict about the slash at their end."""

    def __init__(self, url_map: Any) -> None:
        self._rules = url_map
        self._strict: bool | None = None
        """Unknown until the first request: so far there may be more rules."""

    def __call__(self, method: str, path: str) -> str:
        if self._strict is None:
            self._strict = all(rule.strict_slashes for rule in self._rules.iter_rules())
        if self._strict:
            return path
        try:
            rule, _ = self._rules.bind("").match(path, method, return_rule=True)
        except Exception:  # none; or a redirect to the other spelling, whose client comes again
            return path
        return path if rule.rule.endswith("/") == path.endswith("/") else other_end(path)
