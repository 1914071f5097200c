"""Quotas: what is too much, and where a record is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.problems import Kind
from oncekey._core.quota import (
    SPANS_MAX,
    Quota,
    Span,
    Usage,
    account_id,
    check_quota,
    is_nearly_used,
    length_s,
    span_of,
    spans_ahead,
)
from oncekey.errors import Misuse

NOW = 1_800_000_000.0
RETENTIONS = st.floats(0.001, 1e8)
MOMENTS = st.floats(0, 4e9)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "at least one"),
        ({"records_max": 0}, "records_max=0"),
        ({"bytes_max": -1}, "bytes_max=-1"),
        ({"records_max": 1.5}, "whole number"),
        ({"bytes_max": "1 GB"}, "whole number"),
    ],
)
def test_a_quota_is_whole_numbers_above_0(given: dict[str, Any], word: str) -> None:
    with pytest.raises(Misuse, match=word):
        Quota(**given)


@pytest.mark.parametrize(
    ("used", "word"),
    [
        (Usage(9, 99), None),
        (Usage(10, 0), "10 records"),
        (Usage(0, 100), "100 bytes"),
        (Usage(11, 500), "10 records"),
    ],
)
def test_e49_as_much_as_is_allowed_is_enough(used: Usage, word: str | None) -> None:
    problem = check_quota(Quota(records_max=10, bytes_max=100), used)
    if word is None:
        assert problem is None
    else:
        assert problem is not None
        assert (problem.kind, problem.retryable) == (Kind.OVER_QUOTA, True)
        assert word in problem.detail


def test_what_is_not_limited_is_not_counted() -> None:
    assert check_quota(Quota(records_max=10), Usage(0, 10**12)) is None
    assert check_quota(Quota(bytes_max=10), Usage(10**12, 0)) is None


@pytest.mark.parametrize(
    ("since", "near"),
    [(Usage(), False), (Usage(9, 0), False), (Usage(10, 0), True), (Usage(0, 100), True)],
)
def test_near_is_a_part_of_what_was_left(since: Usage, near: bool) -> None:
    quota = Quota(records_max=100, bytes_max=1000)
    assert is_nearly_used(quota, Usage(20, 200), since, 1 / 8) is near


@given(RETENTIONS, MOMENTS)
def test_a_record_counts_for_as_long_as_it_is_there_and_a_quarter_longer(
    retention_s: float, now: float
) -> None:
    span = span_of(retention_s, now)
    assert span in spans_ahead(span.length_s, now)
    assert span.length_s <= retention_s / 4
    end = now + retention_s
    assert end <= span.end * (1 + 1e-9)
    assert span.end <= (end + span.length_s) * (1 + 1e-9)
    assert span not in spans_ahead(span.length_s, span.end + span.length_s)


@given(RETENTIONS)
def test_eight_spans_are_enough_for_a_retention(retention_s: float) -> None:
    assert length_s(retention_s) * SPANS_MAX >= retention_s


def test_every_tenant_and_span_has_an_account_of_its_own() -> None:
    span = Span(4096.0, 7)
    ids = {
        account_id("a", span),
        account_id("b", span),
        account_id("a", Span(4096.0, 8)),
        account_id("a", Span(2048.0, 7)),
    }
    assert len(ids) == 4
    assert account_id("a", Span(4096.0, 7)) in ids
