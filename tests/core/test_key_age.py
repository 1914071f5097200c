"""E67: a key that is older than memory is not run as new, where it tells its age."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.key_age import check_key_age
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem
from oncekey.client.keys import MakeKey, ulid, uuid7

NOW = 1_800_000_000.0
RETENTION_S, AGE_S, SKEW_S = 1000.0, 700.0, 300.0
POLICY = Policy(retention_s=RETENTION_S, key_age_s_max=AGE_S, clock_skew_s=SKEW_S).settled()
STRICT = Policy(key_time_required=True).over(POLICY).settled()


def uuid7_of(made_at: float) -> str:
    stamp = f"{round(made_at * 1000):012x}"
    return f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"


def checked(key: str, first_sent: float | None = None, policy: Policy = POLICY) -> Problem | None:
    return check_key_age(key, first_sent, NOW, policy)


@pytest.mark.parametrize("age_s", [0, 1, 699, 700, -1, -300])
def test_e67_a_key_that_memory_covers_may_run(age_s: float) -> None:
    assert checked(uuid7_of(NOW - age_s)) is None


@pytest.mark.parametrize(("age_s", "word"), [(701, "700 seconds ago"), (-301, "300 seconds from")])
def test_e67_one_that_memory_does_not_cover_may_not(age_s: float, word: str) -> None:
    problem = checked(uuid7_of(NOW - age_s))
    assert problem is not None
    assert (problem.kind, problem.retryable) == (Kind.TOO_OLD, False)
    assert word in problem.detail
    assert "new key" in problem.detail


@given(
    ahead_s=st.floats(-SKEW_S, SKEW_S),
    done_after_s=st.floats(0, 5000),
    retried_after_s=st.floats(0, 5000),
)
def test_e67_what_runs_as_new_was_not_done_before(
    ahead_s: float, done_after_s: float, retried_after_s: float
) -> None:
    """Made at `NOW` by a clock that is wrong within the allowance, used some time later, and
    retried some time after that: if the record is gone, the key is too old.
    """
    key = uuid7_of(NOW + ahead_s)
    retried_at = NOW + done_after_s + retried_after_s
    if retried_after_s >= RETENTION_S:
        assert check_key_age(key, None, retried_at + 0.001, POLICY) is not None


@pytest.mark.parametrize("make", [uuid7, ulid])
def test_the_keys_of_our_own_client_tell_their_time(
    make: MakeKey,
) -> None:
    assert checked(make(NOW - 699, bytes(16))) is None
    assert checked(make(NOW - 701, bytes(16))) is not None


def test_what_the_client_says_counts_more_than_its_key() -> None:
    assert checked(uuid7_of(NOW), first_sent=NOW - 701) is not None
    assert checked(uuid7_of(NOW - 701), first_sent=NOW) is None


def test_a_key_that_tells_nothing_runs_unless_it_must_tell() -> None:
    for key in ("4d9f1e9a-5f6b-4c6e-9d52-0c0a35d3d0f5", "order-17"):
        assert checked(key) is None
        problem = checked(key, policy=STRICT)
        assert problem is not None
        assert problem.kind is Kind.INVALID_KEY
        assert "UUID of version 7 or a ULID" in problem.detail
        assert key not in problem.detail
    assert checked("order-17", first_sent=NOW, policy=STRICT) is None


def test_without_a_limit_age_does_not_matter() -> None:
    assert check_key_age(uuid7_of(0), None, NOW, Policy().settled()) is None
