"""Records of oncekey's own: what it keeps in the store for itself, beside the records of requests.

They are made and changed by the same verbs. Their ids are no digests of a scope and a key, so that
no request can have one. Whoever lists records finds them under the tenant `oncekey`.
"""

from __future__ import annotations

import hashlib

from oncekey._core.framing import frame
from oncekey._core.record import Answer, Claim, Record, State
from oncekey._core.verbs import Swap, When

TENANT = "oncekey"
LEASE_S = 60.0
"""Enough to write one: it is completed by the next verb."""
MAC_KEY_ID = hashlib.sha256(b"oncekey/tiered/1").digest()
"""The record of a tiered store's truth that keeps the key of its MACs."""


def reserved_id(operation: str, *parts: bytes) -> bytes:
    """The id of the record that these parts name."""
    return hashlib.sha256(frame([f"{operation}/1".encode(), *parts])).digest()


def reserved_claim(
    record_id: bytes, operation: str, token: bytes, retention_s: float, lease_s: float = LEASE_S
) -> Claim:
    """What makes such a record, before anything is said by it."""
    return Claim(
        id=record_id,
        token=token,
        tenant=TENANT,
        operation=operation,
        key=operation,
        fingerprint=record_id,
        fingerprint_version=1,
        lease_s=lease_s,
        retention_s=retention_s,
    )


def reserved_swap(found: Record, body: bytes, token: bytes, retention_s: float) -> Swap:
    """What writes such a record anew, whatever state it is in. No transition of `lifecycle` does
    that: but nobody owns this record, who was about to write it may have died, and of several who
    write at once the first is heard.
    """
    return Swap(
        id=found.id,
        state=found.state,
        fence=found.fence,
        token=found.token,
        when=When.ANY,
        to=State.COMPLETED,
        raise_fence=True,
        retention_s=retention_s,
        new_token=token,
        answer=Answer(200, (), body),
    )
