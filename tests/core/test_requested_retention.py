"""The retention that a client asks for, within the policy's limits."""

from __future__ import annotations

import pytest

from oncekey._core.problems import Kind, Problem
from oncekey._core.requested_retention import declared_retention_s

LIMITS = (60.0, 3600.0)


@pytest.mark.parametrize(
    ("asked", "given"), [(b"60", 60), (b" 3600\t", 3600), (b"061", 61), (b"59", 60), (b"0", 60)]
)
def test_what_is_asked_for_is_given_and_never_less_than_the_shortest(
    asked: bytes, given: float
) -> None:
    assert declared_retention_s([asked], LIMITS) == given


@pytest.mark.parametrize("asked", [b"3601", b"9999999999"])
def test_more_than_the_longest_is_refused_not_cut(asked: bytes) -> None:
    """Or its client would count on what it does not get."""
    problem = declared_retention_s([asked], LIMITS)
    assert isinstance(problem, Problem)
    assert problem.kind is Kind.MALFORMED_REQUEST
    assert "3600 seconds" in problem.detail


@pytest.mark.parametrize(
    "lines",
    [[b""], [b"-1"], [b"1.5"], [b"1h"], [b"1e3"], [b"10000000000"], [b"60", b"60"], [b"60, 60"]],
)
def test_what_is_no_number_of_seconds_is_refused(lines: list[bytes]) -> None:
    problem = declared_retention_s(lines, LIMITS)
    assert isinstance(problem, Problem)
    assert "such as 86400" in problem.detail
