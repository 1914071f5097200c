"""Consume each message once (inbox) and publish messages after the commit (outbox)."""

from oncekey._core.message import Message, Parked
from oncekey.messaging._inbox import (
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
from oncekey.messaging._outbox import Outbox
from oncekey.messaging._outbox_worker import Limits
from oncekey.messaging._publisher import Publisher

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
