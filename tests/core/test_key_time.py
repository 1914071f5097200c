"""When a key was made: told by those that are ordered by time, and by no others."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.key_time import made_at
from oncekey.client.keys import ulid, uuid4, uuid7

WALLS = st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)


@given(wall=WALLS, chance=st.binary(min_size=16, max_size=16))
def test_time_ordered_keys_tell_it(wall: float, chance: bytes) -> None:
    for key in (uuid7(wall, chance), ulid(wall, chance)):
        for form in (key, key.upper(), key.lower()):
            assert made_at(form) == pytest.approx(wall, abs=0.0011)
    assert made_at(uuid7(wall, chance).replace("-", "")) == pytest.approx(wall, abs=0.0011)


@given(chance=st.binary(min_size=16, max_size=16))
def test_random_keys_do_not(chance: bytes) -> None:
    assert made_at(uuid4(1e9, chance)) is None


@pytest.mark.parametrize(
    "key",
    [
        *("order-17", "1700000000", "", "018bcfe5-6800-7000-8000-00000000000"),
        *("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "01HF7YAT00000000000000000U", str(uuid.NAMESPACE_DNS)),
        *("018bcfe5-6800-6000-8000-000000000000", "018bcfe5-6800-7000-c000-000000000000"),
    ],
)
def test_what_only_resembles_one_does_not(key: str) -> None:
    assert made_at(key) is None
