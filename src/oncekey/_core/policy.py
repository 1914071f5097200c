"""Policies: the rules for one application or one route.

A policy is sparse: what it does not set it inherits. The route's policy lies over the
application's, which lies over the profile's, which lies over `DEFAULTS`; `policy.over(base)` is
that one operation. Every number carries its unit.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from oncekey._core.versions import Versions, check_version
from oncekey.errors import Misuse


class _Inherit(enum.Enum):
    INHERIT = "inherit"

    def __repr__(self) -> str:
        return "inherit"


INHERIT: Final[Any] = _Inherit.INHERIT


class Verdict(enum.Enum):
    """What an answer means for its record."""

    KEEP = "keep"
    """Final: stored, and replayed to every retry."""
    FAILED = "failed"
    """Released after failure: a retry with the same request runs again."""
    NO_EFFECT = "no effect"
    """Released without effect: a retry may even bring another request."""
    UNKNOWN = "unknown"
    """Nobody can tell what it did: it is not run again before an operator has found out. Where the
    operation's recovery is `ask`, that is asked.
    """


class Learned(enum.Enum):
    """What an `ask` function found out, where it is not an answer."""

    NOT_DONE = "not done"
    """It had no effect: run it now."""
    UNKNOWN = "unknown"
    """Nobody can tell: an operator must look."""


CONDITIONAL = frozenset({206, 304, 412, 428})
"""What one client is told because of its own conditions. Stored it would be told to every client:
it never is, whatever a policy or a handler says.
"""
_REFUSALS = CONDITIONAL | {307, 308, 401, 403, 405, 407, 408, 409, 413, 415, 425, 429}


def keep_definitive(status: int) -> Verdict:
    """The default: what the handler decided is kept, what it refused or could not do is not."""
    if status >= 500:
        return Verdict.FAILED
    # Below 200 nothing is final; an application that ends with such a status has said nothing.
    return Verdict.NO_EFFECT if status < 200 or status in _REFUSALS else Verdict.KEEP


def keep_success(status: int) -> Verdict:
    """Only 2xx is kept; every error may be tried again."""
    if 200 <= status < 300 and status not in CONDITIONAL:
        return Verdict.KEEP
    return keep_definitive(status) if status in _REFUSALS else Verdict.FAILED


def keep_errors_too(status: int) -> Verdict:
    """5xx is kept as well: for effects that nobody dares to repeat after an internal error."""
    return Verdict.KEEP if status >= 500 else keep_definitive(status)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Policy:
    """The rules for an application or a route; fields left out are inherited.

    >>> Policy(lease_s=60).over(DEFAULTS).retention_s
    86400.0
    """

    required: bool = INHERIT
    """Refuse requests that bring no key."""
    methods: Iterable[str] = INHERIT
    """Methods that are guarded; a key on any other method is ignored."""
    scope: Literal["operation", "tenant"] = INHERIT
    """Whether one key may be used once per operation, or once for the whole tenant."""
    lease_s: float = INHERIT
    """How long a claim holds without renewal; it is renewed every third of it while the handler
    runs.
    """
    run_s_max: float = INHERIT
    """A handler is not renewed past this: one that hangs for ever gives its record up."""
    retention_s: float = INHERIT
    """How long an answer is kept, counted from completion."""
    retention_declared_s: tuple[float, float] | None = INHERIT
    """The shortest and the longest retention that a client may ask for; None: it may not."""
    tombstone_s: float = INHERIT
    """How much longer it is remembered that it was done; a retry is then refused, not run again."""
    key_age_s_max: float | None = INHERIT
    """A key that was made longer ago is not run as new, where it tells its age; None: it is."""
    key_time_required: bool = INHERIT
    """Where `key_age_s_max` is set: run nothing as new whose age nobody tells."""
    clock_skew_s: float = INHERIT
    """How far apart the clocks of this server and of those who make keys may be."""
    unknown_retention_s: float = INHERIT
    """How long an unknown outcome waits for an operator."""
    in_flight: Literal["refuse", "wait"] = INHERIT
    """What a retry gets while the first request still runs."""
    wait_s: float = INHERIT
    """How long a retry waits, where `in_flight` says so, before it is refused."""
    keep: Callable[[int], Verdict] = INHERIT
    """What an answer's status means for its record."""
    recovery: Literal["rerun", "resume", "block", "ask"] = INHERIT
    """What happens to an attempt that died: a retry runs it again; it is continued after its last
    finished step, by a retry or by the recoverer; its outcome is declared unknown; or `ask` finds
    out. Under `block` and `ask` the same goes for one that raised, was cut off or answered 5xx.
    """
    no_effect_on: tuple[type[Exception], ...] = INHERIT
    """Exceptions that prove that nothing happened, such as a card that was declined: the key is
    released, also where `recovery` is `block` or `ask`.
    """
    ask: Callable[..., Any] | None = INHERIT
    """Finds out what became of an attempt that died: gets the new attempt, returns an `Answer` or a
    `Learned`. Sync or async.
    """
    request_kept_bytes_max: int = INHERIT
    """A larger request is not kept: no recoverer can finish it, only its client's retry."""
    lapses_max: int = INHERIT
    """An attempt that died this often is not run again but declared unknown."""
    request_bytes_max: int = INHERIT
    """A larger body is refused."""
    bodies_bytes_max: int = INHERIT
    """Most bytes of bodies that one process holds at once; beyond that they are refused for now."""
    answer_bytes_max: int = INHERIT
    """A larger answer is sent, but only the fact is kept: a retry is told so and never runs again.
    """
    atomic: bool = INHERIT
    """Claim, business rows and answer commit in one transaction: needs `atomic=` in the middleware.
    """
    atomic_s_max: float = INHERIT
    """The longest run of an atomic handler where a transaction keeps others waiting (SQLite)."""
    schema_version: int = INHERIT
    """Of the answers that this operation gives: raise it when their shape changes."""
    upcasts: Versions | None = INHERIT
    """How answers of other schema versions become this one's."""
    stale: Literal["replay", "rerun", "refuse"] = INHERIT
    """What a retry gets whose answer was kept under another version, where no upcast leads here:
    that answer as it is, a new run, or a refusal.
    """
    key_chars_min: int = INHERIT
    store_down: Literal["refuse", "run"] = INHERIT
    """Whether a request may run unprotected when the store cannot be reached."""
    headers_kept: Iterable[str] | None = INHERIT
    """Names of headers to keep; None keeps all but those that must never be kept."""
    field_digests: bool = INHERIT
    """Keep a keyed digest of each top-level field, so that a mismatch can name what differs."""
    waiters_per_key_max: int = INHERIT
    waiters_max: int = INHERIT
    """Most retries that wait at once, for one key and in one process; more are refused at once."""

    def __post_init__(self) -> None:
        _check_values(self)

    def __repr__(self) -> str:
        """What it sets, and nothing of what it inherits."""
        fields = ((name, getattr(self, name)) for name in _FIELDS)
        given = (f"{name}={value!r}" for name, value in fields if value is not INHERIT)
        return f"Policy({', '.join(given)})"

    def over(self, base: Policy) -> Policy:
        """This policy, with what it does not set taken from `base`."""
        missing = {name: getattr(base, name) for name in _FIELDS if getattr(self, name) is INHERIT}
        return dataclasses.replace(self, **missing)

    @property
    def memory_s(self) -> float:
        """How long it is surely known that a request was done, or may have been."""
        kept_s = (self.retention_s, self.unknown_retention_s, *(self.retention_declared_s or ()))
        memory_s: float = min(kept_s) + self.tombstone_s
        return memory_s

    def settled(self) -> Policy:
        """This policy over `DEFAULTS`. Raises `Misuse` for values that do not go together."""
        policy = self.over(DEFAULTS)
        _check_together(policy)
        methods = frozenset(method.upper() for method in policy.methods)
        kept = policy.headers_kept
        names = None if kept is None else frozenset(name.lower() for name in kept)
        return dataclasses.replace(policy, methods=methods, headers_kept=names)


