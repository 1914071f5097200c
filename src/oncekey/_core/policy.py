"""Policies: the rules for one application or one route.

A policy is sparse: it inherits what it does not set. A route's policy lies over the application's,
which lies over the profile's, which lies over `DEFAULTS`; `policy.over(base)` does one such step.
Every number carries its unit.
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
    """What a response means for its record."""

    KEEP = "keep"
    """Final: stored, and replayed to every retry."""
    FAILED = "failed"
    """Released after a failure: a retry with the same request runs again."""
    NO_EFFECT = "no effect"
    """Released without effect: a retry may even send another request."""
    UNKNOWN = "unknown"
    """Nobody knows what it did: it does not run again before an operator has found out, or the
    operation's `ask` function if its recovery is `ask`.
    """


class Learned(enum.Enum):
    """What an `ask` function found out, if it did not return a response."""

    NOT_DONE = "not done"
    """It had no effect: run it now."""
    UNKNOWN = "unknown"
    """Nobody knows: an operator must look."""


CONDITIONAL = frozenset({206, 304, 412, 428})
"""Responses to the conditions of one client. They are never stored, whatever a policy or a handler
says: every client would get them.
"""
_REFUSALS = CONDITIONAL | {307, 308, 401, 403, 405, 407, 408, 409, 413, 415, 425, 429}


def keep_definitive(status: int) -> Verdict:
    """The default: store what the handler decided, not what it refused or could not do."""
    if status >= 500:
        return Verdict.FAILED
    # A status below 200 is not final.
    return Verdict.NO_EFFECT if status < 200 or status in _REFUSALS else Verdict.KEEP


def keep_success(status: int) -> Verdict:
    """Store only 2xx; every error may be retried."""
    if 200 <= status < 300 and status not in CONDITIONAL:
        return Verdict.KEEP
    return keep_definitive(status) if status in _REFUSALS else Verdict.FAILED


def keep_errors_too(status: int) -> Verdict:
    """Store 5xx as well: for effects that are too risky to repeat after an internal error."""
    return Verdict.KEEP if status >= 500 else keep_definitive(status)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Policy:
    """The rules for an application or a route; fields that you leave out are inherited.

    >>> Policy(lease_s=60).over(DEFAULTS).retention_s
    86400.0
    """

    required: bool = INHERIT
    """Refuse requests without a key."""
    methods: Iterable[str] = INHERIT
    """Methods that are guarded; keys on other methods are ignored."""
    scope: Literal["operation", "tenant"] = INHERIT
    """Whether one key may be used once per operation, or once for the whole tenant."""
    lease_s: float = INHERIT
    """How long a claim lasts without renewal. It is renewed every third of that while the handler
    runs.
    """
    run_s_max: float = INHERIT
    """A lease is not renewed after this, so a handler that hangs loses its record."""
    retention_s: float = INHERIT
    """How long a response is stored, from completion."""
    retention_declared_s: tuple[float, float] | None = INHERIT
    """The shortest and longest retention that a client may ask for; None: it may not ask."""
    tombstone_s: float = INHERIT
    """How much longer to remember that it was done; a retry is then refused, not run again."""
    key_age_s_max: float | None = INHERIT
    """Do not run a key as new that was made longer ago, if it tells its age; None: run it."""
    key_time_required: bool = INHERIT
    """With `key_age_s_max`: do not run a key as new whose age is unknown."""
    clock_skew_s: float = INHERIT
    """How far apart the clocks of this server and of the clients that make keys may be."""
    unknown_retention_s: float = INHERIT
    """How long an unknown outcome waits for an operator."""
    in_flight: Literal["refuse", "wait"] = INHERIT
    """What a retry gets while the first request is still running."""
    wait_s: float = INHERIT
    """How long a retry waits before it is refused, with `in_flight="wait"`."""
    keep: Callable[[int], Verdict] = INHERIT
    """What the status of a response means for its record."""
    recovery: Literal["rerun", "resume", "block", "ask"] = INHERIT
    """What happens after an attempt died. `rerun`: a retry runs it again. `resume`: a retry or the
    recoverer continues after its last finished step. `block`: its outcome is unknown. `ask`: your
    function finds out. `block` and `ask` also cover attempts that raised, were cut off or answered
    5xx.
    """
    no_effect_on: tuple[type[Exception], ...] = INHERIT
    """Exceptions that prove that nothing happened, such as a declined card: the key is released,
    even if `recovery` is `block` or `ask`.
    """
    ask: Callable[..., Any] | None = INHERIT
    """Finds out how an attempt that died ended: gets the new attempt, returns an `Answer` or a
    `Learned`. Sync or async.
    """
    request_kept_bytes_max: int = INHERIT
    """A larger request is not stored: only its client's retry can finish it, no recoverer."""
    lapses_max: int = INHERIT
    """A request whose attempts died this often does not run again: its outcome is unknown."""
    request_bytes_max: int = INHERIT
    """A larger body is refused."""
    bodies_bytes_max: int = INHERIT
    """Most bytes of bodies that one process holds at once; more are refused for now."""
    answer_bytes_max: int = INHERIT
    """A larger response is sent, but only the fact is stored: a retry is refused, not run."""
    atomic: bool = INHERIT
    """Claim, rows and response commit in one transaction: needs `atomic=` in the middleware."""
    atomic_s_max: float = INHERIT
    """The longest run of an atomic handler if its transaction blocks others (SQLite)."""
    schema_version: int = INHERIT
    """The version of this operation's responses: raise it when their shape changes."""
    upcasts: Versions | None = INHERIT
    """Functions that convert stored responses from other schema versions."""
    stale: Literal["replay", "rerun", "refuse"] = INHERIT
    """What a retry gets if its response has another version and no upcast leads to this one: that
    response as it is, a new run, or a refusal.
    """
    key_chars_min: int = INHERIT
    store_down: Literal["refuse", "run"] = INHERIT
    """Whether a request may run unprotected while the store is unavailable."""
    headers_kept: Iterable[str] | None = INHERIT
    """Names of headers to store; None stores all but those that must never be stored."""
    field_digests: bool = INHERIT
    """Store a keyed digest of each top-level field, so that a mismatch can name what differs."""
    waiters_per_key_max: int = INHERIT
    waiters_max: int = INHERIT
    """Most retries that wait at once, for one key and in one process; further ones are refused."""

    def __post_init__(self) -> None:
        _check_values(self)

    def __repr__(self) -> str:
        """Show what the policy sets, not what it inherits."""
        fields = ((name, getattr(self, name)) for name in _FIELDS)
        given = (f"{name}={value!r}" for name, value in fields if value is not INHERIT)
        return f"Policy({', '.join(given)})"

    def over(self, base: Policy) -> Policy:
        """Return this policy, with what it does not set taken from `base`."""
        missing = {name: getattr(base, name) for name in _FIELDS if getattr(self, name) is INHERIT}
        return dataclasses.replace(self, **missing)

    @property
    def memory_s(self) -> float:
        """How long the store surely remembers that a request was, or may have been, done."""
        kept_s = (self.retention_s, self.unknown_retention_s, *(self.retention_declared_s or ()))
        memory_s: float = min(kept_s) + self.tombstone_s
        return memory_s

    def settled(self) -> Policy:
        """Return this policy over `DEFAULTS`. Raises `Misuse` if its values conflict."""
        policy = self.over(DEFAULTS)
        _check_together(policy)
        methods = frozenset(method.upper() for method in policy.methods)
        kept = policy.headers_kept
        names = None if kept is None else frozenset(name.lower() for name in kept)
        return dataclasses.replace(policy, methods=methods, headers_kept=names)


