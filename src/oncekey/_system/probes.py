"""Named points where tests stop, race or kill a process. Inert in production: one test of an empty
dict.

A probe marks a moment at which a crash has consequences of its own. The names are the reading order
of a request.
"""

from __future__ import annotations

from collections.abc import Callable

PROBES = (
    "before_insert",  # nothing is known to the store yet
    "after_insert",  # the record runs, the handler has not started
    "after_handler",  # the effect happened, its answer is not recorded
    "before_step",  # a step had its effect, its result is not kept
    "after_step",  # its result is kept, the next has not begun
    "before_complete",  # the answer is about to be recorded
    "before_commit",  # atomic: rows and answer are written, nobody can see them
    "after_commit",  # atomic: everybody can, not one byte is sent
    "after_complete",  # recorded, not one byte of it is sent
    "after_send",  # everything is done
    "before_release",  # the handler failed, the record still runs
    "after_release",
    "before_unknown",  # nobody knows what the handler did, the record still runs
    "after_unknown",  # it is unknown, or its lease is over and the application will be asked
    "before_take_over",  # a lapsed record was read, not yet taken over
    "after_take_over",
    "before_renew",
    "after_renew",
    "before_publish",  # a message was claimed from the outbox, the broker does not have it
    "after_publish",  # the broker has it, the outbox still does
    "after_removal",  # only the broker has it
    "before_intent",  # a client has a key that nobody else knows
    "after_intent",  # the journal keeps it, nothing is sent
    "before_request",  # an attempt of a client is about to leave
    "after_answer",  # its answer, or that there is none, is known to its client alone
    "before_settle",  # the client has all it wanted, its journal does not know
    "after_settle",
)

_actions: dict[str, Callable[[], None]] = {}


def probe(name: str) -> None:
    """Do what a test asked for at this point; nothing otherwise."""
    if _actions:
        action = _actions.get(name)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Run `action` whenever the named point is passed."""
    if name not in PROBES:
        raise ValueError(f"no probe is called {name!r}; there are: {', '.join(PROBES)}")
    _actions[name] = action


def disarm() -> None:
    """Forget every action."""
    _actions.clear()