def as_policy(given: object, where: str = "policy=…") -> Policy:
    """What was given as a policy; one that sets nothing for None. Raises `Misuse` for others."""
    if given is None:
        return Policy()
    if not isinstance(given, Policy):
        raise Misuse(
            f"{where} takes an oncekey.Policy, such as Policy(required=True); it was given a "
            f"{type(given).__name__}"
        )
    return given


_FIELDS = tuple(f.name for f in dataclasses.fields(Policy))
_POSITIVE = (
    "lease_s",
    "run_s_max",
    "retention_s",
    "unknown_retention_s",
    "lapses_max",
    "request_bytes_max",
    "bodies_bytes_max",
    "request_kept_bytes_max",
    "answer_bytes_max",
    "atomic_s_max",
    "key_chars_min",
)
_NOT_NEGATIVE = ("wait_s", "waiters_per_key_max", "waiters_max", "tombstone_s", "clock_skew_s")
SECONDS_MAX = 100 * 366 * 86_400
"""A century. Some stores and threads cannot count much further: a handler would run, and then its
answer could not be kept.
"""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What HTTP lets be the name of a method or a header."""
_FLAGS = ("required", "key_time_required", "atomic", "field_digests")
_CHOICES: dict[str, tuple[str, ...]] = {
    "scope": ("operation", "tenant"),
    "in_flight": ("refuse", "wait"),
    "recovery": ("rerun", "resume", "block", "ask"),
    "stale": ("replay", "rerun", "refuse"),
    "store_down": ("refuse", "run"),
}


def _check_numbers(policy: Policy) -> None:
    for name, value in _set(policy, *_POSITIVE, *_NOT_NEGATIVE):
        if not _is_number(value):
            raise Misuse(f"Policy({name}={value!r}): must be a number, not negative, not infinite")
        if value == 0 and name in _POSITIVE:
            raise Misuse(f"Policy({name}={value!r}): must be more than 0")
        if name.endswith(("_s", "_s_max")):
            if value > SECONDS_MAX:
                raise Misuse(f"Policy({name}={value!r}): must be at most a century, {SECONDS_MAX}")
        elif not isinstance(value, int):
            raise Misuse(f"Policy({name}={value!r}): must be a whole number, such as {int(value)}")
        if name == "key_chars_min" and value > 255:
            raise Misuse(f"Policy(key_chars_min={value}): keys have at most 255 characters")


def _set(policy: Policy, *names: str) -> Iterator[tuple[str, Any]]:
    """Those of these fields that are not inherited."""
    for name in names:
        if (value := getattr(policy, name)) is not INHERIT:
            yield name, value


def _check_values(policy: Policy) -> None:
    """A misuse, unless every field that is set has a value that it can have."""
    _check_numbers(policy)
    for name, value in _set(policy, *_FLAGS):
        if not isinstance(value, bool):  # "false" would count as true
            raise Misuse(f"Policy({name}={value!r}): must be True or False")
    for name, value in _set(policy, *_CHOICES):
        if value not in _CHOICES[name]:
            raise Misuse(f"Policy({name}={value!r}): choose one of {_CHOICES[name]}")
    for name, value in _set(policy, "methods", "headers_kept"):
        such = "ETag" if name == "headers_kept" else "POST"
        if not are_names(() if value is None and name == "headers_kept" else value):
            raise Misuse(f"Policy({name}={value!r}): takes a list of names, such as [{such!r}]")
        for each in value or ():
            if not _TOKEN.fullmatch(each):  # no request could ever have it
                raise Misuse(f"Policy({name}={value!r}): {each!r} is no name, such as {such!r}")
    for name, value in _set(policy, "ask"):
        if value is not None and not callable(value):
            raise Misuse(f"Policy({name}={value!r}): takes a function")
    for _, value in _set(policy, "no_effect_on"):
        _check_no_effect_on(value)
    _check_declared(policy)
    _check_version_values(policy)
    _check_keep(policy)


def _check_together(policy: Policy) -> None:
    """A misuse, unless the values of a policy that inherits nothing more go together."""
    if (policy.recovery == "ask") != callable(policy.ask):
        raise Misuse(
            "Policy(recovery='ask', ask=find_out) belong together: ask=… takes the function that "
            "finds out what became of an attempt that died"
        )
    if policy.bodies_bytes_max < policy.request_bytes_max:
        raise Misuse(
            f"Policy(request_bytes_max={policy.request_bytes_max}) is more than "
            f"bodies_bytes_max={policy.bodies_bytes_max}, all that one process holds: such a "
            "request could never be taken. Raise bodies_bytes_max"
        )
    _check_stale(policy)
    _check_memory(policy)


def _check_no_effect_on(named: object) -> None:
    proofs = isinstance(named, tuple) and all(
        isinstance(each, type) and issubclass(each, Exception) and each is not Exception
        for each in named
    )
    if not proofs:
        raise Misuse(
            f"Policy(no_effect_on={named!r}): takes a tuple of exception classes that each prove "
            "that nothing happened, such as (CardDeclined,); Exception itself proves nothing"
        )


def _is_number(value: object) -> bool:
    if isinstance(value, bool):  # which Python takes for 0 and 1
        return False
    return isinstance(value, int | float) and 0 <= value < math.inf


def are_names(given: object) -> bool:
    """Whether they can be gone through again and again, and each is a text."""
    if not isinstance(given, Collection) or isinstance(given, str):
        return False
    return all(isinstance(each, str) for each in given)


def _check_declared(policy: Policy) -> None:
    for _, declared in _set(policy, "retention_declared_s"):
        if declared is None:
            continue
        given = tuple(declared) if isinstance(declared, tuple | list) else ()
        known = len(given) == 2 and all(map(_is_number, given))
        if not known or not 0 < given[0] <= given[1] <= SECONDS_MAX:
            raise Misuse(
                f"Policy(retention_declared_s={declared!r}): takes the shortest and the longest "
                "retention that a client may ask for, such as (3600, 604800)"
            )
    for _, age in _set(policy, "key_age_s_max"):
        if age is not None and (not _is_number(age) or age == 0):
            raise Misuse(f"Policy(key_age_s_max={age!r}): takes seconds, or None")


def _check_memory(policy: Policy) -> None:
    """What is asked of the memory of a store must be within it."""
    if policy.key_age_s_max is None:
        if policy.key_time_required:
            raise Misuse(
                "Policy(key_time_required=True) goes with key_age_s_max=…: how old a key may be"
            )
        return
    needed_s = policy.key_age_s_max + policy.clock_skew_s
    if needed_s > policy.memory_s:
        raise Misuse(
            f"Policy(key_age_s_max={policy.key_age_s_max:g}, clock_skew_s={policy.clock_skew_s:g}):"
            f" a key of that age is taken for new up to {needed_s:g} s after it was made, but what "
            f"was done with it is remembered for {policy.memory_s:g} s at least. Lower "
            "key_age_s_max, or raise retention_s or tombstone_s"
        )


def _check_keep(policy: Policy) -> None:
    if policy.keep is INHERIT:
        return
    if not callable(policy.keep):
        raise Misuse(
            "Policy(keep=…) takes a function from a status to a Verdict, such as keep_success"
        )
    for status in range(100, 600):
        verdict: object = policy.keep(status)
        if not isinstance(verdict, Verdict):  # True would be no Verdict.KEEP: nothing would be kept
            raise Misuse(
                f"Policy(keep=…) gave {verdict!r} for status {status}: it must give Verdict.KEEP, "
                "Verdict.FAILED, Verdict.NO_EFFECT or Verdict.UNKNOWN for every status"
            )


def _check_version_values(policy: Policy) -> None:
    for _, version in _set(policy, "schema_version"):
        check_version(version, "Policy(schema_version=…)")
    for _, upcasts in _set(policy, "upcasts"):
        if not isinstance(upcasts, Versions | None):
            raise Misuse(
                "Policy(upcasts=…) takes an oncekey.Versions() on which functions are registered: "
                "@versions.upcast(3, 4)"
            )


def _check_stale(policy: Policy) -> None:
    if policy.stale == "rerun" and (policy.atomic or policy.recovery not in ("rerun", "resume")):
        what = "atomic=True" if policy.atomic else f"recovery={policy.recovery!r}"
        raise Misuse(
            f"Policy(stale='rerun', {what}): what must not be repeated is not run again for a new "
            "version of its answer either; register an upcast, or choose stale='replay' or 'refuse'"
        )


DEFAULTS: Final = Policy(
    required=False,
    # PUT and DELETE are idempotent by HTTP's own rules and become guarded by naming them.
    methods=("POST", "PATCH"),
    scope="operation",
    # Long enough that a paused process or a slow garbage collection is not taken for dead, short
    # enough that a client of a dead one learns its outcome within a minute.
    lease_s=30.0,
    run_s_max=900.0,
    retention_s=86_400.0,
    retention_declared_s=None,
    tombstone_s=0.0,
    key_age_s_max=None,
    key_time_required=False,
    clock_skew_s=300.0,
    unknown_retention_s=30 * 86_400.0,
    in_flight="refuse",
    wait_s=10.0,
    keep=keep_definitive,
    recovery="rerun",
    no_effect_on=(),
    ask=None,
    request_kept_bytes_max=65_536,
    lapses_max=5,
    request_bytes_max=10_485_760,
    bodies_bytes_max=268_435_456,
    answer_bytes_max=1_048_576,
    atomic=False,
    atomic_s_max=5.0,
    schema_version=0,
    upcasts=None,
    stale="replay",
    key_chars_min=1,
    store_down="refuse",
    headers_kept=None,
    field_digests=False,
    waiters_per_key_max=100,
    waiters_max=1000,
)
