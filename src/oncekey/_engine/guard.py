"""The engine: what to do with a request. What its owner does then is in `ownership`.

Everything here is a generator (`oncekey._core.op`): it yields verbs for the store and `Pause`s, and
is sent outcomes. It has no `await`, no thread and no global state, so that one engine serves sync
and async and a simulator can drive it through every interleaving. What it decides is decided by
`_core.lifecycle`; what it adds is patience: which question to repeat, how long to wait, and what to
say when the store does not answer.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Literal

from oncekey import events
from oncekey._core import lifecycle, refusals
from oncekey._core.backoff import full_jitter
from oncekey._core.key import record_id
from oncekey._core.lifecycle import Action
from oncekey._core.op import Offload, Op, Pause
from oncekey._core.policy import Policy
from oncekey._core.quota import Quota
from oncekey._core.reasons import LossKind
from oncekey._core.record import Answer, Claim, Record, State
from oncekey._core.verbs import Done, Find, Insert, Inserted, Peek, Refused
from oncekey._engine.admission import Admission, is_new
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import (
    Bypass,
    Call,
    Decision,
    Execute,
    Finished,
    Given,
    GivenUp,
    Refuse,
    Replay,
    Stored,
    Unstored,
)
from oncekey._engine.notices import Notices
from oncekey._engine.ownership import Ownership, unknown_retention_s
from oncekey._engine.quotas import Quotas
from oncekey._engine.replays import Replays, compare_request
from oncekey._engine.reports import Reports
from oncekey._engine.store_calls import LEASE_MARGIN, StoreCalls
from oncekey._engine.waiters import Waiters
from oncekey._system.chance import chance, random_token
from oncekey._system.clock import Clock, SystemClock
from oncekey._system.probes import armed, probe
from oncekey.errors import StoreError, StoreUnavailable

__all__ = [
    "LEASE_MARGIN",
    "Bypass",
    "Call",
    "Decision",
    "Execute",
    "Finished",
    "Given",
    "GivenUp",
    "Guard",
    "Refuse",
    "Replay",
    "Stored",
    "Unstored",
]

_log = logging.getLogger("oncekey")

ROUNDS_MAX = 8
"""How often a request looks again after what it found changed under its hands."""
POLL_S_MIN, POLL_S_MAX = 0.01, 0.25


class Guard:
    """The engine of one application: shared by all its requests, holds no state of any one of
    them.
    """

    make_calls, make_ownership, make_admission = StoreCalls, Ownership, Admission

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        hooks: events.Hooks | None = None,
        retention_from: Literal["completion", "first use"] = "completion",
        token: Callable[[], bytes] = random_token,
        chance: Callable[[], float] = chance,
        notices: Notices | None = None,
        quota: Quota | None = None,
    ) -> None:
        self._clock = clock = clock or SystemClock()
        self._token = token
        self._chance = chance
        self._waiters = Waiters()
        self.quotas = quotas = None if quota is None else Quotas(quota, clock, token)
        self.reports = Reports(events.Hooks() if hooks is None else hooks)
        self.replays = Replays(self.reports)
        self.calls = self.make_calls(clock, chance, self.reports)
        self.ownership = self.make_ownership(
            self.calls,
            self.reports,
            self.replays,
            clock=clock,
            token=token,
            retention_from=retention_from,
            quotas=quotas,
        )
        self.admission = self.make_admission(
            self.calls, self.ownership, clock=clock, notices=notices, quotas=quotas
        )

    # ----------------------------------------------------------------------------------- begin

    def begin(self, call: Call, policy: Policy, claim: Claim | None = None) -> Op[Decision]:
        """What to do with a request: run it, replay, refuse.

        Whoever may be interrupted makes the claim first, so as to know what to `forget`.
        """
        claim = claim or self.claim(call, policy)
        if call.retention_s is not None:
            policy = dataclasses.replace(policy, retention_s=call.retention_s)
        decision: Decision
        try:
            looked_at = self._clock.monotonic()
            notices = self.admission.notices
            if notices is not None and looked_at >= notices.look_at:
                yield from self.admission.check_notice(claim, runs=False)
            if policy.key_age_s_max is None and self.quotas is None:
                claimed: Execute | Refuse | Record = yield from self._insert(claim, policy)
            else:
                claimed = yield from self._claim_or_find(claim, call, policy)
            if isinstance(claimed, Record):
                decision = yield from self._consider(claimed, claim, call, policy, looked_at)
            else:
                decision = claimed
            if isinstance(decision, Execute):
                decision = yield from self._let_begin(decision, claim, call)
        except StoreUnavailable as error:
            decision = self._store_down(claim, policy, error)
        except StoreError as error:  # the claim may have been made before
            _log.error("requests with a key are refused: %s", error)
            decision = Refuse(refusals.store_unavailable(), lost_claim=claim)
        if isinstance(decision, Refuse):
            self.replays.counters.count(self.replays.counters.conflicts, claim.id)
            self.reports.emit(events.Declined, claim, reason=str(decision.problem.kind))
        return decision

    def claim(self, call: Call, policy: Policy) -> Claim:
        """What this request would write if it came first."""
        operation = None if policy.scope == "tenant" else call.operation
        asked_s = call.retention_s
        retention_s = policy.retention_s if asked_s is None else asked_s
        return Claim(
            id=record_id(call.tenant, operation, call.key),
            token=self._token(),
            tenant=call.tenant,
            operation=call.operation,
            key=call.key,
            fingerprint=call.fingerprint.digest,
            fingerprint_version=call.fingerprint.version,
            lease_s=policy.lease_s,
            retention_s=retention_s + policy.tombstone_s,
            recovery=policy.recovery,
            schema_version=policy.schema_version,
            field_digests=call.field_digests,
            request=call.request,
        )

    def _consider(
        self, claimed: Record, claim: Claim, call: Call, policy: Policy, looked_at: float
    ) -> Op[Decision]:
        """What to do about a record that is there; looks again if it changes meanwhile."""
        wait_until: float | None = None
        found: Record | None = claimed
        changed: Execute | Refuse | Record | None
        for _ in range(ROUNDS_MAX):
            if found is None:
                looked_at = self._clock.monotonic()
                changed = yield from self._claim_or_find(claim, call, policy, heard_of=True)
                if isinstance(changed, Execute | Refuse):
                    return changed
                found = changed
            action = lifecycle.decide(found, (yield from compare_request(found, call)), policy)
            if is_new(found) and (barred := self.admission.refusal(call, policy)) is not None:
                return Refuse(barred)
            match action:
                case Action.START_OVER | Action.RUN_AGAIN | Action.ASK:
                    asks = action is Action.ASK
                    changed = yield from self._take(found, claim, policy, looked_at, asks=asks)
                case Action.DOUBT:
                    changed = yield from self._doubt(found, claim, policy)
                case Action.SHORTEN:
                    changed = yield from self._shorten(found, claim)
                case Action.IN_FLIGHT if policy.in_flight == "wait" and policy.wait_s > 0:
                    if wait_until is None:
                        wait_until = self._clock.monotonic() + policy.wait_s
                    changed = yield from self._wait(found, wait_until, call, policy)
                case _:
                    return self.replays.answer_from(found, action, call, policy)
            if isinstance(changed, Execute | Refuse):
                return changed
            found = changed
        return Refuse(refusals.contention())

    # Each of these decides, or says what stands there instead: None if that must be looked up.

    def _claim_or_find(
        self, claim: Claim, call: Call, policy: Policy, *, heard_of: bool = False
    ) -> Op[Execute | Refuse | Record]:
        """Insert; or, what may not run as new, only look. Its earlier self may have left a record:
        then it is answered from that.
        """
        barred = self.admission.refusal(call, policy)
        if barred is None:
            return (yield from self._insert(claim, policy, heard_of=heard_of))
        found: Record | None = yield from self.calls.ask(Find(claim.id), claim, heard_of=heard_of)
        return Refuse(barred) if found is None or is_new(found) else found

    def _insert(
        self, claim: Claim, policy: Policy, *, heard_of: bool = False
    ) -> Op[Execute | Record]:
        insert, asked_at = Insert(claim), self._clock.monotonic()
        if armed:
            probe("before_insert")
        try:  # as `StoreCalls.ask` does, without its generator: every request passes here
            outcome = yield insert
        except StoreUnavailable as error:
            outcome = yield from self.calls.ask_again(
                insert, claim, asked_at, error, heard_of=heard_of
            )
        else:
            if self.reports.hooks.are_wanted:
                self.calls.note(insert, claim, asked_at, None)
        if armed:
            probe("after_insert")
        if isinstance(outcome, Inserted):
            if self.quotas is not None:
                self.quotas.count_claim(claim.tenant, policy.retention_s)
            return Execute(Attempt(claim, policy, outcome.fence, asked_at))
        return self._ours(outcome.record, claim, policy, asked_at)

    def _take(
        self, found: Record, claim: Claim, policy: Policy, looked_at: float, *, asks: bool
    ) -> Op[Execute | Record | None]:
        asked_at = self._clock.monotonic()
        probe("before_take_over")
        swap = lifecycle.take(found, claim)
        taken = yield from self.calls.ask(swap, claim)
        probe("after_take_over")
        mine: Execute | Record | None
        if isinstance(taken, Refused):
            mine = taken.record and self._ours(taken.record, claim, policy, asked_at, asks=asks)
        else:
            age_s = 0.0 if swap.fresh else found.age_s + asked_at - looked_at
            counts = swap.attempt or 1, swap.lapses or 0
            if self.quotas is not None and found.expired:
                self.quotas.count_claim(claim.tenant, policy.retention_s)
            owned = Attempt(claim, policy, taken.fence, asked_at, *counts, age_s, asks=asks)
            mine = Execute(owned)
        if found.lapsed and not found.expired and isinstance(mine, Execute):
            attempt, lapses = mine.attempt.attempt, mine.attempt.lapses
            self.reports.emit(events.TakenOver, claim, attempt=attempt, lapses=lapses)
        return mine

    def _ours(
        self, found: Record, claim: Claim, policy: Policy, asked_at: float, *, asks: bool = False
    ) -> Execute | Record:
        """A record that runs under our token is ours: the reply to what made it so was lost. Its
        lease has been running since. What was taken over under `ask` is asked about first.
        """
        if found.token != claim.token or found.state is not State.RUNNING:
            return found
        gone_s = max(claim.lease_s - found.lease_left_s, 0.0)
        claimed_at, age_s = asked_at - gone_s, max(found.age_s - gone_s, 0.0)
        asks = asks or (policy.recovery == "ask" and found.lapses > 0)
        counts = found.attempt, found.lapses
        return Execute(Attempt(claim, policy, found.fence, claimed_at, *counts, age_s, asks=asks))

    def _doubt(self, found: Record, claim: Claim, policy: Policy) -> Op[Refuse | Record | None]:
        doubted = yield from self.doubt(found, unknown_retention_s(policy), claim.token)
        return (
            doubted.record if isinstance(doubted, Refused) else Refuse(refusals.outcome_unknown())
        )

    def _shorten(self, found: Record, claim: Claim) -> Op[Refuse | Record | None]:
        outcome = yield from self.calls.ask(lifecycle.shorten(found), claim)
        return outcome.record if isinstance(outcome, Refused) else Refuse(refusals.in_flight(found))

    def _let_begin(
        self, claimed: Execute, claim: Claim, call: Call
    ) -> Op[Execute | Replay | Refuse]:
        """What was claimed begins, unless it must not run, or is not owned any more."""
        attempt, now, notices = claimed.attempt, self._clock.monotonic(), self.admission.notices
        decision: Execute | Replay | Refuse = claimed
        if notices is not None and (now >= notices.look_at or notices.amnesia is not None):
            yield from self.admission.check_notice(claim, runs=True, heard_of=True)
            decision = yield from self.admission.let_run(claimed, call)
        elif attempt.policy.key_age_s_max is not None:
            decision = yield from self.admission.let_run(claimed, call)
        if not isinstance(decision, Execute):
            return decision
        is_late = self._clock.monotonic() >= attempt.lease.until
        if is_late and not (yield from self._may_begin(attempt)):
            self.ownership.lose(attempt, LossKind.LAPSED_BEFORE_START)
            return Refuse(refusals.store_unavailable(), lost_claim=claim)
        if self.reports.hooks.are_wanted:
            self._tell_started(attempt)
        return decision

    def _tell_started(self, attempt: Attempt) -> None:
        number, fence = attempt.attempt, attempt.held.fence
        self.reports.emit(events.Started, attempt, attempt=number, fence=fence)

    def _may_begin(self, attempt: Attempt) -> Op[bool]:
        """Whether it still owns its record. Where its lease is over before it began, as after this
        process stood still while its claim was under way, another may have run it by now, and
        answered: the store is asked for a lease that begins now, unless `run_s_max` is over too.
        """
        now = self._clock.monotonic()
        if attempt.policy.atomic or now < attempt.lease.until:
            return True
        if now - attempt.claimed_at >= attempt.policy.run_s_max:
            return False
        outcome = yield from self.calls.ask(self.ownership.renewal(attempt), attempt)
        owned = self.ownership.record_renewal(attempt, outcome, now)
        return owned and self._clock.monotonic() < attempt.lease.until

    # ----------------------------------------------------------------------- without a client

    def take_up(
        self,
        orphan: Record,
        call: Call,
        policy: Policy,
        looked_at: float,
        claim: Claim | None = None,
    ) -> Op[Execute | None]:
        """Own an abandoned record, read at `looked_at`, for which no client comes back. None where
        there is nothing to run: somebody was quicker, or its outcome is unknown now.

        A claim whose reply is lost is left to lapse: nobody would finish a record that is released.
        """
        if not orphan.lapsed or orphan.expired:
            return None
        claim = claim or self.claim(call, policy)
        if call.retention_s is not None:
            policy = dataclasses.replace(policy, retention_s=call.retention_s)
        yield from self.admission.check_notice(claim, runs=True)
        action = lifecycle.decide(orphan, (yield from compare_request(orphan, call)), policy)
        if action is Action.DOUBT or action is Action.MISMATCH:
            yield from self._doubt(orphan, claim, policy)
        if action is not Action.RUN_AGAIN and action is not Action.ASK:
            return None
        asks = action is Action.ASK
        taken = yield from self._take(orphan, claim, policy, looked_at, asks=asks)
        if not isinstance(taken, Execute) or not (yield from self._may_begin(taken.attempt)):
            return None
        if self.admission.must_not_run(taken.attempt, call):
            yield from self.ownership.give_up(taken.attempt, call)
            return None
        taken.attempt.recovering = True
        if self.reports.hooks.are_wanted:
            self._tell_started(taken.attempt)
        return taken

    def doubt(
        self, lapsed: Record, unknown_retention_s: float, token: bytes | None = None
    ) -> Op[Done | Refused]:
        """Declare a lapsed record's outcome unknown."""
        swap = lifecycle.doubt(
            lapsed, new_token=token or self._token(), retention_s=unknown_retention_s
        )
        outcome = yield from self.calls.swap(swap, lapsed)
        if isinstance(outcome, Done):
            self.reports.emit(
                events.OutcomeUnknown, lapsed, attempt=lapsed.attempt, lapses=lapsed.lapses + 1
            )
        return outcome

    def resolve(
        self, unknown: Record, answer: Answer | None, *, by: str, reason: str
    ) -> Op[Done | Refused]:
        """An operator found out: it was done, and this is its answer; or None: let a retry run."""
        swap = lifecycle.resolve(
            unknown, new_token=self._token(), answer=answer, retention_s=unknown.retention_s
        )
        outcome = yield from self.calls.swap(swap, unknown)
        if isinstance(outcome, Done):
            status = None if answer is None else answer.status
            self.reports.emit(
                events.Resolved, unknown, to=str(swap.to), status=status, by=by, reason=reason
            )
        return outcome

    # ---------------------------------------------------------------------------- small parts

    def _store_down(self, claim: Claim, policy: Policy, error: StoreUnavailable) -> Decision:
        if not error.sent and policy.store_down == "run":
            self.reports.emit(events.Unprotected, claim, ran=True)
            return Bypass()
        return Refuse(refusals.store_unavailable(), lost_claim=claim if error.sent else None)

    def _wait(self, found: Record, until: float, call: Call, policy: Policy) -> Op[Refuse | None]:
        """None once the record has changed; a refusal if it has not before `until`."""
        still_running = Refuse(refusals.in_flight(found))
        if not self._waiters.enter(found.id, policy):
            return still_running
        try:
            if call.put_away is not None:
                yield Offload(call.put_away, writes=True)
            poll = 0
            while (left := until - self._clock.monotonic()) > 0:
                delay = full_jitter(poll, POLL_S_MIN, POLL_S_MAX, self._chance())
                yield Pause(min(left, max(delay, POLL_S_MIN)))
                poll += 1
                glimpse = yield from self.calls.ask(Peek(found.id), found)
                if (
                    glimpse is None
                    or glimpse.state is not State.RUNNING
                    or glimpse.fence != found.fence
                    or glimpse.lease_left_s <= 0
                ):
                    return None
            return still_running
        except StoreUnavailable:  # when last heard of, it was running
            return still_running
        finally:
            self._waiters.leave(found.id)
