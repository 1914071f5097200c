"""Draining: what one worker does with an outbox, round by round. No thread, no event loop, no
broker: it yields questions for the database, `Deliver` for the broker and `Pause`.

What is promised
    Nothing is published before its transaction commits, and nothing is lost after: a row is removed
    only once its message was published. While its lease holds no other worker publishes a message.
    A worker that dies between publishing and removing leaves a message that is published again,
    under the same id.

Order
    Of one topic and key only the oldest message is ever taken, and the next only after that one was
    published or parked. So the first publication of each comes in order; a repetition after a
    worker's death may come late.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, dataclass, replace

from oncekey._core.backoff import full_jitter
from oncekey._core.message import Message
from oncekey._core.op import Op, Pause
from oncekey._core.printable import printable
from oncekey._core.validation import must_be_limits
from oncekey._core.values import value
from oncekey._system.chance import chance, random_token
from oncekey._system.clock import Clock
from oncekey._system.probes import probe
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.outbox import DUE_S_MAX, Head, Return, Shelf, Taken

LOOK_FACTOR = 2
"""Lanes that are looked at for each message that a round may take."""
LEASE_USED = 2 / 3
"""A publication begins only in this part of the lease; what is left is for its end."""
SETTLE_TRIES_MAX, SETTLE_PAUSE_S = 6, 0.05
BLAMED_MAX = 10_000
"""Most topics that are known to be unreachable."""

_log = logging.getLogger("oncekey")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much at once, how long, how often."""

    batch_max: int = 100
    batch_bytes_max: int = 8_388_608
    lease_s: float = 30.0
    attempts_max: int = 20
    """A message that failed this often, or killed its workers, is parked."""
    retry_s_min: float = 0.5
    retry_s_max: float = 60.0

    def __post_init__(self) -> None:
        must_be_limits("Limits", asdict(self))
        for name in ("lease_s", "retry_s_max"):
            if getattr(self, name) > DUE_S_MAX:
                raise Misuse(f"{name}={getattr(self, name)}: at most {DUE_S_MAX:g} s")


@value
class Deliver:
    """Hand these to the broker; one outcome for each, in the same order."""

    messages: Sequence[Message]
    begin_until: float
    """By the monotonic clock: publish nothing later than this."""


@value
class Published:
    """The broker has it."""


@value
class Failed:
    """The broker refused it, or nobody knows."""

    error: str


@value
class Unreachable:
    """The broker cannot be reached: no message is to blame, unless it takes those of others."""

    error: str


@value
class Untried:
    """It was not begun: the broker is down, the lease nearly over, or the worker stops."""


Outcome = Published | Failed | Unreachable | Untried


@value
class Round:
    """What one round did."""

    published: int = 0
    failed: int = 0
    parked: int = 0
    claimed: int = 0
    outage: str | None = None
    ended: bool = False
    """It saw the last lane there is."""
    whole: bool = False
    """… and the first."""


class Blame:
    """Tells topics that cannot be reached from a broker that cannot: it took others meanwhile.

    Without that a topic which does not exist would look like an outage for ever, to all.
    """

    def __init__(self) -> None:
        self._missed: set[str] = set()
        self._blamed: set[str] = set()

    @property
    def missed(self) -> Set[str]:
        """The topics that could not be reached, and no other has been since."""
        return self._missed

    def hear(self, outcomes: Sequence[tuple[str, Outcome]]) -> set[str]:
        """The topics to blame, after these outcomes. Those that were missed now for the first time
        are not: the broker may have gone away after it took the others.
        """
        reached = {topic for topic, outcome in outcomes if isinstance(outcome, Published)}
        missed = {topic for topic, outcome in outcomes if isinstance(outcome, Unreachable)}
        suspects = self._missed | self._blamed
        if reached:
            self._blamed = suspects - reached
            self._missed = missed - suspects - reached
        elif missed - self._blamed:  # as far as anybody knows the broker is away
            self._missed, self._blamed = suspects | missed, set()
        if len(self._missed | self._blamed) > BLAMED_MAX:
            self._missed, self._blamed = set(), set()
        return self._blamed


