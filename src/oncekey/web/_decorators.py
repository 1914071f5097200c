"""Marks: what is said of one endpoint or view where it is written.

@idempotent(Policy(recovery="block"))
def charge(...): ...

@not_idempotent
def search(...): ...
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from oncekey._core.policy import INHERIT, Policy, as_policy
from oncekey._core.values import value
from oncekey.atomic import Adapter, check
from oncekey.atomic._validation import UNUSED
from oncekey.errors import Misuse
from oncekey.web._edge import Edge
from oncekey.web._routes import as_policies

F = TypeVar("F", bound=Callable[..., Any])

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")

KNOWN_MAX = 10_000
"""Rules that are remembered: clients may invent methods, and each of them is asked for."""

_NAME = "__oncekey_mark__"


@value
class Mark:
    """What was said of a function."""

    policy: Policy | None
    """Its rules, over the application's; None: it is not guarded."""
    claims: bool = False
    """Whether the function claims by itself, where it is called: where views are marked. Else its
    route does.
    """


@overload
def idempotent(policy: F) -> F: ...
@overload
def idempotent(policy: Policy | None = None) -> Callable[[F], F]: ...
def idempotent(policy: Any = None) -> Any:
    """Guard this endpoint, whatever its method, by these rules over the application's."""
    if callable(policy) and not isinstance(policy, Policy):
        return put(policy, Mark(Policy()))
    mark = Mark(rules(policy))
    return lambda function: put(function, mark)


def not_idempotent(function: F) -> F:
    """Do not guard this endpoint: a key that it is sent is ignored."""
    return put(function, Mark(None))


def rules(policy: object) -> Policy:
    """What a mark was given as its rules. Raises `Misuse` for what are none."""
    if not isinstance(policy, Policy | None):
        raise Misuse("@idempotent(…) takes a Policy: @idempotent(Policy(recovery='block'))")
    return policy or Policy()


def put(function: F, mark: Mark) -> F:
    if isinstance(function, type):
        raise Misuse(
            f"{function.__name__} is a class: mark its methods, or in a class of Flask's views "
            "write decorators = [idempotent]"
        )
    other = mark_of(function)
    if other is not None and (other.policy is None) != (mark.policy is None):
        raise Misuse(f"{name_of(function)} is both @idempotent and @not_idempotent: choose one")
    function.__dict__[_NAME] = mark
    return function


def check_kind(mark: Mark, view: Any, module: str, *, claims: bool) -> None:
    """Raise `Misuse` for a mark of another framework's: it guards nothing where views must claim by
    themselves, and fails where their routes do.
    """
    if mark.policy is not None and mark.claims is not claims:
        raise Misuse(
            f"{name_of(view)} is marked as in another framework: from {module} import idempotent"
        )


def hidden_mark(view: Any) -> Misuse:
    """What is told where a marked view is called whose mark nobody had seen."""
    return Misuse(
        f"{name_of(view)} is @idempotent, which could not be seen when its request came: a "
        "decorator above the mark hides it, and needs functools.wraps; or a view calls it that is "
        "not marked itself"
    )


def name_of(view: Any) -> str:
    return str(getattr(view, "__name__", view))


def mark_of(function: Any) -> Mark | None:
    """What was said of a function, also through decorators that keep what they wrap."""
    while function is not None:
        if (mark := getattr(function, _NAME, None)) is not None:
            found: Mark = mark
            return found
        partial = isinstance(function, functools.partial)
        function = function.func if partial else getattr(function, "__wrapped__", None)
    return None


def below_mark(view: Any) -> Any:
    """What stands below a view's mark, and is called when its key is claimed. None if it has no
    mark. Decorators above the mark have it, too: they copy what they wrap.
    """
    marked = None
    while view is not None:
        if _NAME in getattr(view, "__dict__", ()):
            marked = view
        view = getattr(view, "__wrapped__", None)
    return getattr(marked, "__wrapped__", None)


def mark_on(view: Any, method: str) -> Mark | None:
    """Of a view, or of the method of a class of views that serves this method of HTTP."""
    mark = mark_of(view)
    owner = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if mark is None and owner is not None:
        served = method.lower()
        actions = getattr(view, "actions", None) or {}  # as sets of views name them
        names = (actions.get(served, served), "dispatch_request")
        found = (mark_of(getattr(owner, name, None)) for name in names)
        mark = next((each for each in found if each is not None), None)
    return mark


def adapter_of_routes(
    atomic: Adapter | None, policy: Policy | None, routes: Mapping[str, Policy] | None
) -> Adapter | None:
    """The adapter, if one is needed whatever is marked."""
    policies = [as_policy(policy), *as_policies(routes).values()]
    return atomic if any(each.atomic is True for each in policies) else None


class Marked:
    """The rules of marked endpoints, over the application's."""

    def __init__(self, edge: Edge, policy: Policy | None, atomic: Adapter | None) -> None:
        self._default = (policy or Policy()).over(edge.profile.policy)
        self._atomic = edge.adapter = atomic
        self._store, self._runtime, self._routes = edge.store, edge.runtime, edge.routes
        self._known: dict[tuple[int, frozenset[str]], tuple[Mark, Policy | None]] = {}

    def policy(self, mark: Mark, methods: frozenset[str]) -> Policy | None:
        """The rules of a marked endpoint that serves these methods; None: it is not guarded."""
        found = self._known.get((id(mark), methods))
        if found is None:
            found = mark, self._policy_of(mark, methods)
            if len(self._known) < KNOWN_MAX:
                self._known[id(mark), methods] = found
        return found[1]

    def check(self, views: Iterable[Any]) -> list[Policy]:
        """The rules of all marks on these views, and of the routes. Raises `Misuse` for some that
        cannot be kept, and for an adapter that none of them asks for.
        """
        settled = list(self._routes.policies)
        for view, method in itertools.product(views, _METHODS):
            mark = mark_on(view, method)
            policy = mark and self.policy(mark, frozenset({method}))
            settled += [policy] if policy else []
        if self._atomic is not None and not any(policy.atomic for policy in settled):
            raise Misuse(UNUSED)
        return settled

    def _policy_of(self, mark: Mark, methods: frozenset[str]) -> Policy | None:
        """Whoever marks an endpoint wants it guarded: all its methods that change something are,
        unless the policy names some.
        """
        if mark.policy is None:
            return None
        named = mark.policy.methods is not INHERIT
        over = mark.policy if named else Policy(methods=methods - SAFE).over(mark.policy)
        policy = over.over(self._default).settled()
        if policy.atomic:
            check(self._atomic, self._store, lambda meets: ["@idempotent"] if meets(policy) else [])
        self._runtime.expect(policy)
        return policy


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine, also for partials, decorated functions and objects."""
    while isinstance(function, functools.partial):
        function = function.func
    told = (function, inspect.unwrap(function), getattr(function, "__call__", None))  # noqa: B004
    return any(inspect.iscoroutinefunction(each) for each in told)
