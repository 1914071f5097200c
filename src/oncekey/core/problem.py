"""Refusals as values: what is wrong, whether a retry helps, and what to do. Profiles give them their shape on the wire."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """The stable names of refusals: the discriminator for clients, whatever the status says."""

    MISSING_KEY = "missing-key"
    INVALID_KEY = "invalid-key"
    MALFORMED_REQUEST = "malformed-request"
    TOO_LARGE = "request-too-large"
    MISMATCH = "mismatch"
    IN_FLIGHT = "in-flight"
    OUTCOME_UNKNOWN = "outcome-unknown"
    ANSWER_NOT_KEPT = "answer-not-kept"
    NEWER_RECORD = "newer-record"
    TOO_OLD = "too-old"
    STORE_UNAVAILABLE = "store-unavailable"
    NOT_FOUND = "key-not-found"


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal."""

    kind: Kind
    detail: str
    retryable: bool = False
    """Whether the same request with the same key may succeed later, without anybody changing anything."""
    retry_after_s: float | None = None
    fields: tuple[str, ...] = ()
    """On a mismatch: the top-level fields that differ, never their values."""
    location: bytes | None = None
    """Where the answer was not kept: the resource that it created."""
