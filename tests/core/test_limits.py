from __future__ import annotations

import math

import pytest

from oncekey.core.limits import must_be_limits, must_be_seconds
from oncekey.errors import Misuse


def test_limits_are_numbers() -> None:
    must_be_limits("Limits", {"lease_s": 0.5, "retry_s_min": 3, "batch_max": 3})


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan, "3", None])
@pytest.mark.parametrize("name", ["lease_s", "batch_max"])
def test_what_limits_nothing_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(Misuse) as refused:
        must_be_limits("Limits", {name: wrong})
    assert str(refused.value) == f"Limits({name}={wrong!r}): must be a number, more than 0"


def test_no_seconds_are_seconds() -> None:
    must_be_seconds({"recent_s": 0, "drain_s_max": 0.5})
    for wrong in (-1.0, math.inf, math.nan, "3", None):
        with pytest.raises(Misuse, match=f"recent_s={wrong!r}: must be a number of seconds"):
            must_be_seconds({"recent_s": wrong})


def test_what_is_counted_is_whole() -> None:
    with pytest.raises(Misuse, match=r"Limits\(batch_max=1.5\): must be a whole number"):
        must_be_limits("Limits", {"batch_max": 1.5})
