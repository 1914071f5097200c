"""Routes: which policy and which operation name a request has.

A route is written as people write it: `"POST /orders/{id}/pay"`, or without a method for all of
them. `{name}` stands for one path segment. The template is the operation's name, so that a key's
scope does not depend on the id in the path; a request that no template matches has its own path as
the operation, in its normal form. Templates are written as the application's own routes are:
without the path at which it is mounted. Names have it where the path has it, so that two mounts of
one application do not share their keys.

Many routers take `//charges`, `/charges/` or `http://host/charges` for `/charges`, and the
middleware around an application cannot ask them beforehand. So a template applies to all readings
of its path, unless another reading falls under stricter rules: then the request is refused rather
than run under the weaker ones. A path in normal form keeps its own name, or retries across a
deployment would not find their records. The fingerprint takes the path as it was sent: in doubt two
requests are not the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import urlparse

from oncekey._core.policy import INHERIT, Policy, as_policy
from oncekey._core.values import value
from oncekey.errors import Misuse
from oncekey.web._request import within

_WRITTEN = re.compile(r"(?:([A-Z]+) )?(/\S*)")
_VARIABLE = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_STRANGE = re.compile(r"[{}<>*?#]")
_EXPRESSION = re.compile(r"[\^$(\\]")
"""What stands in a regular expression, and hardly in a path."""
_ODD = re.compile(r"\A(?!/)|//|/\.\.?(?:/|\n?\Z)|(?<!\n)\n\Z|[\udc80-\udcff]")
_NO_TEXT = re.compile(r"[\udc80-\udcff]")
"""Bytes that are no UTF-8, which some frameworks pass over."""
_LINE_END = re.compile(r"(?<!\n)\n\Z")
"""A router whose patterns end in `$`, as Starlette's do, passes over it."""
_HOST = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
"""Of a request whose target is a whole URL: some servers hand it over as it is."""
USUAL = ("1", "a", "00000000-0000-4000-8000-000000000000")
_PATHS_MAX = 100
NAMES_MAX = 10_000
"""A mount may be named by the client, where a proxy lets it: its routes have a name for each."""


_CAREFUL = ("rerun", "resume", "ask", "block")
"""Recoveries, the most careful one last."""

Finds = Callable[[str | None, str], bool]
"""Tells whether an application has a route for a method, or any, and a path."""
Serves = Callable[[str], bool]
Spelled = Callable[[str, str], str]
"""The path as the application's own routes are written, where it knows better than `normal`."""
Rooted = Callable[[str, str], str]
"""The path as it is where an application finds it below the root that it is mounted at."""


@value
class Route:
    """What applies to a request."""

    operation: str
    policy: Policy
    is_named: bool = False
    """Whether a template or a rule of the framework names the operation: then it is one of few."""
    is_unclear: bool = False
    """Whether the path can be read as that of another route, whose rules ask for something else."""


@value
class _Template:
    method: str | None
    text: str
    pattern: re.Pattern[str]
    in_any_case: re.Pattern[str]
    policy: Policy

    def fits(self, method: str, *paths: str, in_any_case: bool = False) -> bool:
        if self.method not in (None, method):
            return False
        pattern = self.in_any_case if in_any_case else self.pattern
        return any(map(pattern.fullmatch, paths))

    def is_served(self, method: str, serves: Serves) -> bool:
        """Whether a route that the framework found is the one that this template means."""
        return self.method in (None, method) and any(map(serves, _paths(self.text)))


