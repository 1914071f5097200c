"""What one worker does with an outbox, round by round, without threads, event loop or broker: it
yields queries for the database, `Deliver` for the broker, and `Pause`.

Promises
    No message is published before its transaction commits, and none is lost after: a row is deleted
    only after its message was published. While a worker holds the lease on a message, no other
    worker publishes it. If a worker dies between publishing and deleting, the message is published
    again, with the same id.

Order
    Workers take only the oldest message of each topic and key, and the next one only after that was
    published or parked. So first publications are in order; a repetition after a worker's death may
    come late.
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
from oncekey.stores.outbox import DUE_S_MAX, ClaimedRow, LaneHead, OutboxTable, ReturnedRow

LOOK_FACTOR = 2
"""How many lanes a round looks at for each message it may take."""
LEASE_USED = 2 / 3
"""A publication starts only in this part of the lease; it has the rest to finish."""
SETTLE_TRIES_MAX, SETTLE_PAUSE_S = 6, 0.05
BLAMED_MAX = 10_000
"""How many unreachable topics are remembered."""

_log = logging.getLogger("oncekey")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Batch size, lease and retries of a worker."""

    batch_max: int = 100
    batch_bytes_max: int = 8_388_608
    lease_s: float = 30.0
    attempts_max: int = 20
    """A message that failed or killed its worker this often is parked."""
    retry_s_min: float = 0.5
    retry_s_max: float = 60.0

    def __post_init__(self) -> None:
        must_be_limits("Limits", asdict(self))
        for name in ("lease_s", "retry_s_max"):
            if getattr(self, name) > DUE_S_MAX:
                raise Misuse(f"{name}={getattr(self, name)}: at most {DUE_S_MAX:g} s")


@value
class Deliver:
    """Asks for these messages to be published; answered with one outcome each, in order."""

    messages: Sequence[Message]
    begin_until: float
    """On the monotonic clock: start no publication later than this."""


@value
class Published:
    """The broker has the message."""


@value
class Failed:
    """The broker refused the message, or may not have it."""

    error: str


@value
class Unreachable:
    """The broker cannot be reached: not the message's fault, unless other topics get through."""

    error: str


@value
class Untried:
    """Publication did not start: broker down, lease nearly over, or worker stopping."""


DeliveryOutcome = Published | Failed | Unreachable | Untried


@value
class Round:
    """What one round did."""

    published: int = 0
    failed: int = 0
    parked: int = 0
    claimed: int = 0
    outage: str | None = None
    ended: bool = False
    """The round saw the last lane."""
    whole: bool = False
    """It saw the first lane too."""


class TopicHealth:
    """Tells an unreachable topic from an unreachable broker: the broker still takes other topics.

    Otherwise a topic that does not exist would look like an outage forever, to every topic.
    """

    def __init__(self) -> None:
        self._unreached: set[str] = set()
        self._blamed: set[str] = set()

    @property
    def unreached_topics(self) -> Set[str]:
        """Topics that could not be reached, with no other topic reached since."""
        return self._unreached

    def record(self, outcomes: Sequence[tuple[str, DeliveryOutcome]]) -> set[str]:
        """Take in these outcomes and return the topics to blame. A topic that was unreachable for
        the first time is not blamed: the broker may have gone away after it took the others.
        """
        reached = {topic for topic, outcome in outcomes if isinstance(outcome, Published)}
        unreached = {topic for topic, outcome in outcomes if isinstance(outcome, Unreachable)}
        suspects = self._unreached | self._blamed
        if reached:
            self._blamed = suspects - reached
            self._unreached = unreached - suspects - reached
        elif unreached - self._blamed:  # so far it looks as if the broker is away
            self._unreached, self._blamed = suspects | unreached, set()
        if len(self._unreached | self._blamed) > BLAMED_MAX:
            self._unreached, self._blamed = set(), set()
        return self._blamed


