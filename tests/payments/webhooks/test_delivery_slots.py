"""Places: nobody has all of them, and who has none finds one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payments.webhooks.delivery_slots import DeliverySlots


def taken_by(slots: DeliverySlots, account: str, endpoints: int = 16) -> int:
    """How many an account gets that wants all, with so many endpoints."""
    wanted = [f"we_{account}_{number}" for number in range(endpoints)] * slots.count
    return sum(slots.take(account, endpoint) for endpoint in wanted)


def test_p11_an_account_never_has_more_than_it_leaves_to_others() -> None:
    slots = DeliverySlots(32, 4)
    assert [taken_by(slots, account) for account in "abcdef"] == [16, 8, 4, 2, 1, 1]
    assert slots.free == 0


def test_an_endpoint_has_a_few() -> None:
    slots = DeliverySlots(32, 4)
    assert taken_by(slots, "a", endpoints=1) == 4
    assert not slots.has_free("a", "we_a_0")
    assert taken_by(slots, "a", endpoints=2) == 4


def test_what_is_given_back_can_be_taken_by_whoever_has_less() -> None:
    slots = DeliverySlots(4, 4)
    assert (taken_by(slots, "a"), taken_by(slots, "b"), taken_by(slots, "c")) == (2, 1, 1)
    slots.release("a", "we_a_0")
    assert not any(slots.take(account, f"we_{account}_0") for account in "abc")
    assert slots.take("d", "we_d")


def test_a_copy_changes_nothing() -> None:
    slots = DeliverySlots(4, 4)
    copy = slots.copy()
    assert copy.take("a", "we_a")
    assert (copy.free, slots.free) == (3, 4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("123"))))
@pytest.mark.parametrize("count", [1, 2, 7])
def test_none_is_lost_or_made(count: int, asked: list[tuple[str, str]]) -> None:
    slots, had = DeliverySlots(count, 3), []
    for account, endpoint in asked:
        has_free = slots.has_free(account, account + endpoint)
        taken = slots.take(account, account + endpoint)
        assert taken == has_free
        had += [(account, account + endpoint)] * taken
        assert slots.free == count - len(had) >= 0
        assert max(Counter(endpoint for _, endpoint in had).values(), default=0) <= 3
    for account, endpoint in had:
        slots.release(account, endpoint)
    assert slots == DeliverySlots(count, 3)
