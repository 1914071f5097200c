"""The engine: begin, renew, finish, abandon.

Everything here is a generator (`oncekey.core.op`): it yields verbs for the store and `Pause`s, and
is sent outcomes. It has no `await`, no thread and no global state, so that one engine serves sync
and async and a simulator can drive it through every interleaving. What it decides is decided by
`core.lifecycle`; what it adds is patience: which question to repeat, how long to wait, and what to
say when the store does not answer.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from typing import Any, Literal

from oncekey import events
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
    Found,
    Insert,
    Inserted,
    Peek,
    Refused,
    Swap,
    Verb,
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
from oncekey.errors import StoreError, StoreUnavailable
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
PATIENCE_S = 5.0
"""How long a request repeats a question that the store does not answer, before the handler ran."""
ASKS_MAX = 4
LEASE_MARGIN = 0.1
"""The part of a lease that is left unused: whoever acts on it must be done before it is over."""
POLL_S_MIN, POLL_S_MAX = 0.01, 0.25


def _random_token() -> bytes:
    return os.urandom(TOKEN_BYTES)


class Guard:
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
        self._clock = clock or SystemClock()
        self._hooks = hooks or events.Hooks()
        self._retention_from = retention_from
        self._token = token
        self._chance = chance
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
            decision = Refuse(refusals.store_down())
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
        record: Record | None = None
        for _ in range(ROUNDS_MAX):
            asked_at = self._clock.monotonic()
            if record is None:
                probe("before_insert")
                outcome = yield from self._ask(Insert(claim), claim)
                probe("after_insert")
                if isinstance(outcome, Inserted):
                    return self._execute(claim, policy, asked_at, outcome.fence)
                record = _found(outcome)
                if (
                    record.token == claim.token
                ):  # the reply to an earlier insert was lost: it was ours
                    return self._execute(claim, policy, asked_at, record.fence)
            action = lifecycle.decide(record, _compare(record, call), policy)
            match action:
                case Action.START_OVER | Action.RUN_AGAIN:
                    probe("before_take_over")
                    swap = lifecycle.take(record, claim)
                    taken = yield from self._swap(swap, claim)
                    probe("after_take_over")
                    if isinstance(taken, Done):
                        return self._execute(claim, policy, asked_at, taken.fence, swap, record)
                    record = taken.record
                case Action.DOUBT:
                    swap = lifecycle.doubt(
                        record, new_token=claim.token, retention_s=policy.unknown_retention_s
                    )
                    doubted = yield from self._swap(swap, claim)
                    if isinstance(doubted, Done):
                        self._emit(
                            events.OutcomeUnknown,
                            claim,
                            attempt=record.attempt,
                            lapses=record.lapses + 1,
                        )
                        return Refuse(refusals.unknown())
                    record = doubted.record
                case Action.SHORTEN:
                    yield from self._swap(lifecycle.shorten(record), claim)
                    return Refuse(refusals.in_flight(record))
                case Action.IN_FLIGHT if policy.in_flight == "wait" and policy.wait_s > 0:
                    if wait_until is None:
                        wait_until = self._clock.monotonic() + policy.wait_s
                    changed = yield from self._wait(record, wait_until, policy)
                    if not changed:
                        return Refuse(refusals.in_flight(record))
                    record = None
                case _:
                    return self._answer_from(record, action, call)
        return Refuse(refusals.contended())

    def _execute(
        self,
        claim: Claim,
        policy: Policy,
        asked_at: float,
        fence: int,
        swap: Swap | None = None,
        found: Record | None = None,
    ) -> Execute:
        attempt = Attempt(
            claim,
            policy,
            fence=fence,
            attempt=1 if swap is None else swap.attempt or 1,
            lapses=0 if swap is None else swap.lapses or 0,
            age_s=0.0 if found is None or (swap is not None and swap.fresh) else found.age_s,
            claimed_at=asked_at,
        )
        if self._hooks:
            if found is not None and found.lapsed and not found.expired:
                self._emit(events.TakenOver, claim, attempt=attempt.attempt, lapses=attempt.lapses)
            self._emit(events.Started, claim, attempt=attempt.attempt, fence=fence)
        return Execute(attempt)

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
            return Bypass()
        return Refuse(refusals.store_down(), lost_claim=claim if error.sent else None)

    def _wait(self, record: Record, until: float, policy: Policy) -> Op[bool]:
        """Whether the record changed before `until`."""
        if not self._waiters.enter(record.id, policy):
            return False
        try:
            poll = 0
            while (left := until - self._clock.monotonic()) > 0:
                delay = full_jitter(poll, POLL_S_MIN, POLL_S_MAX, self._chance())
                yield Pause(min(left, max(delay, POLL_S_MIN)))
                poll += 1
                glimpse = yield from self._ask(Peek(record.id), record)
                if (
                    glimpse is None
                    or glimpse.state is not State.RUNNING
                    or glimpse.fence != record.fence
                    or glimpse.lease_left_s <= 0
                ):
                    return True
            return False
        finally:
            self._waiters.leave(record.id)

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
        except StoreUnavailable:
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
        """
        attempt.finished = True
        swap = lifecycle.release(
            attempt.held, no_effect=no_effect, retention_s=attempt.policy.retention_s
        )
        probe("before_release")
        try:
            outcome = yield from self._persist(swap, attempt)
        except StoreUnavailable:
            return
        probe("after_release")
        if isinstance(outcome, Done):
            self._emit(events.Released, attempt, no_effect=no_effect, attempt=attempt.attempt)

    def forget(self, claim: Claim) -> Op[None]:
        """Release an insert whose reply was lost and whose request was refused; nothing ran under
        it.
        """
        for ask in range(ASKS_MAX):
            try:
                record = yield Find(claim.id)
                if record is None or record.token != claim.token or record.state != State.RUNNING:
                    return
                held = lifecycle.Held(claim.id, record.fence, claim.token)
                yield lifecycle.release(held, no_effect=True, retention_s=claim.retention_s)
                return
            except StoreUnavailable:
                yield Pause(full_jitter(ask, 0.1, claim.lease_s / ASKS_MAX, self._chance()))

    # ---------------------------------------------------------------------------------- asking

    def _ask(self, verb: Verb, about: Claim | Record | Attempt) -> Op[Any]:
        """Ask, and ask again if there is no answer: every verb may be repeated, its token is
        recognised.
        """
        started = self._clock.monotonic()
        sent = False
        for ask in range(ASKS_MAX):
            asked = self._clock.monotonic()
            try:
                outcome = yield verb
            except StoreUnavailable as error:
                sent = sent or error.sent
                self._note(verb, about, asked, error)
                delay = full_jitter(ask, 0.05, 1.0, self._chance())
                late = self._clock.monotonic() + delay - started > PATIENCE_S
                if late or ask == ASKS_MAX - 1:
                    raise StoreUnavailable(str(error), sent=sent) from error
                yield Pause(delay)
            else:
                self._note(verb, about, asked, None)
                return outcome
        raise AssertionError("unreachable")

    def _swap(self, swap: Swap, about: Claim | Record | Attempt) -> Op[Done | Refused]:
        """A swap whose lost reply is harmless: a refusal that our own earlier write caused is no
        refusal.
        """
        outcome = yield from self._ask(swap, about)
        return _recognise(swap, outcome)

    def _persist(self, swap: Swap, attempt: Attempt) -> Op[Done | Refused]:
        """Repeat a write of the attempt until it is answered or the lease is nearly over."""
        until = attempt.lease_until - attempt.lease_s * LEASE_MARGIN
        ask = 0
        while True:
            asked = self._clock.monotonic()
            try:
                outcome = yield swap
            except StoreUnavailable as error:
                self._note(swap, attempt, asked, error)
                delay = full_jitter(ask, 0.05, 1.0, self._chance())
                if self._clock.monotonic() + delay > until and ask > 0:
                    raise
                ask += 1
                yield Pause(delay)
            else:
                self._note(swap, attempt, asked, None)
                return _recognise(swap, outcome)

    # --------------------------------------------------------------------------------- telling

    def _emit(
        self, event: type[events.Event], about: Claim | Record | Attempt, **details: Any
    ) -> None:
        if self._hooks:
            self._hooks(event(operation=about.operation, key_hash=short_hash(about.key), **details))

    def _note(
        self,
        verb: Verb,
        about: Claim | Record | Attempt,
        asked: float,
        error: StoreUnavailable | None,
    ) -> None:
        if self._hooks:
            self._emit(
                events.StoreAsked,
                about,
                verb=type(verb).__name__.lower(),
                seconds=self._clock.monotonic() - asked,
                error=None if error is None else ("lost" if error.sent else "not sent"),
            )


def _found(outcome: Any) -> Record:
    if not isinstance(outcome, Found):
        raise AssertionError(f"a store answered an insert with {outcome!r}")
    return outcome.record


def _recognise(swap: Swap, outcome: Done | Refused) -> Done | Refused:
    if isinstance(outcome, Refused) and lifecycle.landed(swap, outcome.record):
        return Done(outcome.record.fence if outcome.record else swap.fence)
    return outcome


def _compare(record: Record, call: Call) -> fingerprints.Comparison:
    return fingerprints.compare(record.fingerprint_version, record.fingerprint, call.fingerprint)


def _differing(record: Record, call: Call) -> tuple[str, ...]:
    return tuple(fingerprints.differing(record.field_digests, call.field_digests))
