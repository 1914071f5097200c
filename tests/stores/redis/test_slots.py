"""Which slot a key has, and which node holds it."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from oncekey.stores.redis.cluster import SLOT_OF_BYTE, SLOTS, TAG_OF_BYTE, TAGS, SlotMap, slot_of

HERE, THERE = ("10.0.0.1", 6379), ("10.0.0.2", 6380)


@pytest.mark.parametrize(
    ("key", "slot"), [("123456789", 0x31C3), ("foo", 12182), ("{foo}bar", 12182), ("", 0)]
)
def test_slots_are_those_of_the_specification(key: str, slot: int) -> None:
    assert slot_of(key) == slot


def test_tags_never_change() -> None:
    """They are part of every key that is stored."""
    digest = hashlib.sha256(",".join(TAG_OF_BYTE).encode()).hexdigest()
    assert digest == "148c494e3e562af81d14968f6c120b0daa169d5f13394ec62426a63f053a0d52"
    assert TAG_OF_BYTE[:4] == ["460", "14", "278", "10"]


def test_tags_are_spread_evenly() -> None:
    """However many nodes share the slots by ranges, their shares of the tags hardly differ."""
    assert sorted(SLOT_OF_BYTE) == SLOT_OF_BYTE
    for nodes in (2, 3, 7, 16, 30):
        bounds = [SLOTS * number // nodes for number in range(nodes + 1)]
        shares = [
            sum(low <= slot < high for slot in SLOT_OF_BYTE)
            for low, high in itertools.pairwise(bounds)
        ]
        assert sum(shares) == TAGS
        assert max(shares) - min(shares) <= 2


def test_a_map_is_read_from_what_a_node_says() -> None:
    said = [
        [0, 8191, [b"10.0.0.1", 6379, b"id", []], [b"10.0.0.9", 6379, b"a replica", []]],
        [8192, 16383, [b"10.0.0.2", 6380, b"id", []]],
    ]
    slots = SlotMap.read(said, HERE)
    assert slots is not None
    assert slots.nodes() == [HERE, THERE]
    assert {*slots.first_bytes(HERE), *slots.first_bytes(THERE)} == set(range(256))
    assert slots.first_bytes(HERE)[-1] < slots.first_bytes(THERE)[0]


@pytest.mark.parametrize("host", [b"", None, b"?"])
def test_a_node_that_does_not_name_itself_is_where_it_was_asked(host: bytes | None) -> None:
    slots = SlotMap.read([[0, 16383, [host, 7000, b"id"]]], HERE)
    assert slots is not None
    assert slots.nodes() == [(HERE[0], 7000)]


def test_a_map_with_holes_is_none() -> None:
    assert SlotMap.read([[0, 100, [b"10.0.0.1", 6379, b"id"]]], HERE) is None
    assert SlotMap.read([], HERE) is None
