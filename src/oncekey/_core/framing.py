"""Several byte strings as one: `frame` for digests, `pack` for what is read back.

`frame` is never taken apart again. `pack` is, so it says where each part ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from oncekey.errors import CorruptRecord


def frame(parts: Iterable[bytes | None]) -> bytes:
    """Join the parts, each behind its length; None is distinct from empty.

    No frame is the beginning of another part's frame, so nothing can slide from one part into
    the next. The number of parts is not framed: what follows a frame must tell where it ends.

    >>> frame([b"ab", b"", None])
    b'2:ab0:-'
    """
    return b"".join([b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts])


def as_bytes(text: str) -> bytes:
    """Encode as UTF-8, including the lone surrogates that some servers leave in paths."""
    return text.encode("utf-8", "surrogatepass")


_LENGTH = struct.Struct("!I")
_NONE = 0xFFFF_FFFF


def pack(*parts: bytes | None) -> bytes:
    """Join the parts so that `unpack` can split them again; None is distinct from empty.

    >>> pack(b"ab", None)
    b'\\x00\\x00\\x00\\x02ab\\xff\\xff\\xff\\xff'
    """
    packed = []
    for part in parts:
        if part is None:
            packed.append(_LENGTH.pack(_NONE))
        else:
            packed += (_LENGTH.pack(len(part)), part)
    return b"".join(packed)


def unpack(data: bytes, count: int) -> list[bytes | None]:
    """Split what `pack` made of `count` parts; raises `CorruptRecord` for anything else."""
    parts: list[bytes | None] = []
    at = 0
    for _ in range(count):
        try:
            (length,) = _LENGTH.unpack_from(data, at)
        except struct.error as error:
            raise CorruptRecord(f"packed parts end within a length, at byte {at}") from error
        at += _LENGTH.size
        if length == _NONE:
            parts.append(None)
            continue
        if at + length > len(data):
            raise CorruptRecord(f"packed parts end within one of them, at byte {at}")
        parts.append(data[at : at + length])
        at += length
    if at != len(data):
        raise CorruptRecord(f"packed parts have {len(data) - at} bytes too many")
    return parts
