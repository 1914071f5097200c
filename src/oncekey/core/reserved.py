"""Records of oncekey's own: what housekeeping keeps in the store, beside the records of requests.

They are made and changed by the same verbs. Their ids are no digests of a scope and a key, so that
no request can have one. Whoever lists records finds them under the tenant `oncekey`.
"""

from __future__ import annotations

import hashlib

from oncekey.core.framing import frame
from oncekey.core.notice import TENANT
from oncekey.core.record import Claim

LEASE_S = 60.0
"""Enough to write one: it is completed by the next verb."""


def reserved_id(operation: str, *parts: bytes) -> bytes:
    """The id of the record that these parts name."""
    return hashlib.sha256(frame([f"{operation}/1".encode(), *parts])).digest()


def reserved_claim(record_id: bytes, operation: str, token: bytes, retention_s: float) -> Claim:
    """What makes such a record."""
    return Claim(
        id=record_id,
        token=token,
        tenant=TENANT,
        operation=operation,
        key=operation,
        fingerprint=record_id,
        fingerprint_version=1,
        lease_s=LEASE_S,
        retention_s=retention_s,
    )
