"""Places: nobody has all of them, and who has none finds one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payments.webhooks.delivery_slots import Places


def taken_by(places: Places, account: str, endpoints: int = 16) -> int:
    """How many an account gets that wants all, with so many endpoints."""
    wanted = [f"we_{account}_{number}" for number in range(endpoints)] * places.count
    return sum(places.take(account, endpoint) for endpoint in wanted)


def test_p11_an_account_never_has_more_than_it_leaves_to_others() -> None:
    places = Places(32, 4)
    assert [taken_by(places, account) for account in "abcdef"] == [16, 8, 4, 2, 1, 1]
    assert places.free == 0


def test_an_endpoint_has_a_few() -> None:
    places = Places(32, 4)
    assert taken_by(places, "a", endpoints=1) == 4
    assert not places.has_one("a", "we_a_0")
    assert taken_by(places, "a", endpoints=2) == 4


def test_what_is_given_back_can_be_taken_by_whoever_has_less() -> None:
    places = Places(4, 4)
    assert (taken_by(places, "a"), taken_by(places, "b"), taken_by(places, "c")) == (2, 1, 1)
    places.give_back("a", "we_a_0")
    assert not any(places.take(account, f"we_{account}_0") for account in "abc")
    assert places.take("d", "we_d")


def test_a_copy_changes_nothing() -> None:
    places = Places(4, 4)
    copy = places.copy()
    assert copy.take("a", "we_a")
    assert (copy.free, places.free) == (3, 4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("123"))))
@pytest.mark.parametrize("count", [1, 2, 7])
def test_none_is_lost_or_made(count: int, asked: list[tuple[str, str]]) -> None:
    places, had = Places(count, 3), []
    for account, endpoint in asked:
        has_one = places.has_one(account, account + endpoint)
        taken = places.take(account, account + endpoint)
        assert taken == has_one
        had += [(account, account + endpoint)] * taken
        assert places.free == count - len(had) >= 0
        assert max(Counter(endpoint for _, endpoint in had).values(), default=0) <= 3
    for account, endpoint in had:
        places.give_back(account, endpoint)
    assert places == Places(count, 3)
