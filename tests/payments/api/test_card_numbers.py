"""Which numbers are taken for those of cards."""

from __future__ import annotations

import uuid

import pytest

from payments.api import cards
from payments.api.card_filter import contains_card_number


@pytest.mark.parametrize(
    "number",
    [
        *("4111111111111111", "4222222222222", "4111111111111111110", "5105105105105118"),
        *("2223003122003222", "378734493671000", "30569309025904", "3530111333300000"),
        *("6011000990139424", "6212341111111111116"),
    ],
)
def test_those_of_all_brands_are_recognised_wherever_they_stand(number: str) -> None:
    for text in ("{}", "order-{}", "cus_{}-17", "a {}, b", "/v1/charges/{}/capture", "=\u00a0{}."):
        assert contains_card_number(text.format(number))
    wrong = f"{number[:-1]}{(int(number[-1]) + 1) % 10}"
    for text in (wrong, f"x{number}", f"{number}0000000", f"0.{number}", number[:12]):
        assert not contains_card_number(text)


@pytest.mark.parametrize(
    "grouped", ["4111 1111 1111 1111", "4111-1111-1111-1111", "3787.344936.71000"]
)
def test_in_groups_as_on_a_card_too(grouped: str) -> None:
    assert contains_card_number(f"my card: {grouped}")
    assert not contains_card_number(f"12345678-{grouped}111111")


def test_test_cards_are_for_testing() -> None:
    assert not any(contains_card_number(f"order-{number}") for number in cards.NUMBERS)


def test_times_and_ids_are_no_cards() -> None:
    """Of them people make keys."""
    for second in range(1000):
        for text in (
            f"20261116{second:06}",
            f"20261116180301{second:03}",
            f"17{second:011}",
            f"17{second:014}",
            f"17{second:017}",
            f"19{second:017}",
            str(uuid.UUID(int=second * 0x1234567890123456789)),
            f"12345678-1234-4111-8111-1111111{second:05}",
        ):
            assert not contains_card_number(text)
