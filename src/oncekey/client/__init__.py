"""Clients that send idempotency keys and retry safely."""

from oncekey._core.backoff import full_jitter
from oncekey.client._budget import RetryBudget
from oncekey.client._client import AsyncClient, Client
from oncekey.client._counters import Counters, Counts
from oncekey.client._intent import Intent
from oncekey.client._journal import Journal
from oncekey.client._retry import Retries
from oncekey.client._sender import Outcome
from oncekey.client._sql_journal import SqlJournal
from oncekey.client._transport import outcome_of, retrying
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
    "full_jitter",
    "outcome_of",
    "retrying",
]
