"""JSON numbers in a normal form: equal for every spelling of a value, and never much longer than
what was sent.

Whole numbers are exact, whether written with digits, a point or an exponent. Up to
`DIGITS_PLAIN_MAX` digits they are written as digits. Longer ones are their digits without the zeros
at the end, and the number of these zeros: `1e308` would have 309 digits otherwise, and a small body
would become a large one.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from math import isnan, nan

Number = int | float | list[float]

DIGITS_PLAIN_MAX = 40
DIGITS_MAX = 4_300
"""Of a whole number; Python's own default limit too."""
CHARS_MAX = 65_536
"""Of any other number: parsing a megabyte takes a tenth of a second without a pause."""

LONG = b"[NaN,NaN,"
"""How the normal form of a long number begins, written as JSON. No JSON text contains NaN."""

# Up to so many digits, no two decimals give the same float.
_DIGITS_EXACT = 15


class TooManyDigitsError(ValueError):
    """A whole number of more than `DIGITS_MAX` digits, or another one of more than `CHARS_MAX`
    characters.
    """


def integer(text: str) -> Number:
    """Normalize a number without point and exponent."""
    if len(text) <= DIGITS_PLAIN_MAX:
        return int(text)
    if len(text.removeprefix("-")) > DIGITS_MAX:
        raise TooManyDigitsError
    return _long(text, 0)


def number(text: str) -> Number:
    """Normalize a number with a point or an exponent: 1.0 and 1e0 are the whole number 1.

    One that no float holds exactly as written counts by its spelling, after one NaN.
    """
    if len(text) > CHARS_MAX:
        raise TooManyDigitsError
    value = float(text)
    if not value.is_integer():
        if repr(value) == text:
            return value
    elif len(text) <= _DIGITS_EXACT and 1 <= abs(value) < 10**_DIGITS_EXACT:
        return int(value)
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits
        return by_spelling(text)
    if not exact:  # whatever its exponent
        return 0
    if value.is_integer() and exact == exact.to_integral_value():
        if exact.adjusted() < DIGITS_PLAIN_MAX:
            return int(exact)
        sign, digits, exponent = exact.as_tuple()
        return _long("-" * sign + "".join(map(str, digits)), int(exponent))
    return value if exact == Decimal(repr(value)) else by_spelling(text)


def by_spelling(text: str) -> Number:
    """Return a number that counts by its spelling."""
    return [nan, *text.encode()]


def _long(digits: str, exponent: int) -> Number:
    """Normalize the whole number `digits` times ten to the `exponent`."""
    significant = digits.rstrip("0")
    zeros = exponent + len(digits) - len(significant)
    if len(significant.removeprefix("-")) + zeros <= DIGITS_PLAIN_MAX:
        return int(significant + "0" * zeros)
    return [nan, nan, zeros, *significant.encode()]


# ------------------------------------------------------------- for fingerprints of version 1


def integer_v1(text: str) -> Number:
    return int(text) if len(text) <= DIGITS_PLAIN_MAX else _with_digits(integer(text))


def number_v1(text: str) -> Number:
    return _with_digits(number(text))


def _with_digits(found: Number) -> Number:
    """Write a whole number with all its digits."""
    if not isinstance(found, list) or not isnan(found[1]):
        return found
    _, _, zeros, *significant = found
    return int(bytes(map(int, significant)) + b"0" * int(zeros))
