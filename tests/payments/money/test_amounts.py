import pytest

from payments.money.amounts import CURRENCIES, format_amount


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (2000, "eur", "20.00 EUR"),
        (5, "usd", "0.05 USD"),
        (2000, "jpy", "2000 JPY"),
        (2000, "kwd", "2.000 KWD"),
        (-150, "eur", "-1.50 EUR"),
        (500, "ugx", "5.00 UGX"),
        (500, "isk", "5.00 ISK"),
    ],
)
def test_amounts_are_shown_as_people_write_them(amount: int, currency: str, text: str) -> None:
    assert format_amount(amount, currency) == text


def test_currencies_are_iso_codes_in_lower_case() -> None:
    assert len(CURRENCIES) > 130
    assert all(len(each) == 3 and each.islower() for each in CURRENCIES)
