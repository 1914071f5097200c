"""The other side: for programs that call services which take an idempotency key."""

from oncekey.client.attempts import Retries
from oncekey.client.budget import RetryBudget
from oncekey.client.client import AsyncClient, Client
from oncekey.client.intent import Intent
from oncekey.client.journal import Journal
from oncekey.client.sender import Outcome
from oncekey.client.sql_journal import SqlJournal
from oncekey.client.transport import outcome_of, retrying
from oncekey.client.watch import Counters, Counts
from oncekey.events import Attempted

__all__ = [
    "AsyncClient",
    "Attempted",
    "Client",
    "Counters",
    "Counts",
    "Intent",
    "Journal",
    "Outcome",
    "Retries",
    "RetryBudget",
    "SqlJournal",
    "outcome_of",
    "retrying",
]
