from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core import key as core_key
from oncekey.client import keys
from oncekey.errors import Misuse

walls = st.floats(1, 2**38)  # up to the year 10680: six bytes of milliseconds
tokens = st.binary(min_size=16, max_size=16)


@given(wall=walls, token=tokens)
def test_uuid7_is_one_and_says_when(wall: float, token: bytes) -> None:
    made = uuid.UUID(keys.uuid7(wall, token))

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == int(wall * 1000)


@given(token=tokens)
def test_uuid4_is_one_and_says_nothing(token: bytes) -> None:
    made = uuid.UUID(keys.uuid4(0.0, token))

    assert (made.version, made.variant) == (4, uuid.RFC_4122)
    assert keys.uuid4(1.0, token) == str(made)


@given(wall=walls, token=tokens)
def test_ulid_reads_back(wall: float, token: bytes) -> None:
    made = keys.ulid(wall, token)
    number = 0
    for char in made:
        number = number * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(char)

    assert len(made) == 26
    assert number.to_bytes(16, "big") == int(wall * 1000).to_bytes(6, "big") + token[:10]


@pytest.mark.parametrize("make", [keys.uuid7, keys.ulid])
@given(first=walls, second=walls, one=tokens, other=tokens)
def test_later_keys_sort_later(
    make: keys.MakeKey, first: float, second: float, one: bytes, other: bytes
) -> None:
    if int(first * 1000) < int(second * 1000):
        assert make(first, one) < make(second, other)


@pytest.mark.parametrize("name", keys.KINDS)
@given(wall=walls, one=tokens, other=tokens)
def test_every_kind_is_a_key_and_two_differ(
    name: str, wall: float, one: bytes, other: bytes
) -> None:
    make = keys.kind(name)

    assert core_key.check(make(wall, one)) == make(wall, one)
    if one[:6] != other[:6]:  # the rest may be overwritten by the version
        assert make(wall, one) != make(wall, other)


def test_other_kinds_are_refused() -> None:
    with pytest.raises(Misuse, match="choose from uuid7, uuid4, ulid"):
        keys.kind("md5")
