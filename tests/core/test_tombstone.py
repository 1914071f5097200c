"""Tombstones: what stands with an answer that its record outlives."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.record import Answer, Record, State, decode_headers, encode_headers
from oncekey._core.tombstone import answer_left_s, bare, blank, is_over, tombstone_s, with_tombstone
from tests.core.test_record import record

ANSWER = Answer(201, ((b"location", b"/orders/7"),), b"created")


def kept(answer: Answer, expires_in_s: float) -> Record:
    stored = dataclasses.replace(answer, headers=decode_headers(encode_headers(answer.headers)))
    return record(State.COMPLETED, answer=stored, expires_in_s=expires_in_s)


@given(st.floats(0, 1e9), st.floats(-1e9, 1e9))
def test_what_is_left_of_the_answer_is_what_the_tombstone_leaves(
    seconds: float, left_s: float
) -> None:
    found = kept(with_tombstone(ANSWER, seconds), left_s)
    assert tombstone_s(found) == seconds
    assert answer_left_s(found) == left_s - seconds
    assert found.answer is not None
    assert bare(found.answer) == ANSWER


def test_without_a_tombstone_the_answer_is_kept_as_it_is() -> None:
    assert with_tombstone(ANSWER, 0.0) is ANSWER
    assert bare(ANSWER) is ANSWER
    assert answer_left_s(kept(ANSWER, 7.0)) == 7.0
    assert answer_left_s(record(State.RELEASED, expires_in_s=7.0)) == 7.0


def test_a_blank_answer_keeps_its_status_and_its_tombstone() -> None:
    blanked = blank(with_tombstone(ANSWER, 60.0))
    assert bare(blanked) == Answer(201, (), None) == blank(ANSWER)
    assert tombstone_s(kept(blanked, 100.0)) == 60.0
    assert blank(blanked) == blanked


def test_what_was_blanked_is_over_for_good() -> None:
    """Also where the store's clock is set back, and its answer would not be over yet."""
    answer = with_tombstone(ANSWER, 60.0)
    assert [is_over(kept(answer, left_s)) for left_s in (61.0, 60.0, 1.0)] == [False, True, True]
    assert is_over(kept(blank(answer), 61.0))
    assert not is_over(kept(blank(ANSWER), 61.0))  # purged: its retention is not over


def test_only_the_first_line_counts() -> None:
    """A handler cannot send such a name, and what is kept of its headers comes after."""
    lines = (*ANSWER.headers, (b":tombstone-s", b"60.0"))
    assert tombstone_s(kept(Answer(201, lines, b""), 100.0)) == 0.0
