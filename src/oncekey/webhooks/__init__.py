"""Send and receive webhooks: sign, deliver to allowed addresses, handle each event once."""

from oncekey.webhooks._address import LOOPBACK, Destinations, Forbidden, Target
from oncekey.webhooks._receiver import Event, Receipt, Receiver
from oncekey.webhooks._schedule import RETRIES_S, Schedule
from oncekey.webhooks._sender import Answered, NotSent, Sender, SendLimits, Sent, Unanswered
from oncekey.webhooks._signatures import (
    TOLERANCE_S,
    Flaw,
    Genuine,
    Refused,
    Scheme,
    new_secret,
    signed_headers,
    verify,
)

__all__ = [
    "LOOPBACK",
    "RETRIES_S",
    "TOLERANCE_S",
    "Answered",
    "Destinations",
    "Event",
    "Flaw",
    "Forbidden",
    "Genuine",
    "NotSent",
    "Receipt",
    "Receiver",
    "Refused",
    "Schedule",
    "Scheme",
    "SendLimits",
    "Sender",
    "Sent",
    "Target",
    "Unanswered",
    "new_secret",
    "signed_headers",
    "verify",
]
