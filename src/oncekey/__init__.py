"""oncekey: retry any request, it happens once."""

from oncekey._core.answer import answer_of as answer
from oncekey._core.policy import (
    Learned,
    Policy,
    Verdict,
    keep_definitive,
    keep_errors_too,
    keep_success,
)
from oncekey._core.problems import Kind
from oncekey._core.profiles import PROFILES, BodyField, Header, Profile, QueryParameter
from oncekey._core.quota import Quota
from oncekey._core.record import Answer
from oncekey._core.versions import Versions
from oncekey._engine.attempt import Attempt, current, current_or_none
from oncekey._engine.recovery import Recoverer
from oncekey._engine.runtime import Runtime
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
from oncekey.stores.urls import migrate, open_store
from oncekey.web._request import Request
from oncekey.web._tenant import single_tenant

__all__ = [
    "PROFILES",
    "Answer",
    "Attempt",
    "BodyField",
    "CorruptRecord",
    "Header",
    "InFlight",
    "Kind",
    "Learned",
    "LeaseLost",
    "Mismatch",
    "Misuse",
    "NotKept",
    "OncekeyError",
    "Policy",
    "Profile",
    "QueryParameter",
    "Quota",
    "Recoverer",
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
