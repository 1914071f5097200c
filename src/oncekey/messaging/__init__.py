"""Messages: handled once per id, acknowledged after the commit, published after the commit."""

from oncekey.messaging.draining import Limits
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
from oncekey.messaging.message import Message, Parked
from oncekey.messaging.outbox import Outbox
from oncekey.messaging.publisher import Publisher

__all__ = [
    "Busy",
    "Duplicate",
    "Handled",
    "Inbox",
    "Limits",
    "Message",
    "Outbox",
    "Outcome",
    "Parked",
    "Publisher",
    "Rejected",
    "Released",
    "Then",
    "Unknown",
]
