"""Attempts: one request is sent until its answer is final or nobody may ask any longer.

The first attempt is made by the transport itself, because nearly always it is the only one:
`begin`, the sending, and if the answer is `smooth` that was it. Whatever else came of it is given
to `go_on`, a generator. It yields `Pause` and goes on when the time is over; it yields `Send` and
is sent what came of that, a `Reply` or `Broken`. Time and chance are given to it, so that a test
can drive it through hours in a moment, and a thread or an event loop through the real ones.

Nothing here sets the key: all attempts send the same prepared request, so it cannot change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeGuard

from oncekey._core.backoff import full_jitter
from oncekey._core.key import short_hash
from oncekey._core.op import Op, Pause
from oncekey._core.problems import Problem
from oncekey._core.profiles import Profile
from oncekey._core.reasons import GaveUp, GiveUpKind
from oncekey._core.validation import must_be_limits
from oncekey._core.values import value
from oncekey._system.clock import Clock
from oncekey.client._budget import Buckets, RetryBudget
from oncekey.client._classify import (
    FINAL,
    Again,
    Broken,
    Final,
    Mismatched,
    Reply,
    Verdict,
    judge,
    replayed,
)
from oncekey.client._errors import show
from oncekey.client._retention import FORGOTTEN
from oncekey.events import Attempted


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How long one request is tried."""

    attempts_max: int = 8
    budget_s: float = 90.0
    """For all attempts and the pauses between them. No attempt begins after it, and one under way
    is given no more time than is left.
    """
    backoff_s: float = 0.5
    """The bound of the first pause; it doubles with each attempt up to `backoff_s_max`."""
    backoff_s_max: float = 20.0

    def __post_init__(self) -> None:
        must_be_limits("Retries", asdict(self))


@value
class Send:
    """A question: what comes of sending it now, in at most `left_s`?"""

    left_s: float


@value
class Call:
    """What has to be known of a request to deliver it."""

    method: str
    host: str
    key: str | None
    once: str | None = None
    """Why it must not be sent twice."""
    retried: int = 0
    """How often it was retried before it was redirected."""
    until: float = math.inf
    """When its key counts no more, in seconds since 1970."""

    __repr__ = show


@value
class First:
    """The first attempt, and what came of it."""

    sent_at: float
    deadline: float
    """When the time for all attempts is over; monotonic, as the other."""
    answer: Reply | Broken


@value
class Ended:
    """How it ended."""

    answer: Reply | Broken
    attempts: int
    mismatch: Problem | None
    reason: GaveUp | None
    """Why there was no further attempt, where one would have been in order."""
    sent: bool = True
    """False where none of the attempts can have reached anybody."""

    @property
    def gave_up(self) -> str | None:
        """The reason in words."""
        return None if self.reason is None else self.reason.sentence