class Routes:
    """The routes of one application; the first template that matches counts."""

    def __init__(self, default: Policy, routes: Mapping[str, Policy] | None = None) -> None:
        self._default = default.settled()
        given = as_policies(routes)
        self._templates = [_compile(text, p, default) for text, p in given.items()]
        self.chosen = default.recovery is not INHERIT
        """Whether somebody chose the recovery of what has no rules of its own."""
        self._chosen_by = [p.over(default).recovery is not INHERIT for p in given.values()]
        self.policies = [self._default, *(template.policy for template in self._templates)]
        self.methods = frozenset[str]().union(*(policy.methods for policy in self.policies))
        """Methods that are guarded on any route."""
        self.watched = self.methods | ({"HEAD"} if "GET" in self.methods else set())
        """Methods by which a guarded handler may run."""
        self.required = any(policy.required for policy in self.policies)
        """Whether any route requires a key."""
        self.names: set[str] = set()
        """The operations that are known to have a name."""
        self.spelled: Spelled = lambda method, path: path
        self.rooted: Rooted = lambda root, path: path
        self.declared_root = ""
        """Where the application says that it is mounted, whatever its server says."""

    def names_where(self, condition: Callable[[Policy], bool]) -> list[str]:
        """The routes whose policy meets a condition, as they are written."""
        found = [f"{t.method or 'any'} {t.text}" for t in self._templates if condition(t.policy)]
        rest = "any other route" if self._templates else "any route"
        return [*found, rest] if condition(self._default) else found

    def note(self, operation: str) -> None:
        """This operation has a name, by which it may be told of."""
        if len(self.names) < NAMES_MAX:
            self.names.add(operation)

    def undecided_routes(self, served: Iterable[tuple[str, str]] | None = None) -> list[str]:
        """The guarded routes that run again after a crash because nobody has chosen otherwise, as
        they are written. `served` are the routes of the application, methods and paths, where they
        are known.
        """
        if served is not None:
            found = (f"{method} {path}" for method, path in served if self._is_open(method, path))
            return list(dict.fromkeys(found))
        chosen = zip(self._templates, self._chosen_by, strict=True)
        open_ = [t for t, is_chosen in chosen if not is_chosen and not t.policy.atomic]
        names = [f"{each.method or 'any'} {each.text}" for each in open_]
        rest = [] if self.chosen or self._default.atomic else ["any other route"]
        return [*names, *rest] if self._templates else rest and ["any route"]

    def _is_open(self, method: str, path: str) -> bool:
        """Whether a route is guarded, is not atomic, and has a recovery that nobody chose."""
        policy, chosen = self._default, self.chosen
        for template, is_chosen in zip(self._templates, self._chosen_by, strict=True):
            if template.method in (None, method) and template.pattern.fullmatch(path):
                policy, chosen = template.policy, is_chosen
                break
        return method in policy.methods and not policy.atomic and not chosen

    def unfound(self, finds: Finds, served: Iterable[tuple[str, str]] = ()) -> list[str]:
        """The templates, as they are written, to which the application has no route: their rules
        apply to nothing. `served` are its routes, as far as they are known.
        """
        known = list(served)
        lost = (
            t
            for t in self._templates
            if not any(t.fits(*each) for each in known)
            and not any(finds(t.method, path) for path in _paths(t.text))
        )
        return [f"{t.method} {t.text}" if t.method else t.text for t in lost]

    def match(self, method: str, path: str, root: str = "") -> Route:
        """The route of a request to `path`, in an application that is mounted at `root`."""
        if root and not path.startswith(f"{root}/"):
            path = self.rooted(root, path)
        if self.declared_root not in ("", root):  # the application goes by its own
            route = self._match(method, path, self.declared_root)
            if route.is_named or route.is_unclear:
                return route
        return self._match(method, path, root)

    def _match(self, method: str, path: str, root: str) -> Route:
        mounted, inner = "", path
        if root and (
            path.startswith(f"{root}/")
            or not is_normal(path)
            or self._template(method, path) is None
        ):
            mounted, inner = _below(root, path)
        texts = (inner,) if _ODD.search(inner) is None else readings(inner)
        own = inner and self.spelled(method, texts[-1])
        plain = Route(f"{method} {mounted}{own}", self._default)
        if not self._templates:
            return plain
        fitting = [self._template(method, text) for text in texts]
        if not any(fitting):  # a router may ignore a slash at the end, and case; or it may not
            loose = (self._template(method, t, other_end(t), in_any_case=True) for t in texts)
            fitting = [*loose, None]
        return self._choose(method, mounted, plain, fitting)

    def _choose(
        self, method: str, mounted: str, plain: Route, fitting: list[_Template | None]
    ) -> Route:
        """The route of a path that can be read in several ways: a template's, unless that would
        lead around the rules of another one, or of `plain`, where no template applies.
        """
        named = [
            Route(f"{method} {mounted}{found.text}", found.policy, True)
            for found in fitting
            if found is not None
        ]
        possible = [*named, *([plain] if None in fitting else [])]
        for route in named:
            if all(_asks_no_less(route.policy, each.policy, method) for each in possible):
                return route
        if not any(method in route.policy.methods for route in named):
            return plain
        required = max(possible, key=lambda each: each.policy.required)
        return dataclasses.replace(required, is_unclear=True)

    def policy_of(self, method: str, path: str, rule: str, serves: Serves | None = None) -> Policy:
        """The policy of a request for which the framework found a route. `rule` is that route's
        path with its variables in braces, or a regular expression; `path` is the request's own,
        below the root. `serves` tells whether the same route, called in the same way, serves
        another path.
        """
        if (found := self._template(method, path, rule)) is not None:
            return found.policy
        found = self._template(method, other_end(rule))  # the last slash may not count
        if found is None and _EXPRESSION.search(rule):  # which may leave open more than that
            found = self._template(method, path, other_end(path), in_any_case=True)
            if found is None and serves is not None:
                found = next((t for t in self._templates if t.is_served(method, serves)), None)
        if found is not None and _asks_no_less(found.policy, self._default, method):
            return found.policy
        return self._default

    def _template(self, method: str, *paths: str, in_any_case: bool = False) -> _Template | None:
        for each in self._templates:
            if each.fits(method, *paths, in_any_case=in_any_case):
                return each
        return None


