"""What the cache of a tiered store holds: one completed record, under a MAC. Pure.

Whoever can write to the cache may change, swap, repeat or keep what is there. So an entry is only
believed if its MAC is right, under a key that the cache does not know. The MAC covers the id, so
that an entry counts for its own id alone; the tenant's epoch, so that a purge ends all of them; and
how long it counts, which is shorter than the record is kept.
"""

from __future__ import annotations

import hmac
import json

from oncekey.core.packing import pack, unpack
from oncekey.core.record import Answer, Record, State, decode_headers, encode_headers
from oncekey.errors import CorruptRecord

MARGIN_S = 60.0
"""How much sooner than its record an entry ends. Hosts whose clocks differ by less agree that it is
over before the record can be, even where the cache keeps it.
"""

_MAC_BYTES = 32
_FIELDS = (
    *("tenant", "operation", "key", "fingerprint_version", "lease_s", "retention_s", "recovery"),
    *("schema_version", "field_digests", "fence", "attempt", "lapses", "beat", "resource_id"),
    *("age_s", "expires_in_s", "replays", "conflicts"),
)


def lasts_s(record: Record) -> float:
    """How long an entry counts that is written now: 0 or less where there must be none."""
    if record.state is not State.COMPLETED or record.answer is None or not record.key:
        return 0.0  # a purge blanks the key
    return record.expires_in_s - MARGIN_S


def encode_entry(secret: bytes, record: Record, answer: Answer, epoch: bytes, now: float) -> bytes:
    """The entry of a record, with its answer, as it is `now`."""
    told = [getattr(record, name) for name in _FIELDS]
    meta = [now, now + lasts_s(record), record.token.hex(), record.fingerprint.hex(), answer.status]
    content = pack(
        json.dumps([*meta, *told], separators=(",", ":")).encode(),
        encode_headers(answer.headers),
        answer.body,
    )
    return _mac(secret, record.id, epoch, content) + content


def decode_entry(
    secret: bytes, record_id: bytes, epoch: bytes, entry: bytes, now: float
) -> Record | None:
    """The record of an entry that is true and still counts; None for anything else."""
    mac, content = entry[:_MAC_BYTES], entry[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(secret, record_id, epoch, content)):
        return None
    try:
        meta, headers, body = unpack(content, 3)
        at, until, token, fingerprint, status, *told = json.loads(meta or b"")
        fields = dict(zip(_FIELDS, told, strict=True))
        kept = decode_headers(headers or b"")
    except (CorruptRecord, ValueError):  # true, but of another release
        return None
    if now >= until:
        return None
    passed_s = max(now - at, 0.0)
    fields["age_s"] += passed_s
    fields["expires_in_s"] -= passed_s
    return Record(
        id=record_id,
        state=State.COMPLETED,
        token=bytes.fromhex(token),
        fingerprint=bytes.fromhex(fingerprint),
        no_effect=False,
        answer=Answer(status, kept, body),
        lease_left_s=0.0,
        **fields,
    )


def _mac(secret: bytes, record_id: bytes, epoch: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, b"\x01" + pack(record_id, epoch) + content, "sha256")