class OutboxWorker:
    """One worker's pass over an outbox: its position, and what it knows about the broker."""

    def __init__(
        self,
        table: OutboxTable,
        limits: Limits,
        clock: Clock,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        chance: Callable[[], float] = chance,
    ) -> None:
        self._table = table
        self._is_stopping = is_stopping
        self._limits = limits
        self._clock = clock
        self._chance = chance
        self._after = random_token()[:2]  # spreads workers that start together
        self._outages = 0
        self._topics = TopicHealth()

    @property
    def outages(self) -> int:
        """How many rounds in a row did not reach the broker."""
        return self._outages

    def run_until_empty(self) -> Op[Round]:
        """Run rounds until nothing is due, the broker is unreachable, or the worker must stop."""
        total, quiet = Round(), False
        while True:
            done = yield from self.run_round()
            total = _add(total, done)
            if done.claimed:
                quiet = False
            elif done.ended:
                if quiet or done.whole:
                    return total
                quiet = True
            if done.outage is not None or self._is_stopping():
                return total

    def run_round(self) -> Op[Round]:
        """Look, claim, publish and record the outcomes of at most one batch."""
        # During an outage one message is enough to find out whether the broker is back.
        batch_max = 1 if self._outages else self._limits.batch_max
        started, heads_max = self._after, self._limits.batch_max * LOOK_FACTOR
        heads = yield from self._table.look(started, heads_max)
        candidates = self._candidates(heads, is_full=len(heads) == heads_max)
        picked = self._pick_batch(candidates, batch_max)
        cut = len(picked) < len(candidates)
        ended = not cut and len(heads) < heads_max
        self._after = b"" if ended else (picked if cut else heads)[-1].lane
        seen = Round(ended=ended, whole=ended and not started)
        if not picked:
            return seen
        token, claimed_at = random_token(), self._clock.monotonic()
        taken = yield from self._table.claim(
            [head.n for head in picked],
            token,
            lease_s=self._limits.lease_s,
            attempts_max=self._limits.attempts_max,
        )
        done = yield from self._publish(taken, token, claimed_at)
        return replace(done, ended=seen.ended, whole=seen.whole)

    def _candidates(self, heads: Sequence[LaneHead], *, is_full: bool) -> list[LaneHead]:
        """Return the heads that are due. During an outage prefer topics not tried since it began:
        they show whether only the others are unreachable, and should not wait for them. If there
        are none, try one at random, since the first may be the one that cannot be published.
        """
        due = [head for head in heads if head.due]
        if not self._outages:
            return due
        untried = [head for head in due if head.topic not in self._topics.unreached_topics]
        if untried or not due or not is_full:
            return untried or due
        return [due[int(self._chance() * len(due))]]

    def _pick_batch(self, heads: Sequence[LaneHead], batch_max: int) -> list[LaneHead]:
        """Return the first heads, as many as fit one batch; at least one. A message that may have
        killed its last worker is taken alone, so that it cannot take others down with it.
        """
        picked: list[LaneHead] = []
        bytes_left = self._limits.batch_bytes_max
        for head in heads:
            bytes_left -= head.payload_bytes
            if picked and (head.left or len(picked) == batch_max or bytes_left < 0):
                break
            picked.append(head)
            if head.left:
                break
        return picked

    def _publish(self, taken: Sequence[ClaimedRow], token: bytes, claimed_at: float) -> Op[Round]:
        fit = [row for row in taken if not row.parked]
        for row in taken:
            if row.parked:
                self._log_parked(row.message, "its workers died")
        outcomes: Sequence[DeliveryOutcome] = ()
        if fit:
            begin_until = claimed_at + self._limits.lease_s * LEASE_USED
            probe("before_publish")
            outcomes = yield Deliver([row.message for row in fit], begin_until)
            probe("after_publish")
        settled = yield from self._settle_rows(fit, outcomes, token, claimed_at)
        probe("after_removal")
        parked = settled.parked + len(taken) - len(fit)
        return replace(settled, parked=parked, claimed=len(taken))

    def _settle_rows(
        self,
        rows: Sequence[ClaimedRow],
        outcomes: Sequence[DeliveryOutcome],
        token: bytes,
        claimed_at: float,
    ) -> Op[Round]:
        gone, back = [], []
        failed = parked = 0
        outage = None
        topics = [row.message.topic for row in rows]
        blamed = self._topics.record(list(zip(topics, outcomes, strict=True)))
        for row, outcome in zip(rows, outcomes, strict=True):
            match outcome:
                case Published():
                    gone.append(row.n)
                case Untried():
                    back.append(_return_untried(row))
                case Unreachable(error) if row.message.topic not in blamed:
                    outage = error
                    back.append(_return_untried(row))
                case Failed(error) | Unreachable(error):
                    given = self._after_failure(row, error)
                    back.append(given)
                    failed, parked = failed + 1, parked + given.parked
        self._outages = self._outages + 1 if outage is not None else 0
        deadline = claimed_at + self._limits.lease_s
        if gone:
            yield from self._write_until_stored(lambda: self._table.remove(gone, token), deadline)
        if back:
            yield from self._write_until_stored(
                lambda: self._table.give_back(back, token), deadline
            )
        return Round(len(gone), failed, parked, outage=outage)

    def _after_failure(self, row: ClaimedRow, error: str) -> ReturnedRow:
        message, limits = row.message, self._limits
        attempts = message.attempts
        is_last = attempts >= limits.attempts_max
        if is_last:
            self._log_parked(message, error)
        else:
            topic = printable(message.topic)
            _log.warning("message %s to %s was not published: %s", message.id, topic, error)
        delay_s = full_jitter(attempts - 1, limits.retry_s_min, limits.retry_s_max, self._chance())
        return ReturnedRow(row.n, delay_s, attempts, error, is_last)

    def _log_parked(self, message: Message, error: str) -> None:
        _log.error(
            "message %s to %s is parked after %d attempts: %s; see Outbox.parked(), and "
            "Outbox.retry() once the cause is gone",
            *(message.id, printable(message.topic), message.attempts, error),
        )

    def _write_until_stored(self, ask: Callable[[], Op[int]], deadline: float) -> Op[None]:
        """Retry a write whose reply was lost, while the lease holds. The write is conditional on
        the lease's token, so repeating it is harmless. If it never succeeds, the messages are
        published again after the lease.
        """
        for attempt in range(SETTLE_TRIES_MAX):
            try:
                yield from ask()
            except StoreUnavailable as error:
                pause_s = SETTLE_PAUSE_S * 2**attempt
                last = attempt == SETTLE_TRIES_MAX - 1
                if last or self._clock.monotonic() + pause_s > deadline:
                    _log.warning(
                        "the outbox was not updated, some messages may be sent again: %s", error
                    )
                    return
                yield Pause(pause_s)
            else:
                return


def _return_untried(row: ClaimedRow) -> ReturnedRow:
    """Give a row back as if it had not been taken."""
    return ReturnedRow(row.n, 0.0, row.message.attempts - 1, None, False)


def _add(total: Round, done: Round) -> Round:
    return Round(
        total.published + done.published,
        total.failed + done.failed,
        total.parked + done.parked,
        total.claimed + done.claimed,
        done.outage,
    )
