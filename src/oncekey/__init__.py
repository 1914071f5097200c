"""oncekey: retry any request, it happens once."""

from oncekey.attempt import Attempt, current, current_or_none
from oncekey.core.policy import Policy, Verdict, keep_definitive, keep_errors_too, keep_success
from oncekey.core.profiles import PROFILES, Profile
from oncekey.core.record import Answer
from oncekey.core.versions import Versions
from oncekey.errors import (
    CorruptRecord,
    LeaseLost,
    Misuse,
    OncekeyError,
    StoreError,
    StoreUnavailable,
    StoreUnfit,
)
from oncekey.stores.url import open_store
from oncekey.web.edge import single_tenant
from oncekey.web.request import Request

__all__ = [
    "PROFILES",
    "Answer",
    "Attempt",
    "CorruptRecord",
    "LeaseLost",
    "Misuse",
    "OncekeyError",
    "Policy",
    "Profile",
    "Request",
    "StoreError",
    "StoreUnavailable",
    "StoreUnfit",
    "Verdict",
    "Versions",
    "current",
    "current_or_none",
    "keep_definitive",
    "keep_errors_too",
    "keep_success",
    "open_store",
    "single_tenant",
]
