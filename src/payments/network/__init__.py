"""The card network: the other side of every charge, and the judge of what was charged.

It is a process of its own with a file of its own, and it knows nothing of oncekey: it tells retries
by a table of keys, as real networks do. So whatever it counts is counted independently.
"""

from payments.network.client import (
    Authorised,
    Captured,
    Declined,
    Network,
    NetworkDown,
    NetworkRefused,
    Refunded,
    Tally,
    Transaction,
    Voided,
)
from payments.network.faults import FAULTS, Fault

__all__ = [
    "FAULTS",
    "Authorised",
    "Captured",
    "Declined",
    "Fault",
    "Network",
    "NetworkDown",
    "NetworkRefused",
    "Refunded",
    "Tally",
    "Transaction",
    "Voided",
]
