"""What the owner of a record does with it: renew, finish, abandon, forget a lost claim.

Part of the engine, and like all of it made of generators. Every write presents the attempt's fence
and token, so that nothing which an attempt writes after it lost its record takes effect (P2).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Literal

from oncekey import events
from oncekey._core import endings, lifecycle, refusals
from oncekey._core.endings import End, Fate, end_of_error
from oncekey._core.op import Op, Pause, Undoable
from oncekey._core.policy import Learned, Policy
from oncekey._core.printable import printable
from oncekey._core.reasons import LossKind
from oncekey._core.record import Answer, Claim, Record, State, Step
from oncekey._core.retention import answer_left_s, with_tombstone, without_tombstone
from oncekey._core.verbs import AppendStep, Done, Find, Refused, Steps, Swap
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import (
    Call,
    Ended,
    Finished,
    Given,
    GivenUp,
    Refuse,
    Replay,
    Stored,
    Unstored,
)
from oncekey._engine.handler_calls import Ports
from oncekey._engine.lease import Leftover, Phase
from oncekey._engine.quotas import Quotas
from oncekey._engine.replays import Replays, compare_request
from oncekey._engine.reports import Reports
from oncekey._engine.store_calls import ASKS_MAX, StoreCalls
from oncekey._engine.tombstones import Tombstones
from oncekey._system.clock import Clock
from oncekey._system.probes import armed, probe
from oncekey.errors import CorruptRecord, StoreError, StoreUnavailable, StoreUnfit, TooLong

_log = logging.getLogger("oncekey")

FORGET_S, FORGET_LOOKS_MAX = 0.03, 8
"""Looks for a lost claim are four times as far apart each time, beginning with four times this."""


class Ownership:
    """Serves attempts: each write presents the fence and token of the attempt that asks for it."""

    def __init__(
        self,
        calls: StoreCalls,
        reports: Reports,
        replays: Replays,
        *,
        clock: Clock,
        token: Callable[[], bytes],
        retention_from: Literal["completion", "first use"],
        quotas: Quotas | None,
    ) -> None:
        self._calls = calls
        self._reports = reports
        self._replays = replays
        self._clock = clock
        self._token = token
        self._retention_from = retention_from
        self._quotas = quotas
        self.tombstones = Tombstones(clock, token)

    # --------------------------------------------------------------------------- while it runs

    def renewal(self, attempt: Attempt) -> Swap:
        """The verb that extends this attempt's lease."""
        return lifecycle.renew(
            attempt.held, lease_s=attempt.lease_s, retention_s=attempt.retention_s
        )

    def record_renewal(self, attempt: Attempt, outcome: Done | Refused, asked_at: float) -> bool:
        """Note what became of a renewal that was asked at `asked_at`; False when the attempt does
        not own its record any more.
        """
        if isinstance(outcome, Done):
            attempt.lease.until = asked_at + attempt.lease_s
            return True
        self.lose(attempt, LossKind.TAKEN_OVER)
        return False

    def lose(self, attempt: Attempt, kind: LossKind) -> None:
        """Signal to the handler that it should stop."""
        if attempt.mark_lost():
            self._tell_lost(attempt, kind)

    def _tell_lost(self, attempt: Attempt, kind: LossKind) -> None:
        reason = kind.sentence(attempt.policy)
        self._reports.emit(
            events.LeaseWasLost, attempt, attempt=attempt.attempt, reason=reason, kind=kind
        )

    def watch_lease(self, attempt: Attempt) -> None:
        """Nobody may have renewed its lease in time, as after a long sleep: then it is lost."""
        if self._clock.monotonic() >= attempt.lease.until:
            self.lose(attempt, LossKind.LAPSED_BEFORE_EFFECT)

    def steps(self, attempt: Attempt) -> Op[list[Step]]:
        """What earlier attempts left, in order."""
        kept: list[Step] = yield from self._calls.ask(Steps(attempt.held.id), attempt)
        return kept

    def keep_step(self, attempt: Attempt, step: Step) -> Op[Done | Refused]:
        """Keep a step's result, or its start."""
        held = attempt.held
        verb = AppendStep(held.id, held.fence, held.token, step)
        return (yield from self._calls.persist(verb, attempt))

    # --------------------------------------------------------------------------------- the end

    def conclude(
        self, attempt: Attempt, end: End, answer: Answer | None, call: Call
    ) -> Op[Finished]:
        """The end of a handler: record, release, or admit that nobody knows what it did.

        `answer` is what to keep, None where nothing is. Where the handler recorded an answer in a
        transaction of its own, what counts is whether that was committed. Raises `Misuse`, which is
        a failure of the handler's, where it did not await what it was given to await.
        """
        if attempt.lease.phase is Phase.ASKING:  # it never ran: given back, it would run unasked
            attempt.lease.move(Phase.ENDED)
            return Given()
        if attempt.recorded is not None:
            committed = yield from self._look_up_commit(attempt, call)
            if committed is not None:
                return committed
        if attempt.doubted:
            return (yield from self.give_up(attempt, call))
        if end is not End.KEPT and attempt.steps.in_doubt:
            end = End.STEP_BROKEN
        if end is End.ROLLED_BACK and not (yield Undoable()):
            end = End.BROKEN
        fate = endings.FATES[end, attempt.policy.recovery]
        if fate is Fate.STORE and answer is not None:
            if attempt.handed is not None:
                attempt.handed.check(attempt.operation)
            if attempt.attempt > 1 and attempt.steps.left_over:
                _tell_left_over(attempt)
            try:
                return (yield from self.finish(attempt, answer, call))
            except Ended:  # what it committed by itself stands, without a record
                fate = endings.FATES[End.BROKEN, attempt.policy.recovery]
        if fate is Fate.GIVE_UP or (attempt.recovering and fate is Fate.FORGET):
            return (yield from self._give_up(attempt, call))  # refused once, refused for ever
        if attempt.ports is not None and attempt.ports.still_running(attempt):
            return self._linger(attempt, attempt.ports, fate)
        if fate is Fate.ASK:
            return (yield from self._lapse(attempt, call))
        if attempt.recovering:  # no client tries again: the recoverer does, until `lapses_max`
            attempt.give_back()
            return Given()
        yield from self.abandon(attempt, no_effect=fate is Fate.FORGET)
        return Given()

    def conclude_failed(self, attempt: Attempt, error: BaseException, call: Call) -> Op[Finished]:
        """The end of a handler that raised, or was cut off."""
        end = end_of_error(attempt.verdict, error, attempt.policy)
        if end is End.ROLLED_BACK and not (yield Undoable(error)):
            end = End.BROKEN
        return (yield from self.conclude(attempt, end, None, call))

    def _linger(self, attempt: Attempt, ports: Ports, fate: Fate) -> Given:
        """A thread of its handler goes on: a retry must not run beside it. The record is given back
        when that ends; until then its lease is renewed, at most for `run_s_max`.
        """
        if fate is Fate.ASK:
            swap, no_effect = self._lapse_swap(attempt), False
        else:
            swap, no_effect = self._release_swap(attempt, no_effect=fate is Fate.FORGET)
        left = attempt.recovering and fate is not Fate.ASK  # for the recoverer to try again
        attempt.lease.leftover = Leftover(None if left else swap, no_effect)
        attempt.lease.move(Phase.LINGERING)
        _log.warning(
            "%s: its handler has ended and a thread of it still runs; retries are refused until "
            "that has ended too, at most for run_s_max=%g",
            printable(attempt.operation),
            attempt.policy.run_s_max,
        )
        ports.heartbeat.linger(attempt)
        return Given()

    def let_go(self, attempt: Attempt, outcome: object) -> None:
        """The last thread of an attempt that lingered has ended, and the store was told."""
        lingered, attempt.lease.leftover = attempt.lease.leftover, None
        attempt.give_back()
        released = lingered is not None and lingered.swap and lingered.swap.to is State.RELEASED
        if lingered is not None and released and isinstance(outcome, Done):
            self._tell_released(attempt, no_effect=lingered.no_effect)

    def _lapse(self, attempt: Attempt, call: Call) -> Op[Finished]:
        """End the lease, so that a retry or the recoverer asks at once. Where the store does not
        answer, or a renewal was on its way, it lapses by itself.
        """
        attempt.give_back()
        swap = self._lapse_swap(attempt)
        probe("before_unknown")
        with contextlib.suppress(StoreUnavailable, StoreUnfit):
            outcome = yield from self._calls.persist(swap, attempt)
            probe("after_unknown")
            if isinstance(outcome, Refused):
                return (yield from self._answer_as_superseded(attempt, outcome.record, call))
        return Given()

    def learned(self, attempt: Attempt, learned: object, call: Call) -> Op[Finished | None]:
        """What the policy's `ask` found out, or what it raised. None: it was not done, run it now.

        Where it found out nothing, or too late, the attempt is left to lapse: given back, it would
        run again.
        """
        match learned:
            case Answer():
                attempt.lease.move(Phase.RUNNING)
                return (yield from self.conclude(attempt, End.KEPT, learned, call))
            case Learned.NOT_DONE if self._overslept(attempt):
                self.lose(attempt, LossKind.LAPSED_WHILE_ASKING)
                attempt.lease.move(Phase.ENDED)
                return Refuse(refusals.unsettled(0.0))
            case Learned.NOT_DONE:
                attempt.lease.move(Phase.RUNNING)
                return None
            case Learned.UNKNOWN:
                return (yield from self.give_up(attempt, call))
        attempt.lease.move(Phase.ENDED)
        raised = learned if isinstance(learned, Exception) else None
        said = "failed" if raised else f"returned {learned!r:.100}, no Answer and no Learned"
        _log.error(
            "%s: what became of an attempt that died was not found out, since Policy(ask=…) %s; "
            "it is asked again when the lease is over (lapse %d)",
            printable(attempt.operation),
            said,
            attempt.lapses + 1,
            exc_info=raised,
        )
        return Refuse(refusals.unsettled(attempt.lease.until - self._clock.monotonic()))

    def _overslept(self, attempt: Attempt) -> bool:
        """Whether another may have taken over, and run it, while the application was asked."""
        over = attempt.lost or self._clock.monotonic() >= attempt.lease.until
        return over and not attempt.policy.atomic

    def _look_up_commit(self, attempt: Attempt, call: Call) -> Op[Finished | None]:
        """What became of `complete_in`; None where its transaction was rolled back."""
        try:
            found: Record | None = yield from self._calls.ask(Find(attempt.held.id), attempt)
        except (StoreUnavailable, StoreUnfit):  # a retry learns whether it was committed
            attempt.give_back()
            return Refuse(
                refusals.answer_not_recorded(attempt.lease.until - self._clock.monotonic())
            )
        held = attempt.held
        ours = found is not None and (found.fence, found.token) == (held.fence, held.token)
        if not ours or found is None:
            return (yield from self._answer_as_superseded(attempt, found, call))
        if found.state is not State.COMPLETED or found.answer is None:
            return None
        attempt.lease.move(Phase.ENDED)
        run_s = self._clock.monotonic() - attempt.claimed_at
        self._tell_completed(attempt, found.answer, run_s)
        return Stored(answer_left_s(found), attempt.recorded)

    def give_up(self, attempt: Attempt, call: Call) -> Op[Replay | Refuse]:
        """Declare the outcome of one's own attempt unknown; nothing that it answered is sent."""
        finished = yield from self._give_up(attempt, call)
        return Refuse(refusals.outcome_unknown()) if isinstance(finished, GivenUp) else finished

    def _give_up(self, attempt: Attempt, call: Call) -> Op[GivenUp | Replay | Refuse]:
        """The same; what it answered may be sent."""
        attempt.give_back()
        swap = lifecycle.give_up(
            attempt.held,
            new_token=self._token(),
            lapses=attempt.lapses,
            retention_s=unknown_retention_s(attempt.policy),
        )
        probe("before_unknown")
        with contextlib.suppress(StoreUnavailable, StoreUnfit):  # it lapses, and is doubted then
            outcome = yield from self._calls.persist(swap, attempt)
            probe("after_unknown")
            if isinstance(outcome, Refused):  # whoever owns it may know
                return (yield from self._answer_as_superseded(attempt, outcome.record, call))
            self._reports.emit(
                events.OutcomeUnknown, attempt, attempt=attempt.attempt, lapses=attempt.lapses
            )
        return GivenUp()

    def finish(self, attempt: Attempt, answer: Answer, call: Call) -> Op[Finished]:
        """Record the answer; only `Stored` and `Unstored` allow it to be sent."""
        attempt.lease.move(Phase.ENDED)
        run_s = self._clock.monotonic() - attempt.claimed_at
        if armed:
            probe("before_complete")
        try:
            while True:
                swap = self.completion(attempt, answer)
                try:
                    outcome = yield from self._calls.persist(swap, attempt)
                    break
                except TooLong as error:
                    answer = _without_what_is_too_long(attempt, answer, error)
        except (StoreUnavailable, StoreUnfit):
            return self._end_unrecorded(attempt)
        if armed:
            probe("after_complete")
        if isinstance(outcome, Done):
            self._tell_completed(attempt, swap.answer or answer, run_s)
            return Stored(swap.retention_s - attempt.policy.tombstone_s)
        return (yield from self._answer_as_superseded(attempt, outcome.record, call))

    def completion(self, attempt: Attempt, answer: Answer) -> Swap:
        """The verb that records an attempt's answer."""
        policy = attempt.policy
        retention_s = policy.retention_s
        if self._retention_from == "first use":
            age_s = attempt.age_s + self._clock.monotonic() - attempt.claimed_at
            retention_s = max(retention_s - age_s, 1.0)
        return lifecycle.complete(
            attempt.held,
            with_tombstone(answer, policy.tombstone_s) if policy.tombstone_s else answer,
            retention_s=retention_s + policy.tombstone_s,
            resource_id=attempt.created_id,
        )

    def _tell_completed(self, attempt: Attempt, kept: Answer, run_s: float) -> None:
        if attempt.policy.tombstone_s:
            self.tombstones.note(attempt.held.id, attempt.policy.retention_s)
        if self._quotas is not None:
            stored = without_tombstone(kept)
            self._quotas.count_answer(attempt.tenant, attempt.policy.retention_s, stored)
        if not self._reports.hooks.are_wanted:
            return
        self._reports.emit(
            events.Completed,
            attempt,
            status=kept.status,
            attempt=attempt.attempt,
            run_s=run_s,
            first_attempt_age_s=attempt.age_s + run_s,
            body_kept=kept.body is not None,
        )

    def _end_unrecorded(self, attempt: Attempt) -> Unstored | Refuse:
        attempt.give_back()
        # Under `block` a retry would only learn that nobody knows; but not if what `complete_in`
        # wrote may still be committed.
        if attempt.policy.recovery == "block" and attempt.recorded is None:
            self._reports.emit(events.Unprotected, attempt, ran=False)
            return Unstored()
        return Refuse(refusals.answer_not_recorded(attempt.lease.until - self._clock.monotonic()))

    def _answer_as_superseded(
        self, attempt: Attempt, found: Record | None, call: Call
    ) -> Op[Replay | Refuse]:
        """This attempt lost its record. Its own answer must not be sent: what counts is what
        stands there now.
        """
        attempt.give_back()
        self._tell_lost(attempt, LossKind.REFUSED_AT_COMPLETION)
        if found is None:
            return Refuse(refusals.contention())
        action = lifecycle.decide(found, (yield from compare_request(found, call)), attempt.policy)
        return self._replays.answer_from(found, action, call, attempt.policy)

    def abandon(self, attempt: Attempt, *, no_effect: bool) -> Op[None]:
        """Give the record back so that a retry may run. What cannot be given back lapses by
        itself.

        `no_effect` speaks of this attempt alone: where an earlier one, or a step, may have had an
        effect, the record stays bound to its request.
        """
        attempt.give_back()
        swap, no_effect = self._release_swap(attempt, no_effect=no_effect)
        probe("before_release")
        try:
            outcome = yield from self._calls.persist(swap, attempt)
        except StoreError:
            return
        probe("after_release")
        if isinstance(outcome, Done):
            self._tell_released(attempt, no_effect=no_effect)

    def _release_swap(self, attempt: Attempt, *, no_effect: bool) -> tuple[Swap, bool]:
        retention_s = attempt.policy.retention_s
        no_effect = no_effect and attempt.attempt == 1 and not attempt.steps.any_tried
        return lifecycle.release(
            attempt.held, no_effect=no_effect, retention_s=retention_s
        ), no_effect

    def _lapse_swap(self, attempt: Attempt) -> Swap:
        return lifecycle.lapse(attempt.held, retention_s=attempt.retention_s)

    def _tell_released(self, attempt: Attempt, *, no_effect: bool) -> None:
        self._reports.emit(events.Released, attempt, no_effect=no_effect, attempt=attempt.attempt)

    def forget(self, claim: Claim) -> Op[None]:
        """Release a claim whose reply was lost and whose request was refused; nothing ran under it.

        Looks again: what was asked may still be on its way; a store may be down for a whole lease.
        """
        for look in range(FORGET_LOOKS_MAX):
            if look:
                yield Pause(min(FORGET_S * 4**look, claim.lease_s / ASKS_MAX))
            with contextlib.suppress(StoreError):
                try:
                    found = yield Find(claim.id)
                except CorruptRecord:  # ours could be read
                    found = None
                ours = found is not None and found.token == claim.token
                if ours and found.lapses and found.recovery in ("resume", "ask"):
                    return  # given back, it would be finished by nobody, or run unasked
                if ours and found.state is State.RUNNING:
                    held = lifecycle.Held(claim.id, found.fence, claim.token)
                    first = found.attempt == 1
                    yield lifecycle.release(held, no_effect=first, retention_s=claim.retention_s)
                if ours or look >= ASKS_MAX - 1:
                    return


def unknown_retention_s(policy: Policy) -> float:
    """How long an unknown outcome is remembered: as what is done it has a tombstone, and is one."""
    return policy.unknown_retention_s + policy.tombstone_s


def _without_what_is_too_long(attempt: Attempt, answer: Answer, error: TooLong) -> Answer:
    """Of an answer that is more than the store takes, keep at least that it was done: else it would
    run again and again.
    """
    if answer.body is None and not answer.headers:
        raise error
    operation = printable(attempt.operation)
    _log.error("%s: retries learn that it was done, and not what it gave: %s", operation, error)
    return Answer(answer.status, () if answer.body is None else answer.headers, None)


def _tell_left_over(attempt: Attempt) -> None:
    _log.warning(
        "%s ends without the steps %s, which an earlier attempt took: the program was changed in "
        "between, or decides by more than the request and earlier results",
        printable(attempt.operation),
        ", ".join(repr(name) for name in attempt.steps.left_over[:5]),
    )
