"""The card network: the other side of every charge, which knows what was really charged.

It runs in a separate process with a separate file and knows nothing of oncekey: it recognises
retries by a table of keys, as real networks do. So its counts are independent.
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