class Drain:
    """One worker's view of an outbox: where it is, and what it has heard of the broker."""

    def __init__(
        self,
        shelf: Shelf,
        limits: Limits,
        clock: Clock,
        *,
        stopping: Callable[[], bool] = lambda: False,
        chance: Callable[[], float] = chance,
    ) -> None:
        self._shelf = shelf
        self._stopping = stopping
        self._limits = limits
        self._clock = clock
        self._chance = chance
        self._after = random_token()[:2]  # so that workers who start together begin apart
        self._outages = 0
        self._blame = Blame()

    @property
    def outages(self) -> int:
        """How many rounds in turn did not reach the broker."""
        return self._outages

    def until_empty(self) -> Op[Round]:
        """Rounds until nothing is due, the broker cannot be reached, or the worker is to stop."""
        total, quiet = Round(), False
        while True:
            done = yield from self.round()
            total = _sum(total, done)
            if done.claimed:
                quiet = False
            elif done.ended:
                if quiet or done.whole:
                    return total
                quiet = True
            if done.outage is not None or self._stopping():
                return total

    def round(self) -> Op[Round]:
        """Look, claim, publish, settle: at most one batch."""
        # While the broker cannot be reached, one message is enough to find out that it is back.
        batch_max = 1 if self._outages else self._limits.batch_max
        started, looked_max = self._after, self._limits.batch_max * LOOK_FACTOR
        heads = yield from self._shelf.look(started, looked_max)
        likely = self._likely(heads, is_full=len(heads) == looked_max)
        picked = self._pick(likely, batch_max)
        cut = len(picked) < len(likely)
        ended = not cut and len(heads) < looked_max
        self._after = b"" if ended else (picked if cut else heads)[-1].lane
        seen = Round(ended=ended, whole=ended and not started)
        if not picked:
            return seen
        token, claimed_at = random_token(), self._clock.monotonic()
        taken = yield from self._shelf.claim(
            [head.n for head in picked],
            token,
            lease_s=self._limits.lease_s,
            attempts_max=self._limits.attempts_max,
        )
        done = yield from self._publish(taken, token, claimed_at)
        return replace(done, ended=seen.ended, whole=seen.whole)

    def _likely(self, heads: Sequence[Head], *, is_full: bool) -> list[Head]:
        """Those that are due. While the broker cannot be reached, of topics that were not tried
        since, if there are any: they tell whether the others alone are to blame, and would wait for
        each message of theirs. Where there are none, one of many is enough; not always the first,
        which may be what cannot be published.
        """
        due = [head for head in heads if head.due]
        if not self._outages:
            return due
        untried = [head for head in due if head.topic not in self._blame.missed]
        if untried or not due or not is_full:
            return untried or due
        return [due[int(self._chance() * len(due))]]

    def _pick(self, heads: Sequence[Head], batch_max: int) -> list[Head]:
        """The first of them, as many as one batch may hold; at least one. What may have killed the
        worker that took it last is taken alone: it would be the end of the others' workers too.
        """
        picked: list[Head] = []
        bytes_left = self._limits.batch_bytes_max
        for head in heads:
            bytes_left -= head.payload_bytes
            if picked and (head.left or len(picked) == batch_max or bytes_left < 0):
                break
            picked.append(head)
            if head.left:
                break
        return picked

    def _publish(self, taken: Sequence[Taken], token: bytes, claimed_at: float) -> Op[Round]:
        fit = [row for row in taken if not row.parked]
        for row in taken:
            if row.parked:
                self._tell_parked(row.message, "its workers died")
        outcomes: Sequence[Outcome] = ()
        if fit:
            begin_until = claimed_at + self._limits.lease_s * LEASE_USED
            probe("before_publish")
            outcomes = yield Deliver([row.message for row in fit], begin_until)
            probe("after_publish")
        settled = yield from self._settle(fit, outcomes, token, claimed_at)
        probe("after_removal")
        parked = settled.parked + len(taken) - len(fit)
        return replace(settled, parked=parked, claimed=len(taken))

    def _settle(
        self, rows: Sequence[Taken], outcomes: Sequence[Outcome], token: bytes, claimed_at: float
    ) -> Op[Round]:
        gone, back = [], []
        failed = parked = 0
        outage = None
        topics = [row.message.topic for row in rows]
        blamed = self._blame.hear(list(zip(topics, outcomes, strict=True)))
        for row, outcome in zip(rows, outcomes, strict=True):
            match outcome:
                case Published():
                    gone.append(row.n)
                case Untried():
                    back.append(_untouched(row))
                case Unreachable(error) if row.message.topic not in blamed:
                    outage = error
                    back.append(_untouched(row))
                case Failed(error) | Unreachable(error):
                    given = self._after_failure(row, error)
                    back.append(given)
                    failed, parked = failed + 1, parked + given.parked
        self._outages = self._outages + 1 if outage is not None else 0
        deadline = claimed_at + self._limits.lease_s
        if gone:
            yield from self._insist(lambda: self._shelf.remove(gone, token), deadline)
        if back:
            yield from self._insist(lambda: self._shelf.give_back(back, token), deadline)
        return Round(len(gone), failed, parked, outage=outage)

    def _after_failure(self, row: Taken, error: str) -> Return:
        message, limits = row.message, self._limits
        attempts = message.attempts
        is_last = attempts >= limits.attempts_max
        if is_last:
            self._tell_parked(message, error)
        else:
            topic = printable(message.topic)
            _log.warning("message %s to %s was not published: %s", message.id, topic, error)
        delay_s = full_jitter(attempts - 1, limits.retry_s_min, limits.retry_s_max, self._chance())
        return Return(row.n, delay_s, attempts, error, is_last)

    def _tell_parked(self, message: Message, error: str) -> None:
        _log.error(
            "message %s to %s is parked after %d attempts: %s; see Outbox.parked(), and "
            "Outbox.retry() once the cause is gone",
            *(message.id, printable(message.topic), message.attempts, error),
        )

    def _insist(self, ask: Callable[[], Op[int]], deadline: float) -> Op[None]:
        """Repeat a write whose reply is lost, while the lease holds: it says whose rows they are,
        so it does no harm twice. What cannot be written is published again after the lease.
        """
        for attempt in range(SETTLE_TRIES_MAX):
            try:
                yield from ask()
            except StoreUnavailable as error:
                pause_s = SETTLE_PAUSE_S * 2**attempt
                last = attempt == SETTLE_TRIES_MAX - 1
                if last or self._clock.monotonic() + pause_s > deadline:
                    _log.warning("the outbox was not settled, some may be sent again: %s", error)
                    return
                yield Pause(pause_s)
            else:
                return


def _untouched(row: Taken) -> Return:
    """It goes back as if nobody had taken it."""
    return Return(row.n, 0.0, row.message.attempts - 1, None, False)


def _sum(total: Round, done: Round) -> Round:
    return Round(
        total.published + done.published,
        total.failed + done.failed,
        total.parked + done.parked,
        total.claimed + done.claimed,
        done.outage,
    )
