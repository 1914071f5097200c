"""The notice: a reserved record of the store that every process reads before it claims.

It says one of two things:

- The store is *sealed*. A process without its secrets reads this, and must not write beside sealed
  records.
- The *amnesia guard* is raised: an operator said that the store lost records that it had
  acknowledged. A request whose key may have been used before the loss does not run, because it may
  have run already: its outcome is unknown. Only keys that are surely newer than the end of the
  loss run: requests that ran in the lost time may have older keys than that. A record that was
  restored unfinished may have been finished since, so it is not run either.

A process that has the secrets finds the store's own notice under this id, sealed like every record.
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
"""Records that are not encrypted in a sealed store."""
LEASE_S = 1.0
KEYRING = "oncekey/sealed"
AMNESIA = "oncekey/amnesia"


@value
class Amnesia:
    """The guard, as an operator raised it."""

    until: float
    """Seconds since 1970: what was acknowledged before this may be lost."""
    skew_s: float
    """How far ahead the clocks of clients that make keys may be."""

    def covers(self, made_at: float | None, now: float) -> bool:
        """Return whether a key may have been used before the loss. A time in the future proves
        nothing.
        """
        if made_at is None:
            return True
        return not self.until + self.skew_s < made_at <= now + self.skew_s


FORGETS_ALL = Amnesia(float("inf"), 0.0)
"""The guard while it is being raised."""


def notice_claim(operation: str, token: bytes, retention_s: float) -> Claim:
    """Return the claim of a notice; `reserved_swap` writes what it says."""
    return reserved_claim(NOTICE_ID, operation, token, retention_s, LEASE_S)


def read_notice(record: Record | None) -> Amnesia | None:
    """Return the guard, if one is raised; raises `StoreUnfit` if the process must not go on."""
    if record is None or record.expired:
        return None
    if record.operation == KEYRING:
        raise StoreUnfit(
            "the records of this store are sealed, and this process has no secrets: no other "
            "process would find what it writes. Write open_store(url, secrets=…)"
        )
    if record.operation != AMNESIA:
        raise StoreUnfit(f"the store's notice says {record.operation!r}: a newer release wrote it")
    if record.state is not State.COMPLETED or record.answer is None:
        return FORGETS_ALL
    return decode_amnesia(record.answer.body)


def encode_amnesia(guard: Amnesia | None) -> bytes:
    """Encode the body of the notice; None: the guard is lowered."""
    fields = None if guard is None else {"until": guard.until, "skew_s": guard.skew_s}
    return json.dumps({"version": 1, "guard": fields}).encode()


def decode_amnesia(body: bytes | None) -> Amnesia | None:
    """Decode what `encode_amnesia` wrote."""
    try:
        fields = json.loads(body or b"")
        if fields["version"] != 1:
            raise ValueError(f"version {fields['version']}")
        guard = fields["guard"]
        return None if guard is None else Amnesia(float(guard["until"]), float(guard["skew_s"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(f"the amnesia guard's notice cannot be read: {error!r:.200}") from error
