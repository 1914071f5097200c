"""Named points where tests stop, race or kill a process. In production: one test of an empty dict.

A probe marks a moment at which a crash has particular consequences. The names are in the order in
which a request passes them.
"""

from __future__ import annotations

from collections.abc import Callable

PROBES = (
    "before_insert",  # the store knows nothing yet
    "after_insert",  # the record is running, the handler has not started
    "after_handler",  # the effect happened, its response is not recorded
    "before_step",  # a step had its effect, its result is not stored
    "after_step",  # its result is stored, the next step has not begun
    "before_complete",  # the response is about to be recorded
    "before_commit",  # atomic: rows and response are written, not visible
    "after_commit",  # atomic: they are visible, no byte is sent
    "after_complete",  # recorded, no byte of it is sent
    "after_send",  # everything is done
    "before_release",  # the handler failed, the record is still running
    "after_release",
    "before_unknown",  # the outcome is unknown, the record is still running
    "after_unknown",  # it says unknown, or its lease is over and `ask` will be called
    "before_take_over",  # a lapsed record was read, not yet taken over
    "after_take_over",
    "before_renew",
    "after_renew",
    "before_publish",  # a message is claimed from the outbox, the broker does not have it
    "after_publish",  # the broker has it, the outbox still does
    "after_removal",  # only the broker has it
    "before_intent",  # only the client knows its key
    "after_intent",  # the journal has it, nothing is sent
    "before_request",  # a client is about to send an attempt
    "after_answer",  # only the client knows the response, or that there is none
    "before_settle",  # the client has its response, its journal does not know
    "after_settle",
)

armed: dict[str, Callable[[], None]] = {}
"""What tests do at which point. Where every request passes, `if armed:` spares the call."""


def probe(name: str) -> None:
    """Run the action that a test armed for this point, if any."""
    if armed:
        action = armed.get(name)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Run `action` whenever a process passes this point."""
    if name not in PROBES:
        raise ValueError(f"no probe is called {name!r}; there are: {', '.join(PROBES)}")
    armed[name] = action


def disarm() -> None:
    """Forget every action."""
    armed.clear()
