"""Queries to the store: which to repeat, for how long, and what a lost reply means.

Part of the engine, and like all of it made of generators. A question that got no answer is asked
again: the store recognises an attempt by its token, so asking twice is as good as asking once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from oncekey import events
from oncekey._core import lifecycle
from oncekey._core.backoff import full_jitter
from oncekey._core.op import Op, Pause
from oncekey._core.printable import printable
from oncekey._core.reasons import StoreFailure
from oncekey._core.record import Claim, Record
from oncekey._core.verbs import AppendStep, Done, Refused, Swap, Verb
from oncekey._engine.attempt import Attempt
from oncekey._engine.reports import Reports
from oncekey._system.clock import Clock
from oncekey.errors import OncekeyError, StoreUnavailable, StoreUnfit, TooLong

_log = logging.getLogger("oncekey")

PATIENCE_S = 5.0
"""How long a request repeats a question that the store does not answer, before the handler ran."""
ASKS_MAX = 4
LEASE_MARGIN = 0.1
"""The part of a lease that is left unused: whoever acts on it must be done before it is over."""


class StoreCalls:
    """Asks the store, and asks again."""

    def __init__(self, clock: Clock, chance: Callable[[], float], reports: Reports) -> None:
        self._clock = clock
        self._chance = chance
        self._reports = reports

    def ask(self, verb: Verb, about: Claim | Record | Attempt, *, heard_of: bool = True) -> Op[Any]:
        """Ask, and ask again if there is no answer: every verb may be repeated, its token is
        recognised.

        Raises `StoreUnavailable(sent=False)` only if the store has provably not heard of this
        request: neither now nor, by `heard_of`, before.
        """
        asked = self._clock.monotonic()
        try:
            outcome = yield verb
        except StoreUnavailable as error:
            return (yield from self.ask_again(verb, about, asked, error, heard_of=heard_of))
        if self._reports.hooks.are_wanted:
            self.note(verb, about, asked, None)
        return outcome

    def ask_again(
        self,
        verb: Verb,
        about: Claim | Record | Attempt,
        started: float,
        error: StoreUnavailable,
        *,
        heard_of: bool,
    ) -> Op[Any]:
        """Go on asking after a first time, at `started`, that failed with `error`."""
        asked, sent = started, heard_of
        for ask in range(ASKS_MAX):
            sent = sent or error.sent
            self.note(verb, about, asked, error)
            delay = full_jitter(ask, 0.05, 1.0, self._chance())
            late = self._clock.monotonic() + delay - started > PATIENCE_S
            if late or ask == ASKS_MAX - 1:
                break
            yield Pause(delay)
            asked = self._clock.monotonic()
            try:
                outcome = yield verb
            except StoreUnavailable as failure:
                error = failure
            else:
                self.note(verb, about, asked, None)
                return outcome
        raise StoreUnavailable(str(error), sent=sent) from error

    def swap(self, swap: Swap, about: Claim | Record | Attempt) -> Op[Done | Refused]:
        """A swap whose lost reply is harmless: a refusal that our own earlier write caused is no
        refusal.
        """
        outcome = yield from self.ask(swap, about)
        return _recognise(swap, outcome)

    def persist(self, verb: Swap | AppendStep, attempt: Attempt) -> Op[Done | Refused]:
        """Repeat a write of the attempt until it is answered or the lease is nearly over."""
        until = attempt.lease.until - attempt.claim.lease_s * LEASE_MARGIN
        ask = 0
        while True:
            asked = self._clock.monotonic()
            try:
                outcome = yield verb
            except TooLong:
                raise
            except (StoreUnavailable, StoreUnfit) as error:  # unfit while another server takes over
                failure = error
            except OncekeyError:
                raise
            except Exception as error:
                failure = _unforeseen(error, attempt)
            else:
                if self._reports.hooks.are_wanted:
                    self.note(verb, attempt, asked, None)
                return _recognise(verb, outcome) if type(outcome) is Refused else outcome
            self.note(verb, attempt, asked, failure)
            delay = full_jitter(ask, 0.05, 1.0, self._chance())
            if self._clock.monotonic() + delay > until and ask > 0:
                raise failure
            ask += 1
            yield Pause(delay)

    def note(
        self,
        verb: Verb,
        about: Claim | Record | Attempt,
        asked: float,
        error: StoreUnavailable | StoreUnfit | None,
    ) -> None:
        if self._reports.hooks.are_wanted:
            self._reports.emit(
                events.StoreAsked,
                about,
                verb=type(verb).__name__.lower(),
                seconds=self._clock.monotonic() - asked,
                error=None if error is None else _failure(error),
            )


def _failure(error: StoreUnavailable | StoreUnfit) -> StoreFailure:
    was_sent = isinstance(error, StoreUnavailable) and error.sent
    return StoreFailure.LOST if was_sent else StoreFailure.NOT_SENT


def _unforeseen(error: Exception, attempt: Attempt) -> StoreUnavailable:
    """What a driver raised that nobody foresaw: no answer either. What was done is to be kept, and
    what fails while a database is changed succeeds when that is over.
    """
    kind = type(error).__name__  # and not its text, which may quote what was to be kept
    operation = printable(attempt.operation)
    _log.warning("%s: what it did is not kept yet: the store raised %s", operation, kind)
    failure = StoreUnavailable(kind, sent=True)
    failure.__cause__ = error
    return failure


def _recognise(verb: Swap | AppendStep, outcome: Done | Refused) -> Done | Refused:
    """A swap that is refused by what it wrote itself was carried out: only its reply was lost."""
    if not isinstance(verb, Swap):
        return outcome
    if isinstance(outcome, Refused) and lifecycle.took_effect(verb, outcome.record):
        return Done(outcome.record.fence if outcome.record else verb.fence)
    return outcome
