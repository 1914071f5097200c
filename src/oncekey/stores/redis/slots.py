"""The slots of a Redis Cluster: which key belongs to which, and which node holds it. Pure.

A cluster divides keys among 16384 slots by a checksum of the key, or of what stands between its
first braces, the *tag*. Keys that one script changes must have one slot, so a record and the list
that it may stand in share a tag. There are 256 tags, one for each value of an id's first byte:
enough to spread records over the nodes, few enough to ask for all lists at once. They are chosen so
that their slots are spread evenly, because nodes hold ranges of slots.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any

Address = tuple[str, int]
"""Host and port."""

SLOTS = 16384
TAGS = 256


def slot_of(key: str) -> int:
    """The slot that the cluster computes for a key."""
    start = key.find("{")
    end = key.find("}", start + 1)
    if start >= 0 and end > start + 1:
        key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


def _tags() -> list[str]:
    """For each share of the slots the smallest number that, as a tag, falls into it.

    These are part of what is stored: they must never change.
    """
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < TAGS:
        tags.setdefault(slot_of(str(number)) * TAGS // SLOTS, str(number))
        number += 1
    return [tags[share] for share in range(TAGS)]


TAG_OF_BYTE = _tags()
SLOT_OF_BYTE = [slot_of(tag) for tag in TAG_OF_BYTE]


class SlotMap:
    """Which node holds a slot, as far as is known."""

    def __init__(self, owners: list[Address]) -> None:
        self.owners = owners

    @classmethod
    def read(cls, reply: Sequence[Any], asked: Address) -> SlotMap | None:
        """What CLUSTER SLOTS says; None where it does not know all slots.

        A node may leave its host out: it is then where it was `asked`.
        """
        owners: list[Address | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_replicas in reply:
            name = host.decode() if host else ""
            owner = (asked[0] if name in ("", "?") else name, int(port))
            owners[int(first) : int(last) + 1] = [owner] * (int(last) + 1 - int(first))
        known = [owner for owner in owners if owner is not None]
        return cls(known) if len(known) == SLOTS else None

    def nodes(self) -> list[Address]:
        """All nodes that hold records, in a lasting order."""
        return sorted({self.owners[slot] for slot in SLOT_OF_BYTE})

    def bytes_of(self, node: Address) -> list[int]:
        """The first bytes of the ids whose records the node holds."""
        return [byte for byte, slot in enumerate(SLOT_OF_BYTE) if self.owners[slot] == node]
