"""The notice: the reserved record of a store at which every process looks before it claims.

What stands there is either

the *book* of a sealed store: which it is for those who look without its secrets, and must not write
beside it; or

the *amnesia guard*, raised by an operator after the store lost records that it had acknowledged. A
key that may have been used before the loss is then not run, for it may have run already: its
outcome is unknown. Only a key that is surely newer is run as ever.

A sealed store shows its own notice under this id, sealed like every record: the book is seen by
nobody but by those who open it.
"""

from __future__ import annotations

import hashlib
import json

from oncekey._core.record import Claim, Record, State
from oncekey._core.reserved_records import MAC_KEY_ID, reserved_claim
from oncekey._core.values import value
from oncekey.errors import CorruptRecord, StoreUnfit

NOTICE_ID = hashlib.sha256(b"oncekey/notice/1").digest()
NEVER_SEALED = (NOTICE_ID, MAC_KEY_ID)
"""What stands as it is in a store whose records are sealed."""
LEASE_S = 1.0
KEYRING = "oncekey/sealed"
AMNESIA = "oncekey/amnesia"


@value
class Amnesia:
    """The guard, as it was raised."""

    until: float
    """Seconds since 1970: what was acknowledged before this may be forgotten."""
    skew_s: float
    """How far ahead the clocks of those who make keys may be."""

    def covers(self, made_at: float | None, now: float) -> bool:
        """Whether a key may have been used before the loss. One from the future tells nothing: it
        only looks like a time.
        """
        if made_at is None:
            return True
        return not self.until + self.skew_s < made_at <= now + self.skew_s


FORGETS_ALL = Amnesia(float("inf"), 0.0)
"""While somebody is raising it."""


def notice_claim(operation: str, token: bytes, retention_s: float) -> Claim:
    """What makes a notice; `reserved_swap` writes what it says."""
    return reserved_claim(NOTICE_ID, operation, token, retention_s, LEASE_S)


def read_notice(record: Record | None) -> Amnesia | None:
    """What a process has to heed; raises `StoreUnfit` where it must not go on."""
    if record is None or record.expired:
        return None
    if record.operation == KEYRING:
        raise StoreUnfit(
            "the records of this store are sealed, and this process was given no secrets: what it "
            "would write nobody else would find. Give it open_store(url, secrets=…)"
        )
    if record.operation != AMNESIA:
        raise StoreUnfit(f"the store's notice says {record.operation!r}: a newer release wrote it")
    if record.state is not State.COMPLETED or record.answer is None:
        return FORGETS_ALL
    return decode_amnesia(record.answer.body)


def encode_amnesia(guard: Amnesia | None) -> bytes:
    """The body of the notice; None: the guard is lowered."""
    said = None if guard is None else {"until": guard.until, "skew_s": guard.skew_s}
    return json.dumps({"version": 1, "guard": said}).encode()


def decode_amnesia(body: bytes | None) -> Amnesia | None:
    """The inverse of `encode_amnesia`."""
    try:
        said = json.loads(body or b"")
        if said["version"] != 1:
            raise ValueError(f"version {said['version']}")
        guard = said["guard"]
        return None if guard is None else Amnesia(float(guard["until"]), float(guard["skew_s"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(f"the amnesia guard's notice cannot be read: {error!r:.200}") from error
