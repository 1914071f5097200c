"""Packing: whatever is packed comes back, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.packing import pack, unpack
from oncekey.errors import CorruptRecord

PARTS = st.lists(st.none() | st.binary(max_size=40), max_size=5)


@given(parts=PARTS)
def test_what_is_packed_comes_back(parts: list[bytes | None]) -> None:
    assert unpack(pack(*parts), len(parts)) == parts


@given(one=PARTS, other=PARTS)
def test_no_two_lists_are_packed_alike(one: list[bytes | None], other: list[bytes | None]) -> None:
    assert (pack(*one) == pack(*other)) == (one == other)


@given(parts=PARTS.filter(bool), data=st.data())
def test_what_was_cut_or_lengthened_is_refused(
    parts: list[bytes | None], data: st.DataObject
) -> None:
    packed = pack(*parts)
    for wrong in (packed[: data.draw(st.integers(0, len(packed) - 1))], packed + b"\x00"):
        with pytest.raises(CorruptRecord):
            unpack(wrong, len(parts))
