"""oncekey: retry any request, it happens once."""

from oncekey.attempt import Attempt, current, current_or_none
from oncekey.core.answer import answer_of as answer
from oncekey.core.policy import (
    Learned,
    Policy,
    Verdict,
    keep_definitive,
    keep_errors_too,
    keep_success,
)
from oncekey.core.profiles import PROFILES, Profile
from oncekey.core.quota import Quota
from oncekey.core.record import Answer
from oncekey.core.versions import Versions
from oncekey.errors import (
    CorruptRecord,
    InFlight,
    LeaseLost,
    Mismatch,
    Misuse,
    NotKept,
    OncekeyError,
    Refusal,
    StoreError,
    StoreUnavailable,
    StoreUnfit,
    Unknown,
)
from oncekey.once import once
from oncekey.runtime import Runtime
from oncekey.stores.migrate import migrate
from oncekey.stores.url import open_store
from oncekey.web.request import Request
from oncekey.web.tenant import single_tenant

__all__ = [
    "PROFILES",
    "Answer",
    "Attempt",
    "CorruptRecord",
    "InFlight",
    "Learned",
    "LeaseLost",
    "Mismatch",
    "Misuse",
    "NotKept",
    "OncekeyError",
    "Policy",
    "Profile",
    "Quota",
    "Refusal",
    "Request",
    "Runtime",
    "StoreError",
    "StoreUnavailable",
    "StoreUnfit",
    "Unknown",
    "Verdict",
    "Versions",
    "answer",
    "current",
    "current_or_none",
    "keep_definitive",
    "keep_errors_too",
    "keep_success",
    "migrate",
    "once",
    "open_store",
    "single_tenant",
]
