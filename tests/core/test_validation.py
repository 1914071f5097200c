from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from oncekey import Runtime
from oncekey._core.validation import must_be_limits, must_be_seconds
from oncekey.client import Journal, SqlJournal, retrying
from oncekey.errors import Misuse
from oncekey.messaging import Outbox
from oncekey.metrics._measurements import Measure
from oncekey.webhooks import Receiver, Schedule, new_secret


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


TRANSPORT = httpx2.HTTPTransport()
PUBLIC: dict[str, Callable[..., object]] = {
    "tolerance_s": lambda given: receiver(tolerance_s=given),
    "body_bytes_max": lambda given: receiver(body_bytes_max=given),
    "payload_bytes_max": lambda given: Outbox("sqlite:///keys.db", payload_bytes_max=given),
    "operations_max": lambda given: Measure(operations_max=given),
    "retrying.body_bytes_max": lambda given: retrying(TRANSPORT, body_bytes_max=given),
    "retrying.answer_bytes_max": lambda given: retrying(TRANSPORT, answer_bytes_max=given),
    "Journal.retention_s": lambda given: Journal("intents.db", retention_s=given),
    "SqlJournal.retention_s": lambda given: SqlJournal(retention_s=given),
    "retries_s": lambda given: Schedule(retries_s=(5.0, given)),
}


def receiver(**numbers: float) -> Receiver:
    return Receiver(Runtime("memory://"), name="bills", secrets=[new_secret()], **numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan, "3"])
@pytest.mark.parametrize("name", PUBLIC)
def test_p11_whoever_takes_a_limit_refuses_what_is_none(
    name: str, wrong: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limit = name.rpartition(".")[2]
    with pytest.raises(Misuse, match=rf"\({limit}=.*\): must be a number, more than 0"):
        PUBLIC[name](wrong)
    PUBLIC[name](300)
