"""Messages: handled once per id, acknowledged after the commit."""

from oncekey.messaging.inbox import (
    Busy,
    Duplicate,
    Handled,
    Inbox,
    Outcome,
    Rejected,
    Released,
    Then,
    Unknown,
)

__all__ = [
    "Busy",
    "Duplicate",
    "Handled",
    "Inbox",
    "Outcome",
    "Rejected",
    "Released",
    "Then",
    "Unknown",
]
