"""Keys that are older than memory."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.http_dates import http_date
from oncekey._core.key_age import check_first_sent, check_key_age, key_time
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem
from oncekey.client.keys import MakeKey, ulid, uuid4, uuid7

WALLS = st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)


@given(wall=WALLS, chance=st.binary(min_size=16, max_size=16))
def test_time_ordered_keys_tell_it(wall: float, chance: bytes) -> None:
    for key in (uuid7(wall, chance), ulid(wall, chance)):
        for form in (key, key.upper(), key.lower()):
            assert key_time(form) == pytest.approx(wall, abs=0.0011)
    assert key_time(uuid7(wall, chance).replace("-", "")) == pytest.approx(wall, abs=0.0011)


@given(chance=st.binary(min_size=16, max_size=16))
def test_random_keys_do_not(chance: bytes) -> None:
    assert key_time(uuid4(1e9, chance)) is None


@pytest.mark.parametrize(
    "key",
    [
        *("order-17", "1700000000", "", "018bcfe5-6800-7000-8000-00000000000"),
        *("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "01HF7YAT00000000000000000U", str(uuid.NAMESPACE_DNS)),
        *("018bcfe5-6800-6000-8000-000000000000", "018bcfe5-6800-7000-c000-000000000000"),
    ],
)
def test_what_only_resembles_one_does_not(key: str) -> None:
    assert key_time(key) is None


NOW = 1_800_000_000.0
RETENTION_S, AGE_S, SKEW_S = 1000.0, 700.0, 300.0
POLICY = Policy(retention_s=RETENTION_S, key_age_s_max=AGE_S, clock_skew_s=SKEW_S).settled()
STRICT = Policy(key_time_required=True).over(POLICY).settled()


def uuid7_of(made_at: float) -> str:
    stamp = f"{round(made_at * 1000):012x}"
    return f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"


def check(key: str, first_sent: float | None = None, policy: Policy = POLICY) -> Problem | None:
    return check_key_age(key, first_sent, NOW, policy)


@pytest.mark.parametrize("age_s", [0, 1, 699, 700, -1, -300])
def test_e67_a_key_that_memory_covers_may_run(age_s: float) -> None:
    assert check(uuid7_of(NOW - age_s)) is None


@pytest.mark.parametrize(("age_s", "word"), [(701, "700 seconds ago"), (-301, "300 seconds from")])
def test_e67_one_that_memory_does_not_cover_may_not(age_s: float, word: str) -> None:
    problem = check(uuid7_of(NOW - age_s))
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
    assert check(make(NOW - 699, bytes(16))) is None
    assert check(make(NOW - 701, bytes(16))) is not None


def test_what_the_client_says_counts_more_than_its_key() -> None:
    assert check(uuid7_of(NOW), first_sent=NOW - 701) is not None
    assert check(uuid7_of(NOW - 701), first_sent=NOW) is None


def test_a_key_that_tells_nothing_runs_unless_it_must_tell() -> None:
    for key in ("4d9f1e9a-5f6b-4c6e-9d52-0c0a35d3d0f5", "order-17"):
        assert check(key) is None
        problem = check(key, policy=STRICT)
        assert problem is not None
        assert problem.kind is Kind.INVALID_KEY
        assert "UUID of version 7 or a ULID" in problem.detail
        assert key not in problem.detail
    assert check("order-17", first_sent=NOW, policy=STRICT) is None


def test_without_a_limit_age_does_not_matter() -> None:
    assert check_key_age(uuid7_of(0), None, NOW, Policy().settled()) is None


HEADER = "Repeatability-First-Sent"
FIRST_SENT_RETENTION_S = 600.0


@pytest.mark.parametrize("age_s", [0, 1, 299, 300, -1, -300])
def test_e67_within_the_window_a_request_may_run(age_s: int) -> None:
    """Azure Communication Services documents a window of 5 minutes."""
    assert check_first_sent([http_date(NOW - age_s)], HEADER, NOW, FIRST_SENT_RETENTION_S) is None


@pytest.mark.parametrize(("age_s", "where"), [(301, "before"), (86_400, "before"), (-301, "after")])
def test_e67_outside_the_window_it_is_refused(age_s: int, where: str) -> None:
    """Azure answers 412 and tells users to look at their clocks; so does this."""
    problem = check_first_sent([http_date(NOW - age_s)], HEADER, NOW, FIRST_SENT_RETENTION_S)
    assert problem is not None
    assert problem.kind is Kind.TOO_OLD
    assert not problem.retryable
    assert f"300 seconds {where} this server's time" in problem.detail
    assert "clock" in problem.detail


@given(
    sent=st.integers(0, 10_000), ahead_s=st.integers(-2000, 2000), retried_s=st.integers(0, 3000)
)
def test_e67_no_retry_is_accepted_after_its_record_may_be_gone(
    sent: int, ahead_s: int, retried_s: int
) -> None:
    """The client's clock is wrong by `ahead_s`, on the first try as on the retry. If the first try
    was accepted, its record was there for one retention after it was sent.
    """
    stamp = [http_date(NOW + sent + ahead_s)]
    first = check_first_sent(stamp, HEADER, NOW + sent, FIRST_SENT_RETENTION_S)
    retry = check_first_sent(stamp, HEADER, NOW + sent + retried_s, FIRST_SENT_RETENTION_S)
    if first is None and retry is None:
        assert retried_s <= FIRST_SENT_RETENTION_S


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b""],
        [b"yesterday"],
        [b"1800000000"],
        [b"2027-01-15T08:00:00Z"],
        [b"\xff"],
        [http_date(NOW), http_date(NOW)],
    ],
)
def test_a_stamp_that_cannot_be_read_is_malformed(lines: list[bytes]) -> None:
    problem = check_first_sent(lines, HEADER, NOW, FIRST_SENT_RETENTION_S)
    assert problem is not None
    assert problem.kind is Kind.MALFORMED_REQUEST
    assert HEADER in problem.detail
    assert "yesterday" not in problem.detail


def test_blanks_around_a_stamp_are_not_part_of_it() -> None:
    assert (
        check_first_sent([b" " + http_date(NOW) + b"\t"], HEADER, NOW, FIRST_SENT_RETENTION_S)
        is None
    )