def as_policy(given: object, where: str = "policy=…") -> Policy:
    """Return the policy, or an empty one for None. Raises `Misuse` for anything else."""
    if given is None:
        return Policy()
    if not isinstance(given, Policy):
        raise Misuse(
            f"{where} takes an oncekey.Policy, such as Policy(required=True), not a "
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
response could not be stored.
"""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What HTTP allows as the name of a method or a header."""
_FLAGS = ("required", "key_time_required", "atomic", "field_digests")
_CHOICES: dict[str, tuple[str, ...]] = {
    "scope": ("operation", "tenant"),
    "in_flight": ("refuse", "wait"),
    "recovery": ("rerun", "resume", "block", "ask"),
    "stale": ("replay", "rerun", "refuse"),
    "store_down": ("refuse", "run"),
}


def _check_numbers(policy: Policy) -> None:
    for name, value in _set_values(policy, *_POSITIVE, *_NOT_NEGATIVE):
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


def _set_values(policy: Policy, *names: str) -> Iterator[tuple[str, Any]]:
    """Yield those of these fields that the policy sets."""
    for name in names:
        if (value := getattr(policy, name)) is not INHERIT:
            yield name, value


def _check_values(policy: Policy) -> None:
    """Raise `Misuse` unless every field that is set has a possible value."""
    _check_numbers(policy)
    for name, value in _set_values(policy, *_FLAGS):
        if not isinstance(value, bool):  # the text "false" would count as true
            raise Misuse(f"Policy({name}={value!r}): must be True or False")
    for name, value in _set_values(policy, *_CHOICES):
        if value not in _CHOICES[name]:
            raise Misuse(f"Policy({name}={value!r}): choose one of {_CHOICES[name]}")
    for name, value in _set_values(policy, "methods", "headers_kept"):
        such = "ETag" if name == "headers_kept" else "POST"
        if not are_names(() if value is None and name == "headers_kept" else value):
            raise Misuse(f"Policy({name}={value!r}): takes a list of names, such as [{such!r}]")
        for each in value or ():
            if not _TOKEN.fullmatch(each):  # no request can have it
                raise Misuse(f"Policy({name}={value!r}): {each!r} is not a name such as {such!r}")
    for name, value in _set_values(policy, "ask"):
        if value is not None and not callable(value):
            raise Misuse(f"Policy({name}={value!r}): takes a function")
    for _, value in _set_values(policy, "no_effect_on"):
        _check_no_effect_on(value)
    _check_declared(policy)
    _check_version_values(policy)
    _check_keep(policy)


def _check_together(policy: Policy) -> None:
    """Raise `Misuse` if the values of a complete policy contradict each other."""
    if (policy.recovery == "ask") != callable(policy.ask):
        raise Misuse(
            "Policy(recovery='ask', ask=find_out) belong together: ask=… takes the function that "
            "finds out how an attempt that died ended"
        )
    if policy.bodies_bytes_max < policy.request_bytes_max:
        raise Misuse(
            f"Policy(request_bytes_max={policy.request_bytes_max}) is more than "
            f"bodies_bytes_max={policy.bodies_bytes_max}, all that one process holds: such a "
            "request could never be accepted. Raise bodies_bytes_max"
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
    if isinstance(value, bool):  # to Python they are 0 and 1
        return False
    return isinstance(value, int | float) and 0 <= value < math.inf


def are_names(given: object) -> bool:
    """Return whether this is a collection of texts that can be read more than once."""
    if not isinstance(given, Collection) or isinstance(given, str):
        return False
    return all(isinstance(each, str) for each in given)


def _check_declared(policy: Policy) -> None:
    for _, declared in _set_values(policy, "retention_declared_s"):
        if declared is None:
            continue
        given = tuple(declared) if isinstance(declared, tuple | list) else ()
        known = len(given) == 2 and all(map(_is_number, given))
        if not known or not 0 < given[0] <= given[1] <= SECONDS_MAX:
            raise Misuse(
                f"Policy(retention_declared_s={declared!r}): takes the shortest and the longest "
                "retention that a client may ask for, such as (3600, 604800)"
            )
    for _, age in _set_values(policy, "key_age_s_max"):
        if age is not None and (not _is_number(age) or age == 0):
            raise Misuse(f"Policy(key_age_s_max={age!r}): takes seconds, or None")


def _check_memory(policy: Policy) -> None:
    """Raise `Misuse` if keys may be older than the store remembers."""
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
            f" a key may run as new up to {needed_s:g} s after it was made, but what was done with "
            f"it may be forgotten after {policy.memory_s:g} s. Lower key_age_s_max, or raise "
            "retention_s or tombstone_s"
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
        if not isinstance(verdict, Verdict):  # True is not Verdict.KEEP: nothing would be stored
            raise Misuse(
                f"Policy(keep=…) gave {verdict!r} for status {status}: it must give Verdict.KEEP, "
                "Verdict.FAILED, Verdict.NO_EFFECT or Verdict.UNKNOWN for every status"
            )


def _check_version_values(policy: Policy) -> None:
    for _, version in _set_values(policy, "schema_version"):
        check_version(version, "Policy(schema_version=…)")
    for _, upcasts in _set_values(policy, "upcasts"):
        if not isinstance(upcasts, Versions | None):
            raise Misuse(
                "Policy(upcasts=…) takes an oncekey.Versions() on which functions are registered: "
                "@versions.upcast(3, 4)"
            )


def _check_stale(policy: Policy) -> None:
    if policy.stale == "rerun" and (policy.atomic or policy.recovery not in ("rerun", "resume")):
        what = "atomic=True" if policy.atomic else f"recovery={policy.recovery!r}"
        raise Misuse(
            f"Policy(stale='rerun', {what}): what must not run twice does not run again for a new "
            "version of its response either; register an upcast, or set stale='replay' or 'refuse'"
        )


DEFAULTS: Final = Policy(
    required=False,
    # PUT and DELETE are idempotent by HTTP's own rules; name them to guard them.
    methods=("POST", "PATCH"),
    scope="operation",
    # Long enough for a paused process or a slow garbage collection, short enough that the client of
    # a dead process learns its outcome within a minute.
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
    # What people expect after a crash: a key that says "unknown" until an operator comes would be
    # worse for most. It can repeat an effect, so the start names the routes that have it.
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