class Attempts:
    """Delivers requests under one set of rules; shared by all threads and tasks."""

    def __init__(
        self,
        profile: Profile,
        retries: Retries,
        budget: RetryBudget,
        clock: Clock,
        chance: Callable[[], float],
        observe: Callable[[Attempted], None],
        watched: Callable[[], bool] = lambda: True,
    ) -> None:
        self._profile = profile
        self._retries = retries
        self._buckets = Buckets(budget)
        self._clock = clock
        self._chance = chance
        self._observe = observe
        self._watched = watched

    def begin(self) -> tuple[float, float]:
        """A request is about to leave: now, and until when all its attempts may take."""
        now = self._clock.monotonic()
        return now, now + self._retries.budget_s

    def smooth(self, answer: Reply | Broken) -> TypeGuard[Reply]:
        """Whether there is nothing to judge, nothing to count, and nobody who wants to know."""
        return (
            isinstance(answer, Reply)
            and answer.status < 400
            and not self._buckets.short
            and not self._watched()
        )

    def go_on(self, call: Call, first: First) -> Op[Ended]:
        """From the first answer on: send until it is final, or no further attempt is allowed."""
        answer, sent_at, deadline = first.answer, first.sent_at, first.deadline
        self._buckets.earn(call.host, sent_at)
        attempt, sent = 1 + call.retried, _was_sent(answer)
        while True:
            now = self._clock.monotonic()
            verdict = judge(answer, self._profile, self._clock.wall())
            after = self._after(call, attempt, verdict, now, deadline)
            gave_up = after if isinstance(after, GaveUp) else None
            ended = _ended(answer, attempt, verdict, gave_up, sent)
            wait_s = after if isinstance(after, float) else None
            if verdict is not FINAL or self._watched():
                self._observe(self._event(call, ended, now - sent_at, wait_s))
            if wait_s is None:
                return ended
            yield Pause(wait_s)
            sent_at = self._clock.monotonic()
            if sent_at >= deadline:  # woken up late
                return _ended(answer, attempt, verdict, OVER, sent)
            if self._clock.wall() >= call.until:  # clocks stand still while a computer sleeps
                return _ended(answer, attempt, verdict, FORGOTTEN, sent)
            attempt += 1
            answer = yield Send(deadline - sent_at)
            sent = sent or _was_sent(answer)

    def _after(
        self, call: Call, attempt: int, verdict: Verdict, now: float, deadline: float
    ) -> float | GaveUp | None:
        """How long to wait for the next attempt, or why there is none; None if there need not."""
        if not isinstance(verdict, Again):
            return verdict.gave_up if isinstance(verdict, Final) else None
        if call.once:
            return GaveUp(GiveUpKind.SENT_ONCE, call.once)
        if attempt >= self._retries.attempts_max:
            return GaveUp(GiveUpKind.ATTEMPTS, f"{attempt} attempts were made")
        left_s = deadline - now
        asked_s = verdict.retry_after_s or 0.0
        if asked_s >= left_s:
            # Coming back earlier than told would be rude, and most likely in vain.
            return OVER if left_s <= 0 else _asked_to_wait(asked_s)
        bounds = self._retries.backoff_s, self._retries.backoff_s_max
        wait_s = asked_s + full_jitter(attempt - 1, *bounds, self._chance())
        if wait_s >= left_s:
            return OVER
        if self._clock.wall() + wait_s >= call.until:
            return FORGOTTEN
        if not self._buckets.spend(call.host, now):
            return BUDGET_SPENT
        return wait_s

    def _event(self, call: Call, ended: Ended, seconds: float, wait_s: float | None) -> Attempted:
        answer = ended.answer
        return Attempted(
            f"{call.method} {call.host}",
            short_hash(call.key) if call.key else "-",
            ended.attempts,
            answer.status if isinstance(answer, Reply) else None,
            type(answer.error).__name__ if isinstance(answer, Broken) else None,
            seconds,
            isinstance(answer, Reply) and replayed(answer.headers, self._profile),
            ended.mismatch is not None,
            wait_s,
            ended.gave_up,
            gave_up_kind=None if ended.reason is None else ended.reason.kind,
        )


OVER = GaveUp(GiveUpKind.TIME, "the time for all attempts is over")
BUDGET_SPENT = GaveUp(
    GiveUpKind.RETRY_BUDGET,
    "the retry budget of this host is spent: too many requests to it fail",
)


def _asked_to_wait(asked_s: float) -> GaveUp:
    return GaveUp(
        GiveUpKind.ASKED_TO_WAIT,
        f"the server asks to wait {asked_s:g} s, longer than is left for all attempts",
    )


def _ended(
    answer: Reply | Broken, attempt: int, verdict: Verdict, gave_up: GaveUp | None, sent: bool
) -> Ended:
    problem = verdict.problem if isinstance(verdict, Mismatched) else None
    return Ended(answer, attempt, problem, gave_up, sent)


def _was_sent(answer: Reply | Broken) -> bool:
    return isinstance(answer, Reply) or answer.sent