def _below(root: str, path: str) -> tuple[str, str]:
    """Where the application is mounted, as far as the path has it, and the path below; no path at
    all at that very place.
    """
    inner = within(root, path)
    if inner != path or not root:
        return path.removesuffix(inner), inner
    base, whole = normal(root).rstrip("/"), normal(path)
    if whole == base:
        return base, ""
    below = within(base, whole)
    return (base, below) if below != whole else ("", path)


def _asks_no_less(one: Policy, other: Policy, method: str) -> bool:
    """Whether nobody gets around the rules of `other` where those of `one` apply instead."""
    if one is other or method not in other.methods:
        return True
    careful = _CAREFUL.index(one.recovery) >= _CAREFUL.index(other.recovery)
    return method in one.methods and one.required >= other.required and careful


def _paths(text: str) -> Iterator[str]:
    """Paths that a template stands for: some of what variables usually are."""
    first, *rest = _VARIABLE.split(text)
    for values in itertools.islice(itertools.product(USUAL, repeat=len(rest)), _PATHS_MAX):
        pairs = zip(values, rest, strict=True)
        yield first + "".join(value + piece for value, piece in pairs)


def as_policies(given: object) -> dict[str, Policy]:
    """What was given as policies by route. Raises `Misuse` for what is none."""
    if not isinstance(given, Mapping | None):
        raise Misuse(
            "routes=… takes policies by route, such as {'POST /orders': Policy(required=True)}; it "
            f"was given a {type(given).__name__}"
        )
    for text, each in (given or {}).items():
        if each is None:
            raise Misuse(
                f"routes={{{text!r}: None}}: write Policy(methods=()) for a route that is not "
                "guarded, and leave out one that has no rules of its own"
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
    pattern = "[^/]+".join(re.escape(piece) for piece in pieces)
    settled = policy.over(default).settled()
    excluded = policy.methods is not INHERIT and not settled.methods
    if method is not None and method not in settled.methods and not excluded:
        # Whoever names a method wants it guarded.
        settled = Policy(methods=(*settled.methods, method)).over(settled).settled()
    exact, in_any_case = re.compile(pattern), re.compile(pattern, re.IGNORECASE)
    return _Template(method, path, exact, in_any_case, settled)


# ------------------------------------------------------------------------ spellings of a path


def is_normal(path: str) -> bool:
    """Whether a path is spelt as links are: the readings below change nothing in it."""
    return _ODD.search(path) is None


def normal(path: str) -> str:
    """The path without repeated slashes, dot segments, host, line end and what is no text. A slash
    at the end stays: to many routers it makes another route.
    """
    return path if is_normal(path) else _normal(as_url(path))


def _normal(path: str) -> str:
    *inner, last = _parts(path)
    kept: list[str] = []
    for part in (*inner, last):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    ended = "/" if kept and last in ("", ".", "..") else ""
    return f"/{'/'.join(kept)}{ended}"


def readings(path: str) -> tuple[str, ...]:
    """The path as it is, then as routers may read it; its normal form is the last one."""
    if is_normal(path):
        return (path,)
    *inner, last = _parts(path)
    merged = "/" + "/".join([*filter(None, inner), last])
    return path, merged, _normal(path), normal(path)


def other_end(path: str) -> str:
    """With the slash at its end that it has not, or without the one that it has."""
    return path[:-1] or path if path.endswith("/") else f"{path}/"


def as_url(path: str) -> str:
    """What Quart takes for the path where it does not begin with a slash: `x:/charges?`."""
    if path.startswith("/"):
        return path
    try:
        return urlparse(path).path
    except ValueError:
        return path


def _parts(path: str) -> list[str]:
    path = _NO_TEXT.sub("", _HOST.sub("", path, count=1))
    return _LINE_END.sub("", path).split("/")
