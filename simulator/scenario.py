"""What one schedule is about: policies, clients and what they want, drawn from a seed.

Everything is small on purpose: two or three workers, one or two hot keys, a handful of requests.
Interleavings come from many schedules, not from long ones.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from oncekey._core.policy import Policy, Verdict, keep_definitive
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call
from simulator import schema as schemas
from simulator import upgrade
from simulator.schema import PLAIN, UPCASTS, Schema, Stale
from simulator.upgrade import CURRENT, STRANGE

LEASE_S = 10.0
RUN_S_MAX = 25.0
WAIT_S = 0.7
UNKNOWN_RETENTION_S = 60.0
RETENTIONS_S = (25.0, 120.0)
TOMBSTONE_S = 40.0
CLOCK_SKEW_S = 15.0
"""More than any host's wall clock is ahead."""
WAITERS_PER_KEY_MAX = 2
WAITERS_MAX = 3
CALM_AFTER_S = 60.0
"""No fault begins later than this; from then on everything must settle."""
STILL_AFTER_S = CALM_AFTER_S + 2 * LEASE_S
"""No store is down later than this."""
HORIZON_S = 400.0
"""By then everything has settled, or something is stuck."""


class Intent(NamedTuple):
    """What a client wants. Two requests are the same exactly when their intents are equal: the
    oracle knows it from here, never from a fingerprint.
    """

    tenant: str
    operation: str
    key: str
    content: str


_OPERATIONS = {"charge": "POST /charges/{id}", "refund": "POST /refunds/{id}"}
# The three requests differ in one thing each: "b" in the body, "c" in the concrete path alone.
_CONTENTS = {
    "a": ("1", b"to=x&amount=1"),
    "b": ("1", b"to=x&amount=2"),
    "c": ("2", b"to=x&amount=1"),
}


@functools.cache
def call_of(
    intent: Intent, version: int, *, with_path: bool = True, first_sent: float | None = None
) -> Call:
    """The request as the engine sees it, fingerprinted by the real rules."""
    name, body = _CONTENTS[intent.content]
    path = f"/{intent.operation}s/{name}" if with_path else ""
    operation = _OPERATIONS[intent.operation]
    fingerprint = upgrade.fingerprint(version, path, body)
    return Call(
        intent.tenant,
        operation,
        intent.key,
        fingerprint,
        request=request_of(intent),
        first_sent=first_sent,
    )


def request_of(intent: Intent) -> bytes:
    """What is kept of a request, for those who finish it without its client."""
    return "|".join(intent).encode()


Recovery = Literal["rerun", "block", "resume", "ask"]


class Declined(Exception):
    """Proves that nothing happened: every policy names it in `no_effect_on`."""


def ask_application(attempt: Attempt) -> object:
    """Stands in the policy; the world knows what it finds out."""
    raise AssertionError("the simulator does not call it")


def _recovering(policy: Policy, recovery: Recovery) -> Policy:
    """The same policy with another recovery."""
    ask = ask_application if recovery == "ask" else None
    stale: Stale = policy.stale
    if stale == "rerun" and recovery in ("block", "ask"):
        stale = "refuse"
    return dataclasses.replace(policy, recovery=recovery, ask=ask, stale=stale)


@functools.cache
def policy_of(
    recovery: Recovery,
    in_flight: Literal["refuse", "wait"],
    lapses_max: int,
    retention_s: float,
    store_down: Literal["refuse", "run"],
    scope: Literal["operation", "tenant"],
    schema: Schema = PLAIN,
) -> Policy:
    """The settled policy of a worker."""
    return Policy(
        lease_s=LEASE_S,
        run_s_max=RUN_S_MAX,
        retention_s=retention_s,
        unknown_retention_s=UNKNOWN_RETENTION_S,
        in_flight=in_flight,
        wait_s=WAIT_S,
        recovery=recovery,
        ask=ask_application if recovery == "ask" else None,
        no_effect_on=(Declined,),
        lapses_max=lapses_max,
        store_down=store_down,
        scope=scope,
        waiters_per_key_max=WAITERS_PER_KEY_MAX,
        waiters_max=WAITERS_MAX,
        schema_version=schema.version,
        stale=schema.stale,
        upcasts=UPCASTS[schema.ways],
    ).settled()


_RECOVERIES: tuple[Recovery, ...] = ("rerun", "block", "resume")
_IN_FLIGHTS: tuple[Literal["refuse", "wait"], ...] = ("refuse", "wait")
_STORE_DOWNS: tuple[Literal["refuse", "run"], ...] = ("refuse", "run")
_LAPSES_MAX = (1, 2, 2, 5, 5)


