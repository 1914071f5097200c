"""The recordings that the explainer plays: as the engine makes them, and as their captions say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.payments.explainer import PATH, SCENARIOS, TOUR_S, recordings

KEPT = json.loads(PATH.read_text())
SCENES = {scene["name"]: scene["frames"] for scene in KEPT["scenarios"]}


@pytest.mark.slow
def test_the_recordings_are_what_the_engine_does_now() -> None:
    assert PATH.read_text() == recordings(), "run ./dev docs, and look at the difference"


def test_there_is_one_for_every_scenario_and_all_of_them_last_a_minute() -> None:
    assert len(SCENES) == len(SCENARIOS) == 6
    assert KEPT["tour_s"] == TOUR_S == 60


@pytest.mark.parametrize("name", SCENES)
def test_every_scenario_ends_with_one_charge(name: str) -> None:
    assert all(len(frame["charges"]) <= 1 for frame in SCENES[name])
    assert SCENES[name][-1]["charges"] == [2000]


@pytest.mark.parametrize("name", SCENES)
def test_captions_can_be_read_in_the_time_that_they_stay(name: str) -> None:
    for frame in SCENES[name]:
        assert 10 <= len(frame["caption"]) <= 52
        assert frame["detail"]


def answers(name: str) -> list[dict[str, Any]]:
    arrows = [frame["arrow"] for frame in SCENES[name]]
    return [arrow["answer"] for arrow in arrows if arrow and arrow.get("answer")]


def test_whoever_asks_again_gets_the_same_bytes() -> None:
    for name in ("lost-answer", "double-click", "mismatch", "zombie"):
        fields_ = {answer["body"] for answer in answers(name) if answer["status"] == 200}
        assert fields_ == {'{"id": "ch_1", "amount": 2000}'}, name


def test_the_zombie_is_fenced_off() -> None:
    fences = [frame["record"]["fence"] for frame in SCENES["zombie"]]
    events = [event["event"] for frame in SCENES["zombie"] for event in frame["events"]]

    assert fences == [1, 1, 2, 2, 2, 2, 2]
    assert "LeaseWasLost" in events
    assert SCENES["zombie"][-1]["network_asked"] == 2


def test_a_dead_server_s_lease_is_over_before_another_takes_over() -> None:
    states = [(frame["record"] or {}).get("state") for frame in SCENES["crash"]]

    assert states == [None, "running", "running", "lapsed", "running", "running", "completed"]
