"""What goes wrong, and when: every seed draws its own mix.

A swarm of different mixes finds more than one mix of everything: a schedule that only loses replies
goes deeper into lost replies than one in which processes also die. Process faults strike at a step
that the process is about to take, because that is where they hurt: between claim and handler,
between handler and completion, between a read and the write that it led to.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from simulator.scenario import CALM_AFTER_S, LEASE_S


class Fault(enum.IntEnum):
    """Everything that can go wrong."""

    LOST_REQUEST = 1
    LOST_REPLY = 2
    DUPLICATE = 3
    DELAY = 4
    PAUSE = 5
    CRASH = 6
    CLOCK_FORWARD = 7
    CLOCK_BACK = 8
    STORE_DOWN = 9
    HANG_UP = 10
    CANCEL = 11


_MESSAGE: tuple[Fault, ...] = (Fault.LOST_REQUEST, Fault.LOST_REPLY, Fault.DUPLICATE, Fault.DELAY)
_PROCESS: tuple[Fault, ...] = (Fault.PAUSE, Fault.CRASH)
_STORE: tuple[Fault, ...] = (Fault.CLOCK_FORWARD, Fault.CLOCK_BACK, Fault.STORE_DOWN)
STRIKES_MAX = 4
"""Process and store faults per schedule: the effects of one must have time to show."""


class Faults:
    """Decides about each message, step and write whether something happens to it."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self.injected = [0] * (len(Fault) + 1)
        self.last_at = -1.0
        """Until when the latest fault has effects of its own. What began later may be held to the
        standards of a calm day.
        """
        self._message, self._process, self._store = _MESSAGE, _PROCESS, _STORE
        self._message_rate = self._process_rate = self._store_rate = 0.0
        self.cancels = False
        self._strikes = 0
        self._leg_s = 0.02
        self._mix()

    def _mix(self) -> None:
        chance = self._chance
        if chance() < 0.25:
            self._leg_s = 0.25
        if chance() < 0.1:
            return
        self._message = tuple(fault for fault in _MESSAGE if chance() < 0.5)
        self._process = tuple(fault for fault in _PROCESS if chance() < 0.6)
        self._store = tuple(fault for fault in _STORE if chance() < 0.4)
        strength = 0.4 + chance()
        if self._message:
            self._message_rate = 0.08 * strength
        if self._process:
            self._process_rate = 0.04 * strength
        if self._store:
            self._store_rate = 0.025 * strength
        self.cancels = chance() < 0.3

    def note(self, fault: Fault, until: float) -> None:
        """A fault begins; it acts until then."""
        self.injected[fault] += 1
        self.lasts(until)

    def lasts(self, until: float) -> None:
        """What went wrong acts until then."""
        self.last_at = max(self.last_at, until)

    # ------------------------------------------------------------------------ who is struck

    def of_message(self, now: float) -> Fault | None:
        """What happens to a message that is sent now."""
        if now > CALM_AFTER_S or self._chance() >= self._message_rate:
            return None
        return self._message[int(self._chance() * len(self._message))]

    def of_step(self, now: float) -> Fault | None:
        """What happens to a process that is about to take a step."""
        if now > CALM_AFTER_S or self._chance() >= self._process_rate or self._worn():
            return None
        return self._process[int(self._chance() * len(self._process))]

    def of_store(self, now: float) -> Fault | None:
        """What happens to the store that is about to carry something out."""
        if now > CALM_AFTER_S or self._chance() >= self._store_rate or self._worn():
            return None
        return self._store[int(self._chance() * len(self._store))]

    def holds_row(self) -> bool:
        """Whether a row of a batch is held by somebody else: no fault, only contention."""
        return self._chance() < 0.15

    def slow_look(self) -> bool:
        """Whether a statement takes its lock noticeably later than its snapshot."""
        return self._chance() < 0.2

    def _worn(self) -> bool:
        self._strikes += 1
        return self._strikes > STRIKES_MAX

    # --------------------------------------------------------------------------- how long

    def latency_s(self) -> float:
        """Of one leg; now and then much longer than usual, so that messages overtake each other."""
        chance = self._chance()
        return 0.001 + self._leg_s * chance if chance < 0.95 else 0.3 * self._chance()

    def timeout_s(self) -> float:
        """How long somebody waits for a reply that does not come."""
        return 0.3 + 1.2 * self._chance()

    def delay_s(self) -> float:
        """Of a message that arrives when nobody counts on it any more."""
        return LEASE_S * (0.1 + 1.5 * self._chance())

    def brief(self) -> bool:
        return self._chance() < 0.5

    def pause_s(self) -> float:
        """Of a process: shorter than a lease or longer, now and then past retention."""
        return LEASE_S * (0.2 + 2.0 * self._chance()) * (3.0 if self._chance() < 0.1 else 1.0)

    def restart_s(self) -> float:
        return LEASE_S * 1.5 * self._chance() ** 2

    def down_s(self) -> float:
        return LEASE_S * 1.5 * self._chance() ** 2

    def jump_s(self) -> float:
        """Of the store's clock: less than a lease, several, or past retention."""
        chance = self._chance()
        return LEASE_S * (3.0 * self._chance() if chance < 0.8 else 15.0 * self._chance())