class Errand(NamedTuple):
    """A client with something to get done: it retries until it has an answer."""

    intent: Intent
    starts_at: float
    patience_s: float
    """It hangs up after this and asks elsewhere; 0 means that it waits."""
    version: int = 0
    """It is served by a worker that reads this version of the fingerprint; 0 means by any."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One schedule's cast."""

    policies: tuple[Policy, ...]
    """One per worker: after a deploy they differ."""
    versions: tuple[int, ...]
    """Of the fingerprint, one per worker."""
    retention_from: Literal["completion", "first use"]
    lanes: Literal["one", "by kind"]
    """Whether all verbs share a connection, as in the memory store, or each kind has its own."""
    rows_max: int
    errands: tuple[Errand, ...]
    operator: bool
    sweep_every_s: float
    slow: float
    """The part of handlers that outlive a third of their lease."""
    recoverer: bool = False
    at_most_once: str = ""
    """The step that must not be repeated, in operations that are resumed."""
    upgrades_at: tuple[float, ...] = ()
    """When each worker is replaced by one of the current release; empty where none is."""
    dated: bool = False
    """Clients say when their keys were made: at the very beginning."""
    earlier: int | None = None
    """The worker whose engine is of the release before, until it is replaced."""

    def steps(self, policy: Policy) -> bool:
        """Whether handlers under this policy take steps."""
        return policy.recovery == "resume" or bool(self.at_most_once)

    def describe(self) -> list[str]:
        """Who takes part, for people."""
        policy = self.policies[0]
        workers = ", ".join(
            f"w{index} {'atomic, ' if policy.atomic else ''}{policy.recovery}"
            + (f" (fingerprint {version})" if version != CURRENT else "")
            + (f" (schema {policy.schema_version})" if policy.schema_version else "")
            + (" (engine before)" if index == self.earlier else "")
            for index, (policy, version) in enumerate(
                zip(self.policies, self.versions, strict=True)
            )
        )
        return [
            f"workers: {workers}; connections: {self.lanes}",
            f"lease {policy.lease_s:g} s, retention {policy.retention_s:g} s from "
            f"{self.retention_from}, at most {policy.lapses_max} lapses, keys per {policy.scope}",
            f"in flight: {policy.in_flight}; store down: {policy.store_down}; "
            f"stale: {self.policies[-1].stale}"
            + ("" if policy.upcasts is None else ", where there is no upcast"),
            f"answers: {policy.keep.__name__}; at most once: {self.at_most_once or 'no step'}",
        ]

    def cast(self) -> bytes:
        """Who takes part, for telling schedules apart."""
        policy = self.policies[0]
        rules = (
            (policy.in_flight == "wait")
            + 2 * (policy.scope == "tenant")
            + 4 * (policy.store_down == "run")
            + 8 * (self.lanes == "one")
            + 16 * (self.retention_from == "first use")
            + 32 * (policy.retention_s == RETENTIONS_S[0])
        )
        recoveries = "".join(policy.recovery[2 - policy.atomic] for policy in self.policies)
        wants = "".join(
            f"{e.intent.tenant[0]}{e.intent.operation[0]}{e.intent.content}" for e in self.errands
        )
        last = self.policies[-1]
        schema = f"{last.schema_version}{last.stale}{last.upcasts is None}"
        told = f"{rules}{policy.lapses_max}{recoveries}{self.at_most_once}{self.versions}"
        entombed = f"{policy.tombstone_s:g}{last.tombstone_s:g}{self.dated}"
        ends = f"{policy.keep.__name__}{self.earlier}"
        return f"{told}{schema}{wants}{entombed}{ends}".encode()


def draw(
    chance: Callable[[], float],
    *,
    atomic: bool = False,
    entombed: bool = False,
    asked: bool = False,
    rolling: bool = False,
    careful: bool = False,
    upgraded: bool = False,
    keep: Callable[[int], Verdict] = keep_definitive,
) -> Scenario:
    """A cast, from a seeded source of chance."""
    scenario = _leased(chance)
    if asked:
        scenario = _asked(scenario, chance)
    if careful and all(policy.stale != "rerun" for policy in scenario.policies):
        scenario = dataclasses.replace(scenario, at_most_once="charge")
    if atomic:
        scenario = _atomic(scenario, chance)
    if upgraded:
        scenario = upgrade.upgraded(scenario, chance)
    if entombed:
        scenario = _entombed(scenario, chance)
    policies = tuple(dataclasses.replace(policy, keep=keep) for policy in scenario.policies)
    earlier = 0 if rolling else None
    return dataclasses.replace(scenario, policies=policies, earlier=earlier)


def _asked(scenario: Scenario, chance: Callable[[], float]) -> Scenario:
    """The same after a deploy to `ask`, or while it is under way, in one direction or the other."""
    policies = [_recovering(before, "ask") for before in scenario.policies]
    if chance() < 0.4:
        policies[-1] = _recovering(policies[-1], _RECOVERIES[int(3 * chance())])
    return dataclasses.replace(scenario, policies=tuple(policies), at_most_once="")


