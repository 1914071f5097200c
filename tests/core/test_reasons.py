"""Why something went wrong: labels for metrics, sentences for people."""

import pytest

from oncekey._core.policy import DEFAULTS, Policy
from oncekey._core.reasons import LossKind, StoreFailure


def test_every_loss_has_a_sentence() -> None:
    sentences = {kind.sentence(DEFAULTS) for kind in LossKind}

    assert len(sentences) == len(LossKind)
    assert not any("{" in sentence for sentence in sentences)


def test_a_sentence_names_the_limit_of_the_policy() -> None:
    policy = Policy(run_s_max=2.5).over(DEFAULTS)

    assert LossKind.RAN_TOO_LONG.sentence(policy) == "ran longer than run_s_max=2.5"


@pytest.mark.parametrize("reason", [LossKind.TAKEN_OVER, StoreFailure.NOT_SENT])
def test_hooks_may_compare_with_plain_strings(reason: str) -> None:
    """The fields of events are strings."""
    assert reason in ("taken-over", "not sent")
    assert f"{reason}" in ("taken-over", "not sent")
