"""How long a record is remembered."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Answer, Record, State, decode_headers, encode_headers
from oncekey._core.retention import (
    answer_left_s,
    blank_answer,
    is_tombstone,
    requested_retention_s,
    tombstone_s,
    with_tombstone,
    without_tombstone,
)
from tests.core.test_record import record

LIMITS = (60.0, 3600.0)


@pytest.mark.parametrize(
    ("asked", "given"), [(b"60", 60), (b" 3600\t", 3600), (b"061", 61), (b"59", 60), (b"0", 60)]
)
def test_what_is_asked_for_is_given_and_never_less_than_the_shortest(
    asked: bytes, given: float
) -> None:
    assert requested_retention_s([asked], LIMITS) == given


@pytest.mark.parametrize("asked", [b"3601", b"9999999999"])
def test_more_than_the_longest_is_refused_not_cut(asked: bytes) -> None:
    """Or its client would count on what it does not get."""
    problem = requested_retention_s([asked], LIMITS)
    assert isinstance(problem, Problem)
    assert problem.kind is Kind.MALFORMED_REQUEST
    assert "3600 seconds" in problem.detail


@pytest.mark.parametrize(
    "lines",
    [[b""], [b"-1"], [b"1.5"], [b"1h"], [b"1e3"], [b"10000000000"], [b"60", b"60"], [b"60, 60"]],
)
def test_what_is_no_number_of_seconds_is_refused(lines: list[bytes]) -> None:
    problem = requested_retention_s(lines, LIMITS)
    assert isinstance(problem, Problem)
    assert "such as 86400" in problem.detail


ANSWER = Answer(201, ((b"location", b"/orders/7"),), b"created")


def stored_record(answer: Answer, expires_in_s: float) -> Record:
    stored = dataclasses.replace(answer, headers=decode_headers(encode_headers(answer.headers)))
    return record(State.COMPLETED, answer=stored, expires_in_s=expires_in_s)


@given(st.floats(0, 1e9), st.floats(-1e9, 1e9))
def test_what_is_left_of_the_answer_is_what_the_tombstone_leaves(
    seconds: float, left_s: float
) -> None:
    found = stored_record(with_tombstone(ANSWER, seconds), left_s)
    assert tombstone_s(found) == seconds
    assert answer_left_s(found) == left_s - seconds
    assert found.answer is not None
    assert without_tombstone(found.answer) == ANSWER


def test_without_a_tombstone_the_answer_is_kept_as_it_is() -> None:
    assert with_tombstone(ANSWER, 0.0) is ANSWER
    assert without_tombstone(ANSWER) is ANSWER
    assert answer_left_s(stored_record(ANSWER, 7.0)) == 7.0
    assert answer_left_s(record(State.RELEASED, expires_in_s=7.0)) == 7.0


def test_a_blank_answer_keeps_its_status_and_its_tombstone() -> None:
    blanked = blank_answer(with_tombstone(ANSWER, 60.0))
    assert without_tombstone(blanked) == Answer(201, (), None) == blank_answer(ANSWER)
    assert tombstone_s(stored_record(blanked, 100.0)) == 60.0
    assert blank_answer(blanked) == blanked


def test_what_was_blanked_is_over_for_good() -> None:
    """Also where the store's clock is set back, and its answer would not be over yet."""
    answer = with_tombstone(ANSWER, 60.0)
    assert [is_tombstone(stored_record(answer, left_s)) for left_s in (61.0, 60.0, 1.0)] == [
        False,
        True,
        True,
    ]
    assert is_tombstone(stored_record(blank_answer(answer), 61.0))
    assert not is_tombstone(
        stored_record(blank_answer(ANSWER), 61.0)
    )  # purged: its retention is not over


def test_only_the_first_line_counts() -> None:
    """A handler cannot send such a name, and what is kept of its headers comes after."""
    lines = (*ANSWER.headers, (b":tombstone-s", b"60.0"))
    assert tombstone_s(stored_record(Answer(201, lines, b""), 100.0)) == 0.0
