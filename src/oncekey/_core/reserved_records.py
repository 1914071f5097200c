"""Reserved records: what oncekey stores for itself, beside the records of requests.

The same verbs create and change them. Their ids are not digests of a scope and a key, so no request
can have one. They are listed under the tenant `oncekey`.
"""

from __future__ import annotations

import hashlib

from oncekey._core.framing import frame
from oncekey._core.record import Answer, Claim, Record, State
from oncekey._core.verbs import Swap, When

TENANT = "oncekey"
LEASE_S = 60.0
"""Long enough to write one: the next verb completes it."""
MAC_KEY_ID = hashlib.sha256(b"oncekey/tiered/1").digest()
"""The record in which a tiered store keeps the key of its MACs."""


def reserved_id(operation: str, *parts: bytes) -> bytes:
    """Return the id of the record that these parts name."""
    return hashlib.sha256(frame([f"{operation}/1".encode(), *parts])).digest()


def reserved_claim(
    record_id: bytes, operation: str, token: bytes, retention_s: float, lease_s: float = LEASE_S
) -> Claim:
    """Return the claim that creates a reserved record, still empty."""
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
    """Return the swap that overwrites a reserved record, whatever its state.

    No transition of `lifecycle` does that; but nobody owns this record, its last writer may have
    died, and of several concurrent writers the first wins.
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
