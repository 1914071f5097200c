"""Routes: which policy and which operation name a request has.

A route is written as people write it: `"POST /orders/{id}/pay"`, or without a method for all of
them. `{name}` stands for one path segment. The template is the operation's name, so that a key's
scope does not depend on the id in the path; a request that no template matches has its own path as
the operation. Templates are written as the application's own routes are: without the path at which
it is mounted. Names have it, so that two mounts of one application do not share their keys.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping

from oncekey.core.policy import Policy, as_policy
from oncekey.core.value import value
from oncekey.errors import Misuse
from oncekey.web.request import within

_WRITTEN = re.compile(r"(?:([A-Z]+) )?(/\S*)")
_VARIABLE = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_STRANGE = re.compile(r"[{}<>*?#]")
_USUAL = ("1", "a", "00000000-0000-4000-8000-000000000000")
_PATHS_MAX = 100


Finds = Callable[[str | None, str], bool]
"""Tells whether an application has a route for a method, or any, and a path."""


@value
class Route:
    """What applies to a request."""

    operation: str
    policy: Policy


@value
class _Template:
    method: str | None
    text: str
    pattern: re.Pattern[str]
    policy: Policy


class Routes:
    """The routes of one application; the first template that matches counts."""

    def __init__(self, default: Policy, routes: Mapping[str, Policy] | None = None) -> None:
        self._default = default.settled()
        self._templates = [_compile(text, p, default) for text, p in as_policies(routes).items()]
        self.policies = [self._default, *(template.policy for template in self._templates)]
        self.methods = frozenset[str]().union(*(policy.methods for policy in self.policies))
        """Methods that are guarded on any route."""
        self.required = any(policy.required for policy in self.policies)
        """Whether any route requires a key."""

    def named(self, condition: Callable[[Policy], bool]) -> list[str]:
        """The routes whose policy meets a condition, as they are written."""
        found = [f"{t.method or 'any'} {t.text}" for t in self._templates if condition(t.policy)]
        rest = "any other route" if self._templates else "any route"
        return [*found, rest] if condition(self._default) else found

    def unfound(self, finds: Finds) -> list[str]:
        """The templates, as they are written, to which the application has no route: their rules
        apply to nothing.
        """
        lost = (t for t in self._templates if not any(finds(t.method, p) for p in _paths(t.text)))
        return [f"{t.method} {t.text}" if t.method else t.text for t in lost]

    def match(self, method: str, path: str, root: str = "") -> Route:
        """The route of a request to `path`, in an application that is mounted at `root`."""
        if self._templates:
            inner = within(root, path)
            for template in self._templates:
                if template.method in (None, method) and template.pattern.fullmatch(inner):
                    mounted = path.removesuffix(inner)
                    return Route(f"{method} {mounted}{template.text}", template.policy)
        return Route(f"{method} {path}", self._default)


def _paths(text: str) -> Iterator[str]:
    """Paths that a template stands for: some of what variables usually are."""
    first, *rest = _VARIABLE.split(text)
    for values in itertools.islice(itertools.product(_USUAL, repeat=len(rest)), _PATHS_MAX):
        pairs = zip(values, rest, strict=True)
        yield first + "".join(value + piece for value, piece in pairs)


def as_policies(given: object) -> dict[str, Policy]:
    """What was given as policies by route. Raises `Misuse` for what is none."""
    if not isinstance(given, Mapping | None):
        raise Misuse(
            "routes=… takes policies by route, such as {'POST /orders': Policy(required=True)}; it "
            f"was given a {type(given).__name__}"
        )
    return {
        text: as_policy(each, f"routes={{{text!r}: …}}") for text, each in (given or {}).items()
    }


def _compile(text: str, policy: Policy, default: Policy) -> _Template:
    written = _WRITTEN.fullmatch(str(text))
    if written is None:
        raise Misuse(f"routes={{{text!r}: …}}: write a route as 'POST /orders/{{id}}'")
    method, path = written[1], written[2]
    pieces = _VARIABLE.split(path)
    if strange := _STRANGE.search("".join(pieces)):
        # Taken literally it would match nothing, and its policy would silently apply to nothing.
        raise Misuse(
            f"routes={{{text!r}: …}}: {strange[0]!r} has no meaning here; a route is a path, and a "
            "variable in it is written {name} and stands for one segment"
        )
    # Routers whose patterns end in `$`, as Starlette's do, pass over a line's end behind a path: it
    # must not lead around the rules of the route.
    pattern = re.compile("[^/]+".join(re.escape(piece) for piece in pieces) + "\n?")
    settled = policy.over(default).settled()
    if method is not None and method not in settled.methods:
        # Whoever names a method wants it guarded.
        settled = Policy(methods=(*settled.methods, method)).over(settled).settled()
    return _Template(method, path, pattern, settled)
