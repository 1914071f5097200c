"""Several byte strings as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.framing import as_bytes, frame, pack, unpack
from oncekey.errors import CorruptRecord

PART = st.none() | st.binary(max_size=12) | st.sampled_from([b"-", b"0:", b"1:a", b"2:ab0:"])


def unframe(framed: bytes) -> list[bytes | None]:
    parts: list[bytes | None] = []
    while framed:
        if framed.startswith(b"-"):
            parts.append(None)
            framed = framed[1:]
        else:
            length, _, rest = framed.partition(b":")
            parts.append(rest[: int(length)])
            framed = rest[int(length) :]
    return parts


@given(st.lists(PART))
def test_a_frame_can_be_taken_apart_again(parts: list[bytes | None]) -> None:
    assert unframe(frame(parts)) == parts


@given(st.text(st.characters(), max_size=8), st.text(st.characters(), max_size=8))
def test_every_string_has_bytes_of_its_own(one: str, other: str) -> None:
    assert (as_bytes(one) == as_bytes(other)) == (one == other)


def test_lone_surrogates_have_bytes() -> None:
    assert as_bytes("\ud800") != as_bytes("\udfff")


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
