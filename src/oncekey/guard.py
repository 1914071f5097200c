"""The engine: begin, renew, finish, abandon.

Everything here is a generator (`oncekey.core.op`): it yields verbs for the store and `Pause`s, and
is sent outcomes. It has no `await`, no thread and no global state, so that one engine serves sync
and async and a simulator can drive it through every interleaving. What it decides is decided by
`core.lifecycle`; what it adds is patience: which question to repeat, how long to wait, and what to
say when the store does not answer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Callable
from typing import Literal

from oncekey import events
from oncekey.asking import ASKS_MAX, LEASE_MARGIN, Asking
from oncekey.attempt import Attempt
from oncekey.clock import Clock, SystemClock
from oncekey.core import fingerprint as fingerprints
from oncekey.core import lifecycle, refusals
from oncekey.core.backoff import full_jitter
from oncekey.core.key import record_id, short_hash
from oncekey.core.lifecycle import Action
from oncekey.core.op import Op, Pause
from oncekey.core.policy import Policy
from oncekey.core.record import TOKEN_BYTES, Answer, Claim, Record, State
from oncekey.core.verbs import (
    Done,
    Find,
    Insert,
    Inserted,
    Peek,
    Refused,
    Swap,
)
from oncekey.decision import (
    Bypass,
    Call,
    Decision,
    Execute,
    Finished,
    Refuse,
    Replay,
    Stored,
    Unstored,
)
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit
from oncekey.probes import probe
from oncekey.tallies import Tallies
from oncekey.waiters import Waiters

__all__ = [
    "LEASE_MARGIN",
    "Bypass",
    "Call",
    "Decision",
    "Execute",
    "Finished",
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
FORGET_S, FORGET_LOOKS_MAX = 0.03, 8
"""Looks for a lost claim are four times as far apart each time, beginning with four times this."""


def _random_token() -> bytes:
    return os.urandom(TOKEN_BYTES)


class Guard(Asking):
    """The engine of one application: shared by all its requests, holds no state of any one of
    them.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        hooks: events.Hooks | None = None,
        retention_from: Literal["completion", "first use"] = "completion",
        token: Callable[[], bytes] = _random_token,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(clock or SystemClock(), hooks or events.Hooks(), chance)
        self._retention_from = retention_from
        self._token = token
        self._waiters = Waiters()
        self.tallies = Tallies()

    # ----------------------------------------------------------------------------------- begin

    def begin(self, call: Call, policy: Policy, claim: Claim | None = None) -> Op[Decision]:
        """What to do with a request: run it, replay, refuse.

        Whoever may be interrupted makes the claim first, so as to know what to `forget`.
        """
        claim = claim or self.claim(call, policy)
        try:
            decision = yield from self._begin(claim, call, policy)
        except StoreUnavailable as error:
            decision = self._store_down(claim, policy, error)
        except StoreError as error:
            _log.error("requests with a key are refused: %s", error)
            decision = Refuse(
                refusals.store_down(), lost_claim=claim
            )  # it may have been made before
        if isinstance(decision, Refuse):
            self.tallies.count(self.tallies.conflicts, claim.id)
            self._emit(events.Declined, claim, reason=str(decision.problem.kind))
        return decision

    def claim(self, call: Call, policy: Policy) -> Claim:
        """What this request would write if it came first."""
        operation = None if policy.scope == "tenant" else call.operation
        return Claim(
            id=record_id(call.tenant, operation, call.key),
            token=self._token(),
            tenant=call.tenant,
            operation=call.operation,
            key=call.key,
            fingerprint=call.fingerprint.digest,
            fingerprint_version=call.fingerprint.version,
            lease_s=policy.lease_s,
            retention_s=policy.retention_s,
            recovery=policy.recovery,
            field_digests=call.field_digests,
        )

    def _begin(self, claim: Claim, call: Call, policy: Policy) -> Op[Decision]:
        wait_until: float | None = None
        found: Record | None = None
        changed: Execute | Refuse | Record | None
        heard_of = False
        looked_at = self._clock.monotonic()
        for _ in range(ROUNDS_MAX):
            if found is None:
                looked_at = self._clock.monotonic()
                claimed = yield from self._insert(claim, policy, heard_of=heard_of)
                if isinstance(claimed, Execute):
                    return claimed
                found, heard_of = claimed, True
            action = lifecycle.decide(found, _compare(found, call), policy)
            match action:
                case Action.START_OVER | Action.RUN_AGAIN:
                    changed = yield from self._take(found, claim, policy, looked_at)
                case Action.DOUBT:
                    changed = yield from self._doubt(found, claim, policy)
                case Action.SHORTEN:
                    changed = yield from self._shorten(found, claim)
                case Action.IN_FLIGHT if policy.in_flight == "wait" and policy.wait_s > 0:
                    if wait_until is None:
                        wait_until = self._clock.monotonic() + policy.wait_s
                    changed = yield from self._wait(found, wait_until, policy)
                case _:
                    return self._answer_from(found, action, call)
            if isinstance(changed, Execute | Refuse):
                return changed
            found = changed
        return Refuse(refusals.contended())

    # Each of these decides, or says what stands there instead: None if that must be looked up.

    def _insert(self, claim: Claim, policy: Policy, *, heard_of: bool) -> Op[Execute | Record]:
        asked_at = self._clock.monotonic()
        probe("before_insert")
        outcome = yield from self._ask(Insert(claim), claim, heard_of=heard_of)
        probe("after_insert")
        if isinstance(outcome, Inserted):
            return self._execute(claim, policy, outcome.fence, asked_at)
        return self._ours(outcome.record, claim, policy, asked_at)

    def _take(
        self, found: Record, claim: Claim, policy: Policy, looked_at: float
    ) -> Op[Execute | Record | None]:
        asked_at = self._clock.monotonic()
        probe("before_take_over")
        swap = lifecycle.take(found, claim)
        taken = yield from self._ask(swap, claim)
        probe("after_take_over")
        mine: Execute | Record | None
        if isinstance(taken, Refused):
            mine = taken.record and self._ours(taken.record, claim, policy, asked_at)
        else:
            age_s = 0.0 if swap.fresh else found.age_s + asked_at - looked_at
            counts = swap.attempt or 1, swap.lapses or 0
            mine = self._execute(claim, policy, taken.fence, asked_at, *counts, age_s)
        if self._hooks and found.lapsed and not found.expired and isinstance(mine, Execute):
            attempt, lapses = mine.attempt.attempt, mine.attempt.lapses
            self._emit(events.TakenOver, claim, attempt=attempt, lapses=lapses)
        return mine

    def _ours(
        self, found: Record, claim: Claim, policy: Policy, asked_at: float
    ) -> Execute | Record:
        """A record that runs under our token is ours: the reply to what made it so was lost. Its
        lease has been running since.
        """
        if found.token != claim.token or found.state is not State.RUNNING:
            return found
        gone_s = max(claim.lease_s - found.lease_left_s, 0.0)
        claimed_at, age_s = asked_at - gone_s, max(found.age_s - gone_s, 0.0)
        return self._execute(
            claim, policy, found.fence, claimed_at, found.attempt, found.lapses, age_s
        )

    def _doubt(self, found: Record, claim: Claim, policy: Policy) -> Op[Refuse | Record | None]:
        swap = lifecycle.doubt(found, new_token=claim.token, retention_s=policy.unknown_retention_s)
        doubted = yield from self._swap(swap, claim)
        if isinstance(doubted, Refused):
            return doubted.record
        self._emit(events.OutcomeUnknown, claim, attempt=found.attempt, lapses=found.lapses + 1)
        return Refuse(refusals.unknown())

    def _shorten(self, found: Record, claim: Claim) -> Op[Refuse | Record | None]:
        outcome = yield from self._ask(lifecycle.shorten(found), claim)
        return outcome.record if isinstance(outcome, Refused) else Refuse(refusals.in_flight(found))

    def _execute(
        self,
        claim: Claim,
        policy: Policy,
        fence: int,
        claimed_at: float,
        attempt: int = 1,
        lapses: int = 0,
        age_s: float = 0.0,
    ) -> Execute:
        if self._hooks:
            self._emit(events.Started, claim, attempt=attempt, fence=fence)
        return Execute(
            Attempt(
                claim,
                policy,
                fence=fence,
                attempt=attempt,
                lapses=lapses,
                age_s=age_s,
                claimed_at=claimed_at,
            )
        )

    def _answer_from(self, record: Record, action: Action, call: Call) -> Replay | Refuse:
        """What a client gets that is told about a record without running anything."""
        match action:
            case Action.REPLAY:
                return self._replay(record)
            case Action.MISMATCH:
                return Refuse(refusals.mismatch(_differing(record, call)))
            case Action.UNKNOWN:
                return Refuse(refusals.unknown())
            case Action.FACT_ONLY:
                return Refuse(refusals.fact_only(record))
            case Action.NEWER:
                return Refuse(refusals.newer())
            case _:
                return Refuse(refusals.in_flight(record))

    def _replay(self, record: Record) -> Replay:
        answer = record.answer
        if answer is None:
            raise AssertionError(f"a completed record without an answer: {record.id.hex()}")
        self.tallies.count(self.tallies.replays, record.id)
        if self._hooks:
            self._hooks(
                events.Replayed(
                    operation=record.operation,
                    key_hash=short_hash(record.key),
                    status=answer.status,
                    first_attempt_age_s=record.age_s,
                    attempt=record.attempt,
                    earlier_replays=record.replays,
                )
            )
        return Replay(answer, record.expires_in_s)

    def _store_down(self, claim: Claim, policy: Policy, error: StoreUnavailable) -> Decision:
        if not error.sent and policy.store_down == "run":
            self._emit(events.Unprotected, claim, ran=True)
            return Bypass()
        return Refuse(refusals.store_down(), lost_claim=claim if error.sent else None)

    def _wait(self, found: Record, until: float, policy: Policy) -> Op[Refuse | None]:
        """None once the record has changed; a refusal if it has not before `until`."""
        still_running = Refuse(refusals.in_flight(found))
        if not self._waiters.enter(found.id, policy):
            return still_running
        try:
            poll = 0
            while (left := until - self._clock.monotonic()) > 0:
                delay = full_jitter(poll, POLL_S_MIN, POLL_S_MAX, self._chance())
                yield Pause(min(left, max(delay, POLL_S_MIN)))
                poll += 1
                glimpse = yield from self._ask(Peek(found.id), found)
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

    # --------------------------------------------------------------------------- while it runs

    def renew(self, attempt: Attempt) -> Op[bool]:
        """Extend the lease; False when the attempt does not own its record any more."""
        asked_at = self._clock.monotonic()
        probe("before_renew")
        outcome = yield self.renewal(attempt)
        probe("after_renew")
        return self.renewed(attempt, outcome, asked_at)

    def renewal(self, attempt: Attempt) -> Swap:
        """The verb that extends this attempt's lease."""
        return lifecycle.renew(
            attempt.held, lease_s=attempt.lease_s, retention_s=attempt.retention_s
        )

    def renewed(self, attempt: Attempt, outcome: Done | Refused, asked_at: float) -> bool:
        """Note what became of a renewal that was asked at `asked_at`."""
        if isinstance(outcome, Done):
            attempt.lease_until = asked_at + attempt.lease_s
            return True
        self.lose(attempt, "taken over")
        return False

    def lose(self, attempt: Attempt, reason: str) -> None:
        """Signal to the handler that it should stop."""
        if attempt.mark_lost():
            self._emit(events.LeaseWasLost, attempt, attempt=attempt.attempt, reason=reason)

    # --------------------------------------------------------------------------------- the end

    def finish(self, attempt: Attempt, answer: Answer, call: Call) -> Op[Finished]:
        """Record the answer; only `Stored` and `Unstored` allow it to be sent."""
        attempt.finished = True
        run_s = self._clock.monotonic() - attempt.claimed_at
        age_s = attempt.age_s + run_s
        retention_s = attempt.policy.retention_s
        if self._retention_from == "first use":
            retention_s = max(retention_s - age_s, 1.0)
        swap = lifecycle.complete(
            attempt.held, answer, retention_s=retention_s, resource_id=attempt.resource_id
        )
        probe("before_complete")
        try:
            outcome = yield from self._persist(swap, attempt)
        except (StoreUnavailable, StoreUnfit):
            return self._unrecorded(attempt)
        probe("after_complete")
        if isinstance(outcome, Done):
            self._emit(
                events.Completed,
                attempt,
                status=answer.status,
                attempt=attempt.attempt,
                run_s=run_s,
                first_attempt_age_s=age_s,
                body_kept=answer.body is not None,
            )
            return Stored(retention_s)
        return self._superseded(attempt, outcome.record, call)

    def _unrecorded(self, attempt: Attempt) -> Unstored | Refuse:
        if attempt.policy.recovery == "block":
            self._emit(events.Unprotected, attempt, ran=False)
            return Unstored()
        return Refuse(refusals.unrecorded(attempt.lease_until - self._clock.monotonic()))

    def _superseded(self, attempt: Attempt, found: Record | None, call: Call) -> Replay | Refuse:
        """This attempt lost its record. Its own answer must not be sent: what counts is what
        stands there now.
        """
        attempt.lost = True
        self._emit(
            events.LeaseWasLost, attempt, attempt=attempt.attempt, reason="refused at completion"
        )
        if found is None:
            return Refuse(refusals.contended())
        action = lifecycle.decide(found, _compare(found, call), attempt.policy)
        return self._answer_from(found, action, call)

    def abandon(self, attempt: Attempt, *, no_effect: bool) -> Op[None]:
        """Give the record back so that a retry may run. What cannot be given back lapses by
        itself.

        `no_effect` speaks of this attempt alone: where an earlier one may have had an effect, the
        record stays bound to its request.
        """
        attempt.finished = True
        no_effect = no_effect and attempt.attempt == 1
        swap = lifecycle.release(
            attempt.held, no_effect=no_effect, retention_s=attempt.policy.retention_s
        )
        probe("before_release")
        try:
            outcome = yield from self._persist(swap, attempt)
        except StoreError:
            return
        probe("after_release")
        if isinstance(outcome, Done):
            self._emit(events.Released, attempt, no_effect=no_effect, attempt=attempt.attempt)

    def forget(self, claim: Claim) -> Op[None]:
        """Release a claim whose reply was lost and whose request was refused; nothing ran under it.

        Looks again: what was asked may still be on its way; a store may be down for a whole lease.
        """
        for look in range(FORGET_LOOKS_MAX):
            if look:
                yield Pause(min(FORGET_S * 4**look, claim.lease_s / ASKS_MAX))
            with contextlib.suppress(StoreError):
                found = yield Find(claim.id)
                ours = found is not None and found.token == claim.token
                if ours and found.state is State.RUNNING:
                    held = lifecycle.Held(claim.id, found.fence, claim.token)
                    first = found.attempt == 1
                    yield lifecycle.release(held, no_effect=first, retention_s=claim.retention_s)
                if ours or look >= ASKS_MAX - 1:
                    return


def _compare(record: Record, call: Call) -> fingerprints.Comparison:
    return fingerprints.compare(record.fingerprint_version, record.fingerprint, call.fingerprint)


def _differing(record: Record, call: Call) -> tuple[str, ...]:
    return tuple(fingerprints.differing(record.field_digests, call.field_digests))
