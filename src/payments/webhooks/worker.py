"""The delivery worker: sends due webhooks until stopped. Any number may run, in any number of
processes; rows in the database coordinate them.

It claims no more than it has threads for, so a claimed delivery is sent at once, and its lease
outlasts the longest attempt. One hanging endpoint takes a few threads, an account with many of them
takes a part, nobody takes all. Stopping waits only for the deliveries being sent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from oncekey.webhooks import Schedule, Sent, signed_headers
from payments import clock
from payments.api.responses import encode
from payments.background import Outage
from payments.storage import ids
from payments.storage.database import Database
from payments.webhooks import deliveries, events
from payments.webhooks.deliveries import ClaimedDelivery
from payments.webhooks.delivery_slots import DeliverySlots
from payments.webhooks.senders import Senders

log = logging.getLogger("payments")

USER_AGENT = "payments-webhooks/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How many deliveries at once, how long, how often."""

    concurrency_max: int = 32
    per_endpoint_max: int = 4
    connections_max: int = 8
    """Database connections used at once: payments need the others."""
    lease_s: float = 90.0
    """Longer than an attempt can take, including recording it."""
    poll_s: float = 0.5
    dead_s: float = 5 * 86_400.0
    """An endpoint that fails this long, without one success, is disabled."""
    schedule: Schedule = field(default_factory=Schedule)


class DeliveryWorker:
    """Delivers webhooks from one database."""

    def __init__(
        self,
        database: Database,
        senders: Senders,
        *,
        pace: WorkerSettings | None = None,
        now: Callable[[], float] = clock.wall,
        chance: Callable[[], float] = ids.jitter,
    ) -> None:
        self._database = database
        self._pace = pace or WorkerSettings()
        self._senders = senders
        self._now = now
        self._chance = chance
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._slots = DeliverySlots(self._pace.concurrency_max, self._pace.per_endpoint_max)
        self._slots_lock = threading.Lock()
        self._outage = Outage("cannot claim deliveries", "claiming deliveries works again")
        self._connections = threading.BoundedSemaphore(self._pace.connections_max)
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------------- control

    def start(self) -> None:
        """Run in a separate thread."""
        self._thread = threading.Thread(target=self.run, name="courier", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Claim nothing more and wait until running deliveries end."""
        self._stop.set()
        self.wake()
        if self._thread is not None:
            self._thread.join()

    def wake(self) -> None:
        """Look for due deliveries now instead of at the next poll."""
        self._wake.set()

    def run(self) -> None:
        """Deliver until `stop()`."""
        with self._threads() as threads:
            while not self._stop.is_set():
                self._wake.clear()
                if not self._claim_and_submit(threads):
                    # so that workers do not poll in step
                    pause_s = self._outage.pause_s(self._pace.poll_s)
                    self._wake.wait(pause_s * (0.5 + self._chance() / 2))

    def drain(self) -> int:
        """Deliver all that is due now, unless stopped; return the number of attempts."""
        total = 0
        with self._threads() as threads:
            while not self._stop.is_set():
                self._wake.clear()
                taken = self._claim_and_submit(threads)
                total += taken
                if not taken:
                    with self._slots_lock:
                        if self._slots.free == self._slots.count:
                            break
                    self._wake.wait(self._outage.pause_s(self._pace.poll_s))
        return total

    # -------------------------------------------------------------------------------- the work

    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._pace.concurrency_max, thread_name_prefix="webhook")

    def _claim_and_submit(self, threads: ThreadPoolExecutor) -> int:
        """Claim as many deliveries as there are free slots and submit them; return how many."""
        try:
            taken = self._claim()
            for claimed in taken:
                self._submit(claimed, threads)
        except Exception as error:
            # Also for other errors, such as threads that cannot start: the worker must go on. What
            # it has claimed is sent after its lease ends.
            self._outage.record_failure(error, is_known=isinstance(error, SQLAlchemyError))
            return 0
        self._outage.record_success()
        return len(taken)

    def _submit(self, claimed: ClaimedDelivery, threads: ThreadPoolExecutor) -> None:
        with self._slots_lock:
            self._slots.take(claimed.tenant, claimed.endpoint)
        try:
            threads.submit(self._deliver, claimed)
        except Exception:
            self._release(claimed)
            raise

    def _release(self, claimed: ClaimedDelivery) -> None:
        with self._slots_lock:
            self._slots.release(claimed.tenant, claimed.endpoint)

    def _claim(self) -> list[ClaimedDelivery]:
        with self._slots_lock:
            slots = self._slots.copy()
        if not slots.free:
            return []
        with self._database.read() as connection:
            if not deliveries.any_due(connection, self._now()):
                return []
        with self._database.begin() as connection:
            return deliveries.claim(
                connection,
                self._now(),
                slots=slots,
                lease_s=self._pace.lease_s,
                attempts_max=self._pace.schedule.attempts_max,
            )

    def _deliver(self, claimed: ClaimedDelivery) -> None:
        try:
            self._record(claimed, self._send(claimed))
        except Exception:
            # After the lease ends, this or another worker retries.
            log.exception("delivery %s was not recorded and will be sent again", claimed.id)
        finally:
            self._release(claimed)
            self.wake()

    def _send(self, claimed: ClaimedDelivery) -> Sent:
        with self._connections, self._database.read() as connection:
            body = encode(events.retrieve(connection, claimed.tenant, claimed.event))
        headers = signed_headers(claimed.event, body, claimed.secrets, self._now())
        headers |= {"Content-Type": "application/json; charset=utf-8", "User-Agent": USER_AGENT}
        return self._senders.of(claimed.tenant).send(claimed.url, headers, body)

    def _record(self, claimed: ClaimedDelivery, sent: Sent) -> None:
        now, schedule = self._now(), self._pace.schedule
        outcome = deliveries.decide_outcome(sent, claimed.attempts, schedule, now, self._chance())
        with self._connections, self._database.begin() as connection:
            dead_s = self._pace.dead_s
            deliveries.record_attempt(connection, claimed, sent, outcome, now, dead_s=dead_s)
        log.info(
            "delivery %s of %s, attempt %d: %s",
            *(claimed.id, claimed.event, claimed.attempts, outcome.status),
        )
