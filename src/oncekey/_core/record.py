"""The record: everything stored for one record id, and the encoding of what is replayed.

Stores measure time by their own clock. So a `Record` that a store returns has no deadlines, but the
time that was *left* when the store looked: `lease_left_s`, `expires_in_s`. Nothing here compares
the clocks of two machines.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from dataclasses import field

from oncekey._core.values import value
from oncekey.errors import CorruptRecord

TOKEN_BYTES = 16


class State(enum.StrEnum):
    """The stored state; *lapsed* and *expired* follow from time and are never stored."""

    RUNNING = "running"
    COMPLETED = "completed"
    RELEASED = "released"
    UNKNOWN = "unknown"


@value
class Answer:
    """A response, byte for byte. `body` is None if only the fact was stored (too large)."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes | None = b""


@value
class Claim:
    """An attempt that wants to own a record: all that a store needs to write it."""

    id: bytes
    token: bytes
    tenant: str
    operation: str
    key: str
    fingerprint: bytes
    fingerprint_version: int
    lease_s: float
    retention_s: float
    recovery: str = "rerun"
    schema_version: int = 0
    field_digests: Mapping[str, str] = field(default_factory=dict)
    request: bytes | None = None
    """The request itself, if it may be finished without its client. Stored while it runs."""


@value
class Record:
    """One record as a store found it."""

    id: bytes
    token: bytes
    tenant: str
    operation: str
    key: str
    fingerprint: bytes
    fingerprint_version: int
    lease_s: float
    retention_s: float
    recovery: str
    schema_version: int
    field_digests: Mapping[str, str]
    state: State
    fence: int
    attempt: int
    lapses: int
    beat: int
    no_effect: bool
    """Released without effect: the next attempt may send another request."""
    answer: Answer | None
    resource_id: str | None
    age_s: float
    """Since the first attempt, by the store's clock."""
    lease_left_s: float
    """Until the lease is over; 0 or less means lapsed. Only meaningful while running."""
    expires_in_s: float
    """Until the record may be removed; 0 or less means expired."""
    replays: int = 0
    conflicts: int = 0

    @property
    def lapsed(self) -> bool:
        """Running, but its lease is over."""
        return self.state is State.RUNNING and self.lease_left_s <= 0

    @property
    def expired(self) -> bool:
        """Past its retention: treat it as if it did not exist."""
        return self.expires_in_s <= 0

    @property
    def overlong(self) -> bool:
        """Its deadline is further away than one lease: the store's clock was set back since."""
        return self.state is State.RUNNING and self.lease_left_s > self.lease_s * 1.001


@value
class Glimpse:
    """A record's state without its content, for requests that wait for it to change."""

    state: State
    fence: int
    lease_left_s: float


@value
class Step:
    """A named part of a handler and its result, which is None while only the start is stored."""

    name: str
    digest: bytes
    result: bytes | None


# The encoding of headers: a version byte, then each line as two length-prefixed strings. Lines stay
# lines, in order and never joined. Readers refuse a version that they do not know. If the response
# leaves a tombstone, that line comes first and the version differs: a release that does not know
# tombstones must not take the line for a header.
_HEADERS_VERSION, _TOMBSTONE_VERSION = 1, 2
TOMBSTONE = b":tombstone-s"
_LENGTHS = struct.Struct("!HI")


def encode_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Encode headers for a store."""
    parts = [bytes((_version(headers),))]
    for name, text in headers:
        parts += (_LENGTHS.pack(len(name), len(text)), name, text)
    return b"".join(parts)


def decode_headers(data: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Decode what `encode_headers` wrote."""
    if not data or data[0] not in (_HEADERS_VERSION, _TOMBSTONE_VERSION):
        raise CorruptRecord(
            f"stored headers have version {data[:1].hex() or 'none'}, this release reads "
            f"{_HEADERS_VERSION:02x} and {_TOMBSTONE_VERSION:02x}; a newer release wrote them: "
            "finish its deployment, or undo it"
        )
    headers = []
    at = 1
    while at < len(data):
        try:
            name_length, value_length = _LENGTHS.unpack_from(data, at)
        except struct.error as error:
            raise CorruptRecord(f"stored headers end within a length, at byte {at}") from error
        at += _LENGTHS.size
        end = at + name_length + value_length
        if end > len(data):
            raise CorruptRecord(f"stored headers end within a line, at byte {at}")
        headers.append((data[at : at + name_length], data[at + name_length : end]))
        at = end
    if data[0] != _version(headers):
        raise CorruptRecord(
            f"stored headers of version {data[0]:02x} do not begin as that version does"
        )
    return tuple(headers)


def _version(headers: Sequence[tuple[bytes, bytes]]) -> int:
    marked = bool(headers) and headers[0][0] == TOMBSTONE
    return _TOMBSTONE_VERSION if marked else _HEADERS_VERSION
