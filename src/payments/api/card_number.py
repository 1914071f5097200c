"""Card numbers: how they are recognised among other numbers.

By their length, by how those of the large brands begin, and by the check digit. Of random numbers
of sixteen digits one in forty still looks like one; times of our days do not.
"""

from __future__ import annotations

import re

from payments.api import cards

# Together, or in groups as they stand on a card. A UUID has no such groups, a fraction is none.
_WRITTEN = re.compile(
    r"(?<![^\W_])(?<!\d\.)"
    r"(?:\d{13,19}|\d{4}([ .-])\d{4}\1\d{4}\1\d{4}|\d{4}([ .-])\d{6}\2\d{4,5})"
    r"(?![^\W_])"
)
_BRANDS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]|2[2-7])\d{14}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3[0689]\d{12}"  # Diners Club
    r"|35\d{14}"  # JCB
    r"|6(?:011|2\d\d|4[4-9]\d|5\d\d)\d{12,15}"  # Discover, UnionPay
)


def is_in(text: str) -> bool:
    """Whether a text holds the number of a card that is none of the test cards.

    >>> [is_in(text) for text in ("4111111111111111", "4111111111111112", "4242424242424242")]
    [True, False, False]
    """
    return any(_is_one(re.sub(r"\D", "", found[0])) for found in _WRITTEN.finditer(text))


def _is_one(number: str) -> bool:
    if not _BRANDS.fullmatch(number) or number in cards.NUMBERS:
        return False
    return sum(_counted(digit, place) for place, digit in enumerate(reversed(number))) % 10 == 0


def _counted(digit: str, place: int) -> int:
    """What a digit adds to the sum that must be a multiple of ten (Luhn)."""
    return sum(divmod(int(digit) * (1 + place % 2), 10))
