"""What a tiered store writes to its cache: one completed record per entry, with a MAC. Pure.

Anyone who can write to the cache could change, swap, repeat or keep entries. So an entry counts
only if its MAC is right, under a key that the cache does not know. The MAC covers the id, so that
an entry counts for its own id alone; the tenant's epoch, so that a purge ends all of the tenant's
entries; and how long it counts, which is shorter than the record's retention.

    MAC | numbers, and the length of each part | parts
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oncekey._core.framing import as_bytes
from oncekey._core.record import Answer, Record, State, decode_headers, encode_headers
from oncekey._core.values import value
from oncekey.errors import CorruptRecord
from oncekey.stores.sql import decode_digests, encode_digests

if TYPE_CHECKING:
    from oncekey.stores.redis.verbs import Command

MARGIN_S = 60.0
"""How much sooner than its record an entry ends. Hosts whose clocks differ by less than this agree
that the entry is over before the record can be, even if the cache keeps it.
"""
EPOCH_BYTES = 16

_VERSION = 1
_MAC_BYTES = 32
_NONE = 0xFFFF_FFFF
_NUMBERS = struct.Struct("!6d8qH")
_PARTS = 11
_LENGTHS = struct.Struct(f"!{_PARTS}I")
_LENGTHS_AT = _MAC_BYTES + _NUMBERS.size
_PARTS_AT = _LENGTHS_AT + _LENGTHS.size


@value
class CacheQuestion:
    """Commands for the cache. The answer is None if it does not reply; where it is `needed`, that
    raises.
    """

    commands: list[Command]
    needed: bool = False


def ttl_s(record: Record) -> float:
    """Return how long an entry written now counts: 0 or less if there must be none."""
    if record.state is not State.COMPLETED or record.answer is None or not record.key:
        return 0.0  # a purge blanks the key
    return record.expires_in_s - MARGIN_S


def encode_entry(secret: bytes, record: Record, answer: Answer, epoch: bytes, now: float) -> bytes:
    """Encode a record with its answer as an entry, as of `now`."""
    numbers = _NUMBERS.pack(
        *(now, now + ttl_s(record), record.lease_s, record.retention_s),
        *(record.age_s, record.expires_in_s),
        *(record.fence, record.fingerprint_version, record.schema_version, record.attempt),
        *(record.lapses, record.beat, record.replays, record.conflicts),
        answer.status,
    )
    digests = encode_digests(record.field_digests)
    resource_id = None if record.resource_id is None else as_bytes(record.resource_id)
    parts = (
        *(record.token, record.fingerprint, as_bytes(record.tenant), as_bytes(record.operation)),
        *(as_bytes(record.key), as_bytes(record.recovery), resource_id),
        *(digests and digests.encode(), encode_headers(answer.headers), answer.body),
    )
    lengths = [_NONE if part is None else len(part) for part in parts]
    content = b"".join((numbers, _LENGTHS.pack(_VERSION, *lengths), *(p for p in parts if p)))
    return _mac(secret, record.id, epoch, content) + content


def decode_entry(
    secret: bytes, record_id: bytes, epoch: bytes, entry: bytes, now: float
) -> Record | None:
    """Return the record of an authentic entry that still counts; None for anything else."""
    mac = _mac(secret, record_id, epoch, entry[_MAC_BYTES:])
    if len(epoch) != EPOCH_BYTES or not hmac.compare_digest(entry[:_MAC_BYTES], mac):
        return None
    numbers = _NUMBERS.unpack_from(entry, _MAC_BYTES)
    version, *lengths = _LENGTHS.unpack_from(entry, _LENGTHS_AT)
    if version != _VERSION or now >= numbers[1]:
        return None
    parts: list[Any] = []
    start = _PARTS_AT
    for length in lengths:
        if length == _NONE:
            parts.append(None)
        else:
            parts.append(entry[start : start + length])
            start += length
    try:
        return _record(record_id, numbers, parts, max(now - numbers[0], 0.0))
    except CorruptRecord:  # headers of a newer release
        return None


def _record(record_id: bytes, numbers: Sequence[Any], parts: list[Any], passed_s: float) -> Record:
    _, _, lease_s, retention_s, age_s, expires_in_s, *counts, status = numbers
    fence, fingerprint_version, schema_version, attempt, lapses, beat, *tallies = counts
    token, fingerprint, tenant, operation, key, recovery, resource_id, digests, *rest = parts
    fields: tuple[Any, ...] = (  # in the order of Record's fields
        *(record_id, token, _text(tenant), _text(operation), _text(key)),
        *(fingerprint, fingerprint_version, lease_s, retention_s, _text(recovery)),
        *(schema_version, decode_digests(digests), State.COMPLETED, fence, attempt, lapses, beat),
        *(False, Answer(status, decode_headers(rest[0]), rest[1])),
        None if resource_id is None else _text(resource_id),
        *(age_s + passed_s, 0.0, expires_in_s - passed_s, *tallies),
    )
    return Record(*fields)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _mac(secret: bytes, record_id: bytes, epoch: bytes, content: bytes) -> bytes:
    covered = b"".join((len(record_id).to_bytes(2, "big"), epoch, record_id, content))
    return hmac.digest(secret, covered, "sha256")
