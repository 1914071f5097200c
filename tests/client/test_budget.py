from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.client._budget import Buckets, RetryBudget
from oncekey.errors import Misuse

moves = st.lists(st.sampled_from(["request", "retry", "wait"]), max_size=200)


@given(moves=moves)
def test_retries_never_exceed_what_requests_and_time_have_earned(moves: list[str]) -> None:
    budget = RetryBudget(tokens_max=5.0, tokens_per_request=0.25, tokens_per_s=0.5)
    buckets = Buckets(budget)
    now, requests, retries = 0.0, 0, 0
    for move in moves:
        if move == "request":
            buckets.earn("a", now)
            requests += 1
        elif move == "wait":
            now += 1.0
        else:
            retries += buckets.spend("a", now)

    assert retries <= 5.0 + 0.25 * requests + 0.5 * now


def test_hosts_do_not_pay_for_each_other() -> None:
    buckets = Buckets(RetryBudget(tokens_max=1.0, tokens_per_s=0.0))

    assert buckets.spend("sick", 0.0)
    assert not buckets.spend("sick", 0.0)
    assert buckets.spend("healthy", 0.0)


def test_time_heals() -> None:
    buckets = Buckets(RetryBudget(tokens_max=1.0, tokens_per_s=0.5))
    buckets.spend("a", 0.0)

    assert not buckets.spend("a", 1.0)
    assert buckets.spend("a", 2.0)


def test_requests_earn_retries_up_to_the_most() -> None:
    buckets = Buckets(RetryBudget(tokens_max=1.0, tokens_per_request=0.5, tokens_per_s=0.0))
    for earned, may in [(0, True), (1, False), (1, True), (9, True), (0, False)]:
        for _ in range(earned):
            buckets.earn("a", 0.0)
        assert buckets.spend("a", 0.0) is may


def test_only_so_many_hosts_are_remembered() -> None:
    buckets = Buckets(RetryBudget(tokens_max=1.0, tokens_per_s=0.0), hosts_max=2)
    for host in "abc":
        buckets.spend(host, 0.0)

    assert not buckets.spend("c", 0.0)
    assert buckets.spend("a", 0.0)


@pytest.mark.parametrize(
    "wrong",
    [{"tokens_max": 0.5}, {"tokens_max": float("nan")}, {"tokens_per_s": -1}, {"tokens_max": "3"}],
    ids=str,
)
def test_a_budget_of_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(wrong))):
        RetryBudget(**wrong)