def _entombed(scenario: Scenario, chance: Callable[[], float]) -> Scenario:
    """The same after a deploy to tombstones, or while it is under way; and in half of them keys
    tell their age, and no retry may ever run again what was done. Some come very late.
    """
    dated = chance() < 0.5
    first = len(scenario.policies) - 1 if not dated and chance() < 0.3 else 0
    policies = []
    for index, before in enumerate(scenario.policies):
        tombstone_s = TOMBSTONE_S if index >= first else 0.0
        policy = dataclasses.replace(before, tombstone_s=tombstone_s, clock_skew_s=CLOCK_SKEW_S)
        age_s = policy.memory_s - CLOCK_SKEW_S if dated else None
        policies.append(dataclasses.replace(policy, key_age_s_max=age_s).settled())
    retention_s = policies[0].retention_s
    late = [
        Errand(scenario.errands[0].intent, retention_s + TOMBSTONE_S * chance() * stretch, 0.0)
        for stretch in (0.5, 1.0, 2.0)
    ]
    errands = (*scenario.errands, *late)
    return dataclasses.replace(scenario, policies=tuple(policies), errands=errands, dated=dated)


def _atomic(scenario: Scenario, chance: Callable[[], float]) -> Scenario:
    """The same after a deploy to atomic mode, or while it is under way: then the others still
    lease.
    """
    under_way = chance() < 0.4
    resumed = under_way and chance() < 0.5
    first = len(scenario.policies) - 1 if under_way else 0
    policies = []
    for index, before in enumerate(scenario.policies):
        stale: Stale = "refuse" if before.stale == "rerun" else before.stale
        recovery: Recovery = before.recovery
        if index >= first and recovery == "resume":  # its rows are all that it does
            recovery = "rerun"
        elif index < first and resumed:
            recovery = "resume"
        policy = _recovering(before, recovery)
        policies.append(dataclasses.replace(policy, stale=stale, atomic=index >= first))
    return dataclasses.replace(
        scenario,
        policies=tuple(policies),
        retention_from="completion",
        recoverer=scenario.recoverer or resumed,
    )


def _leased(chance: Callable[[], float]) -> Scenario:
    workers = 3 if chance() < 0.2 else 2
    scope: Literal["operation", "tenant"] = "tenant" if chance() < 0.1 else "operation"
    retention_s = RETENTIONS_S[chance() < 0.6]
    in_flight = _IN_FLIGHTS[chance() < 0.3]
    lapses_max = _LAPSES_MAX[int(chance() * len(_LAPSES_MAX))]
    store_down = _STORE_DOWNS[chance() < 0.3]
    recoveries = [_recovery(chance)] * workers
    if chance() < 0.2 and recoveries[0] != "resume":
        recoveries[-1] = _RECOVERIES[recoveries[0] == "rerun"]
    policies = tuple(
        policy_of(recovery, in_flight, lapses_max, retention_s, store_down, scope, schema)
        for recovery, schema in zip(recoveries, schemas.draw(chance, recoveries), strict=True)
    )
    # What is run anew for a version takes every step again, so none of them can be at most once.
    may_be_once = recoveries[0] == "resume" and all(p.stale != "rerun" for p in policies)
    versions = [CURRENT] * workers
    if chance() < 0.12:
        versions[-1] = STRANGE
    return Scenario(
        policies=policies,
        versions=tuple(versions),
        retention_from="first use" if chance() < 0.15 else "completion",
        lanes="by kind" if chance() < 0.4 else "one",
        rows_max=2 if chance() < 0.2 else 128,
        errands=_errands(chance, retention_s),
        operator=chance() < 0.5,
        sweep_every_s=20.0 if chance() < 0.35 else 0.0,
        slow=0.35 if chance() < 0.4 else 0.04,
        recoverer=chance() < 0.3,
        at_most_once="charge" if may_be_once and chance() < 0.4 else "",
    )


def _recovery(chance: Callable[[], float]) -> Recovery:
    which = chance()
    if which < 0.25:
        return "resume"
    return "block" if which < 0.55 else "rerun"


def _errands(chance: Callable[[], float], retention_s: float) -> tuple[Errand, ...]:
    first = Intent("acme", "charge", "k1", "a")
    errands = [Errand(first, chance(), _patience_s(chance))]
    for _ in range(2 + int(chance() * 2)):
        which, when = chance(), chance()
        if which < 0.66:
            intent = first
        elif which < 0.76:
            intent = first._replace(content="b")
        elif which < 0.84:
            intent = first._replace(content="c")
        elif which < 0.92:
            intent = first._replace(tenant="bolt")
        else:
            intent = first._replace(operation="refund")
        if when < 0.35:  # together with the first: they share round trips
            starts_at = errands[0].starts_at + 0.05 * chance()
        elif when < 0.6:
            starts_at = 1.5 * chance()
        elif when < 0.85:
            starts_at = 1.5 + 14.0 * chance()
        else:  # about when the first answer is forgotten
            starts_at = retention_s * (0.8 + 0.6 * chance())
        errands.append(Errand(intent, starts_at, _patience_s(chance)))
    return tuple(errands)


def _patience_s(chance: Callable[[], float]) -> float:
    return 0.0 if chance() < 0.7 else 0.02 + 6.0 * chance() ** 3
