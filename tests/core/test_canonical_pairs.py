"""Canonical forms (E21) and queries (E23): by their decoded pairs, and never looser."""

from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.canonical import (
    FIELDS_MAX,
    BadBody,
    canonical_form,
    canonical_query,
    parse_form,
    parse_pairs,
    parse_query,
)


def form(encoded: bytes, without: str | None = None) -> bytes:
    return canonical_form(parse_pairs(encoded), without=without)


def query(encoded: bytes, without: str | None = None) -> bytes:
    return canonical_query(parse_pairs(encoded), without=without)


@pytest.mark.parametrize("behind", range(5))
@pytest.mark.parametrize("end", [b"%41", b"%%41", b"4%41%4", b"%zz%4"])
def test_e21_a_long_value_is_unescaped_as_a_short_one(behind: int, end: bytes) -> None:
    """In parts, none of which ends within an escape."""
    value = b"x" * (16_384 - behind) + end + b"%42" * 6_000
    assert parse_pairs(b"a=" + value) == [(b"a", unquote_to_bytes(value))]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a=x+y", b"a=x%20y"),
        (b"a=%7E", b"a=~"),
        (b"a=%c3%a9", b"a=%C3%A9"),
        (b"a%5Bb%5D=1", b"a[b]=1"),
        (b"a", b"a="),
        (b"a=1&&b=2&", b"a=1&b=2"),
    ],
)
def test_e21_e23_spellings_of_the_same_pairs_are_equal(one: bytes, other: bytes) -> None:
    assert form(one) == form(other)
    assert query(one) == query(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a=1&b=2", b"b=2&a=1"),
        (b"a=1&b=2&a=3", b"b=2&a=1&a=3"),
        (
            b"type=debit&account=a&amount=5&type=credit&account=b",
            b"type=debit&account=a&type=credit&account=b&amount=5",
        ),
    ],
)
def test_p5_e21_the_order_of_fields_counts_in_a_form_alone(one: bytes, other: bytes) -> None:
    assert form(one) != form(other)
    assert query(one) == query(other)
    assert canonical_form(parse_pairs(one), version=1) == query(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a=1&a=2", b"a=2&a=1"),
        (b"a=", b""),
        (b"a=+", b"a=%2B"),
        (b"a=%FF", b"a=%FE"),
        (b"a=1&b=2", b"a=1%26b%3D2"),
        (b"a=b=c", b"a%3Db=c"),
        (b"a=1&b=2", b"a=2&b=1"),
        (b"a=1", b"a=1&a=1"),
        (b"a=", b"=a"),
        (b"a=1&b=", b"a=&b=1"),
    ],
)
def test_e21_e23_different_pairs_are_different(one: bytes, other: bytes) -> None:
    assert form(one) != form(other)
    assert query(one) != query(other)


def test_e21_pairs_are_decoded_in_order_with_blank_values() -> None:
    expected = [(b"b", b"x y"), (b"a", b""), (b"c", b"\xff=+"), (b"", b"1")]
    assert parse_pairs(b"b=x+y&a&c=%ff=%2b&&=1") == expected


@given(st.text("%aF0g+", max_size=30).map(str.encode))
def test_e21_long_fields_are_decoded_like_short_ones(escaped: bytes) -> None:
    padding = b"x" * 20_000
    [(short, _)], [(long, _)] = (parse_pairs(each) for each in (b"x" + escaped, padding + escaped))
    assert padding + short[1:] == long


PAIRS = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=5)


def percent(pairs: list[tuple[bytes, bytes]]) -> bytes:
    def every(text: bytes) -> bytes:
        return b"".join(b"%%%02X" % byte for byte in text)

    return b"&".join(every(name) + b"=" + every(value) for name, value in pairs)


@given(PAIRS, PAIRS)
def test_p5_e23_queries_are_equal_only_with_equal_values_for_each_name(
    one: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]]
) -> None:
    def by_name(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
        names = {name for name, _ in pairs}
        return {name: [value for key, value in pairs if key == name] for name in names}

    assert (query(percent(one)) == query(percent(other))) == (by_name(one) == by_name(other))


@given(PAIRS, PAIRS)
def test_p5_e21_forms_are_equal_only_with_equal_fields_in_equal_order(
    one: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]]
) -> None:
    assert (form(percent(one)) == form(percent(other))) == (one == other)


def test_e11_a_form_field_is_left_out() -> None:
    assert form(b"key=a&x=1&key=b", without="key") == form(b"x=1")
    assert form(b"k%65y=a&x=1", without="key") == form(b"x=1")
    assert form(b"key=a&x=1") != form(b"x=1")
    assert query(b"key=a&x=1&key=b", without="key") == query(b"x=1")


@pytest.mark.parametrize("parse", [parse_form, parse_query])
def test_p11_a_form_or_query_of_too_many_fields_is_refused(parse: Any) -> None:
    assert isinstance(parse(b"&".join([b"a"] * FIELDS_MAX)), list)
    outcome = parse(b"&".join([b"a"] * (FIELDS_MAX + 1)))
    assert isinstance(outcome, BadBody)
    assert str(FIELDS_MAX) in outcome.reason
