"""Retry a request until its response is final or no further attempt is allowed.

The transport makes the first attempt itself, because it is nearly always the only one: `begin`,
send, and if the response is a plain success, that was all. Otherwise `continue_delivery`, a
generator, takes over. It yields `Pause` to wait, and `SendAgain` to get the next `WholeResponse` or
`NoResponse`. Clock and randomness are parameters, so a test can drive it through hours in a moment.

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
    Classification,
    Final,
    Mismatched,
    NoResponse,
    RetryLater,
    WholeResponse,
    classify,
    is_replay,
)
from oncekey.client._errors import redacted_repr
from oncekey.client._retention import FORGOTTEN
from oncekey.events import Attempted


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How long and how often one request is retried."""

    attempts_max: int = 8
    budget_s: float = 90.0
    """The time for all attempts and pauses together. No attempt starts after it, and a running one
    gets no more time than is left.
    """
    backoff_s: float = 0.5
    """The upper bound of the first pause; it doubles with each attempt up to `backoff_s_max`."""
    backoff_s_max: float = 20.0

    def __post_init__(self) -> None:
        must_be_limits("Retries", asdict(self))


@value
class SendAgain:
    """Asks for another attempt, now, within `left_s`."""

    left_s: float


@value
class Delivery:
    """What the retry loop must know about a request."""

    method: str
    host: str
    key: str | None
    no_retry: str | None = None
    """Why it must not be sent twice, if so."""
    retries: int = 0
    """How often it was retried before a redirect."""
    until: float = math.inf
    """When its key expires, in seconds since 1970."""

    __repr__ = redacted_repr


@value
class FirstAttempt:
    """The first attempt and its response."""

    sent_at: float
    deadline: float
    """When the time for all attempts is over; both on the monotonic clock."""
    response: WholeResponse | NoResponse


@value
class DeliveryResult:
    """The outcome of all attempts."""

    response: WholeResponse | NoResponse
    attempts: int
    mismatch: Problem | None
    reason: GaveUp | None
    """Why there was no further attempt, if one would have been appropriate."""
    sent: bool = True
    """False if no attempt made a connection."""

    @property
    def gave_up(self) -> str | None:
        """The reason in words."""
        return None if self.reason is None else self.reason.sentence


class RetryLoop:
    """Retries requests under one set of rules; shared by all threads and tasks."""

    def __init__(
        self,
        profile: Profile,
        retries: Retries,
        budget: RetryBudget,
        clock: Clock,
        chance: Callable[[], float],
        observe: Callable[[Attempted], None],
        is_observed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._profile = profile
        self._retries = retries
        self._buckets = Buckets(budget)
        self._clock = clock
        self._chance = chance
        self._observe = observe
        self._is_observed = is_observed

    def begin(self) -> tuple[float, float]:
        """Return the current time and the deadline for all attempts of a request."""
        now = self._clock.monotonic()
        return now, now + self._retries.budget_s

    def is_plain_success(self, response: WholeResponse | NoResponse) -> TypeGuard[WholeResponse]:
        """Whether a response needs no classification, no budget update and no event."""
        return (
            isinstance(response, WholeResponse)
            and response.status < 400
            and not self._buckets.short
            and not self._is_observed()
        )

    def continue_delivery(self, delivery: Delivery, first: FirstAttempt) -> Op[DeliveryResult]:
        """Retry after the first attempt until the response is final or retries are exhausted."""
        response, sent_at, deadline = first.response, first.sent_at, first.deadline
        self._buckets.earn(delivery.host, sent_at)
        attempt, sent = 1 + delivery.retries, _was_sent(response)
        while True:
            now = self._clock.monotonic()
            classification = classify(response, self._profile, self._clock.wall())
            next_wait = self._next_wait(delivery, attempt, classification, now, deadline)
            gave_up = next_wait if isinstance(next_wait, GaveUp) else None
            result = _result(response, attempt, classification, gave_up, sent)
            wait_s = next_wait if isinstance(next_wait, float) else None
            if classification is not FINAL or self._is_observed():
                self._observe(self._event(delivery, result, now - sent_at, wait_s))
            if wait_s is None:
                return result
            yield Pause(wait_s)
            sent_at = self._clock.monotonic()
            if sent_at >= deadline:  # woken up late
                return _result(response, attempt, classification, OUT_OF_TIME, sent)
            if self._clock.wall() >= delivery.until:  # clocks stand still while a computer sleeps
                return _result(response, attempt, classification, FORGOTTEN, sent)
            attempt += 1
            response = yield SendAgain(deadline - sent_at)
            sent = sent or _was_sent(response)

    def _next_wait(
        self,
        delivery: Delivery,
        attempt: int,
        classification: Classification,
        now: float,
        deadline: float,
    ) -> float | GaveUp | None:
        """Return how long to wait for the next attempt, why there is none, or None if none is
        needed.
        """
        if not isinstance(classification, RetryLater):
            return classification.gave_up if isinstance(classification, Final) else None
        if delivery.no_retry:
            return GaveUp(GiveUpKind.SENT_ONCE, delivery.no_retry)
        if attempt >= self._retries.attempts_max:
            return GaveUp(GiveUpKind.ATTEMPTS, f"{attempt} attempts were made")
        left_s = deadline - now
        asked_s = classification.retry_after_s or 0.0
        if asked_s >= left_s:
            # An earlier retry would ignore the server's wish, and most likely fail.
            return OUT_OF_TIME if left_s <= 0 else _server_wait_too_long(asked_s)
        bounds = self._retries.backoff_s, self._retries.backoff_s_max
        wait_s = asked_s + full_jitter(attempt - 1, *bounds, self._chance())
        if wait_s >= left_s:
            return OUT_OF_TIME
        if self._clock.wall() + wait_s >= delivery.until:
            return FORGOTTEN
        if not self._buckets.spend(delivery.host, now):
            return BUDGET_SPENT
        return wait_s

    def _event(
        self, delivery: Delivery, result: DeliveryResult, seconds: float, wait_s: float | None
    ) -> Attempted:
        response = result.response
        return Attempted(
            f"{delivery.method} {delivery.host}",
            short_hash(delivery.key) if delivery.key else "-",
            result.attempts,
            response.status if isinstance(response, WholeResponse) else None,
            type(response.error).__name__ if isinstance(response, NoResponse) else None,
            seconds,
            isinstance(response, WholeResponse) and is_replay(response.headers, self._profile),
            result.mismatch is not None,
            wait_s,
            result.gave_up,
            gave_up_kind=None if result.reason is None else result.reason.kind,
        )


OUT_OF_TIME = GaveUp(GiveUpKind.TIME, "the time for all attempts is over")
BUDGET_SPENT = GaveUp(
    GiveUpKind.RETRY_BUDGET,
    "the retry budget of this host is spent: too many requests to it fail",
)


def _server_wait_too_long(asked_s: float) -> GaveUp:
    return GaveUp(
        GiveUpKind.ASKED_TO_WAIT,
        f"the server asks to wait {asked_s:g} s, longer than is left for all attempts",
    )


def _result(
    response: WholeResponse | NoResponse,
    attempt: int,
    classification: Classification,
    gave_up: GaveUp | None,
    sent: bool,
) -> DeliveryResult:
    problem = classification.problem if isinstance(classification, Mismatched) else None
    return DeliveryResult(response, attempt, problem, gave_up, sent)


def _was_sent(response: WholeResponse | NoResponse) -> bool:
    return isinstance(response, WholeResponse) or response.sent
