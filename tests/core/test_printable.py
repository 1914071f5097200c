"""Text of unknown origin, made safe to show."""

import doctest

from hypothesis import given
from hypothesis import strategies as st

from oncekey._core import printable as module
from oncekey._core.printable import printable


def test_the_examples_in_the_documentation() -> None:
    assert doctest.testmod(module).failed == 0


@given(st.text())
def test_whatever_comes_is_one_line_of_printable_characters(text: str) -> None:
    assert printable(text).isprintable()


@given(st.text(), st.integers(1, 300))
def test_p11_no_more_is_read_than_the_bound(text: str, chars_max: int) -> None:
    # An escape takes at most ten characters: \U0010ffff.
    assert len(printable(text, chars_max)) <= 10 * chars_max


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=200))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert printable(text) == text
