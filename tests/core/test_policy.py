"""Policies: sparse layers, and what is refused with which advice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

from oncekey._core.policy import (
    DEFAULTS,
    INHERIT,
    SECONDS_MAX,
    Policy,
    Verdict,
    as_policy,
    keep_definitive,
    keep_errors_too,
    keep_success,
)
from oncekey._core.versions import Versions
from oncekey.errors import Misuse

FIELDS = [field.name for field in dataclasses.fields(Policy)]

# ------------------------------------------------------------------------------- layers


def test_a_policy_sets_only_what_it_names() -> None:
    policy = Policy(lease_s=60)
    assert policy.lease_s == 60
    assert [name for name in FIELDS if getattr(policy, name) is not INHERIT] == ["lease_s"]


def test_the_defaults_set_everything() -> None:
    assert [name for name in FIELDS if getattr(DEFAULTS, name) is INHERIT] == []
    assert DEFAULTS.settled().lease_s == 30.0


def test_a_layer_takes_what_it_does_not_set_from_the_one_below() -> None:
    profile = Policy(lease_s=10, retention_s=100, required=True)
    application = Policy(lease_s=20)
    route = Policy(retention_s=300)
    policy = route.over(application.over(profile)).settled()
    assert (policy.lease_s, policy.retention_s, policy.required) == (20, 300, True)
    assert policy.wait_s == DEFAULTS.wait_s


def test_layering_does_not_depend_on_where_it_starts() -> None:
    one, two, three = (
        Policy(lease_s=1),
        Policy(lease_s=2, wait_s=2),
        Policy(wait_s=3, scope="tenant"),
    )
    assert one.over(two).over(three) == one.over(two.over(three))


def test_a_value_that_counts_as_false_is_set_all_the_same() -> None:
    base = Policy(required=True, wait_s=5, headers_kept=["x"])
    policy = Policy(required=False, wait_s=0, headers_kept=None).over(base)
    assert (policy.required, policy.wait_s, policy.headers_kept) == (False, 0, None)


# ----------------------------------------------------------------------------- settling


def test_names_are_brought_into_one_case() -> None:
    policy = Policy(methods=["post", "Patch"], headers_kept=["Content-Type", "ETag"]).settled()
    assert policy.methods == {"POST", "PATCH"}
    assert policy.headers_kept == {"content-type", "etag"}


def test_settling_twice_is_settling() -> None:
    policy = Policy(methods=["put"], headers_kept=["ETag"]).settled()
    assert policy.settled() == policy


def test_all_headers_may_be_kept() -> None:
    assert Policy().settled().headers_kept is None
    assert Policy(headers_kept=[]).settled().headers_kept == frozenset()


# ------------------------------------------------------------------------------ refusals

POSITIVE = [
    "lease_s",
    "run_s_max",
    "retention_s",
    "unknown_retention_s",
    "lapses_max",
    "request_bytes_max",
    "bodies_bytes_max",
    "request_kept_bytes_max",
    "answer_bytes_max",
    "atomic_s_max",
    "key_chars_min",
]
NOT_NEGATIVE = ["wait_s", "waiters_per_key_max", "waiters_max", "tombstone_s", "clock_skew_s"]
TIMES = [name for name in (*POSITIVE, *NOT_NEGATIVE) if name.endswith(("_s", "_s_max"))]
COUNTS = [name for name in (*POSITIVE, *NOT_NEGATIVE) if name not in TIMES]


def refusal(**setting: Any) -> str:
    with pytest.raises(Misuse) as caught:
        Policy(**setting).settled()
    return str(caught.value)


@pytest.mark.parametrize("name", POSITIVE)
def test_zero_is_refused_where_it_makes_no_sense(name: str) -> None:
    assert refusal(**{name: 0}) == f"Policy({name}=0): must be more than 0"


@pytest.mark.parametrize("name", NOT_NEGATIVE)
def test_zero_waiting_is_allowed(name: str) -> None:
    setting: dict[str, Any] = {name: 0}
    assert getattr(Policy(**setting).settled(), name) == 0


@pytest.mark.parametrize("name", [*POSITIVE, *NOT_NEGATIVE])
@pytest.mark.parametrize(
    "value", [-1, -0.5, math.nan, math.inf, "30", None, timedelta(seconds=30)], ids=repr
)
def test_what_is_no_number_of_that_unit_is_refused(name: str, value: Any) -> None:
    wanted = f"Policy({name}={value!r}): must be a number, not negative, not infinite"
    assert refusal(**{name: value}) == wanted


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("scope", "global", "('operation', 'tenant')"),
        ("in_flight", "block", "('refuse', 'wait')"),
        ("recovery", "retry", "('rerun', 'resume', 'block', 'ask')"),
        ("store_down", "open", "('refuse', 'run')"),
        ("stale", "upcast", "('replay', 'rerun', 'refuse')"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(
    name: str, value: str, choices: str
) -> None:
    assert refusal(**{name: value}) == f"Policy({name}='{value}'): choose one of {choices}"


@pytest.mark.parametrize("name", TIMES)
def test_p11_a_time_that_not_every_store_can_count_is_refused(name: str) -> None:
    """Redis would let the handler run and then refuse to keep its answer, each time."""
    setting: dict[str, Any] = {name: SECONDS_MAX}
    assert getattr(Policy(**setting).settled(), name) == SECONDS_MAX
    assert "must be at most a century" in refusal(**{name: SECONDS_MAX + 1})


@pytest.mark.parametrize("name", COUNTS)
def test_what_is_counted_is_a_whole_number(name: str) -> None:
    wanted = f"Policy({name}=100.0): must be a whole number, such as 100"
    assert refusal(**{name: 1e2}) == wanted


@pytest.mark.parametrize("name", [*TIMES, *COUNTS])
def test_true_is_no_number(name: str) -> None:
    assert f"Policy({name}=True): " in refusal(**{name: True})


def test_p11_a_client_cannot_ask_for_more_than_a_century_either() -> None:
    assert "retention_declared_s" in refusal(retention_declared_s=(1, SECONDS_MAX + 1))


@pytest.mark.parametrize("name", ["required", "key_time_required", "atomic", "field_digests"])
@pytest.mark.parametrize("value", ["false", None, 1])
def test_what_is_neither_true_nor_false_is_refused(name: str, value: Any) -> None:
    assert refusal(**{name: value}) == f"Policy({name}={value!r}): must be True or False"


@pytest.mark.parametrize(
    "setting",
    [
        {"recovery": "blok"},
        {"retention_s": -1},
        {"lease_s": "x"},
        {"lapses_max": 0},
        {"required": "false"},
        {"methods": "POST"},
        {"headers_kept": 7},
        {"keep": True},
        {"keep": lambda status: True},
        {"ask": "find_out"},
        {"retention_declared_s": (2, 1)},
        {"key_age_s_max": 0},
        {"key_chars_min": 256},
        {"schema_version": -1},
        {"upcasts": {}},
    ],
)
def test_a_value_that_it_cannot_have_is_refused_when_it_is_made(setting: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(setting))):
        Policy(**setting)


@pytest.mark.parametrize(
    "setting",
    [{"recovery": "ask"}, {"ask": print}, {"key_time_required": True}, {"key_age_s_max": 9e5}],
)
def test_what_does_not_go_together_may_yet_inherit_the_rest(setting: dict[str, Any]) -> None:
    assert Policy(**setting) == Policy(**setting)
    assert refusal(**setting).startswith("Policy(")


def test_its_fields_alone_are_no_policy() -> None:
    assert as_policy(None) == Policy()
    assert as_policy(Policy(required=True)) == Policy(required=True)
    with pytest.raises(Misuse, match=r"^policy=… takes an oncekey\.Policy.* not a dict$"):
        as_policy({"required": True})


@pytest.mark.parametrize("given", ["POST", 7, [7], (each for each in ["POST"])])
@pytest.mark.parametrize("name", ["methods", "headers_kept"])
def test_names_are_a_list_and_not_one_string(name: str, given: object) -> None:
    """What can be gone through only once would be no names at all for the next route."""
    such = {"methods": ["POST"], "headers_kept": ["ETag"]}[name]
    wanted = f"Policy({name}={given!r}): takes a list of names, such as {such}"
    assert refusal(**{name: given}) == wanted


@pytest.mark.parametrize("name", ["", "POST /orders", "POST,PUT"])
def test_a_name_that_no_request_can_have_is_refused(name: str) -> None:
    assert f"{name!r} is not a name such as 'POST'" in refusal(methods=["PUT", name])
    assert f"{name!r} is not a name such as 'ETag'" in refusal(headers_kept=[name])


def test_p11_a_request_cannot_be_larger_than_all_that_is_held() -> None:
    """It would be refused for now, and so for ever."""
    policy = Policy(request_bytes_max=2**20, bodies_bytes_max=2**20)
    assert policy.settled().bodies_bytes_max == 2**20
    assert "Raise bodies_bytes_max" in refusal(request_bytes_max=2**30)
    assert "could never be accepted" in refusal(bodies_bytes_max=2**20)


def test_a_key_cannot_be_longer_than_a_key() -> None:
    assert Policy(key_chars_min=255).settled().key_chars_min == 255
    assert refusal(key_chars_min=256) == (
        "Policy(key_chars_min=256): keys have at most 255 characters"
    )


def test_keep_is_a_function() -> None:
    assert "takes a function from a status to a Verdict" in refusal(keep={200: True})


@pytest.mark.parametrize("version", [-1, 2**31, 1.0, True, "4", None])
def test_a_schema_version_is_a_whole_number(version: Any) -> None:
    assert "a schema version is a whole number from 0" in refusal(schema_version=version)


def test_upcasts_are_registered_on_versions() -> None:
    assert "takes an oncekey.Versions()" in refusal(upcasts={(3, 4): str})
    assert Policy(upcasts=Versions(), schema_version=2**31 - 1).settled().stale == "replay"


def test_only_what_may_be_repeated_is_run_again_for_a_version() -> None:
    recoveries: tuple[Literal["rerun", "resume"], ...] = ("rerun", "resume")
    for recovery in recoveries:
        assert Policy(stale="rerun", recovery=recovery).settled().stale == "rerun"
    assert "Policy(stale='rerun', recovery='block')" in refusal(stale="rerun", recovery="block")
    assert "recovery='ask'" in refusal(stale="rerun", recovery="ask", ask=print)
    assert "Policy(stale='rerun', atomic=True)" in refusal(stale="rerun", atomic=True)


def test_a_misspelt_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="lease"):
        Policy(lease=30)  # type: ignore[call-arg]


def test_a_bad_value_is_found_in_whichever_layer_it_stands() -> None:
    with pytest.raises(Misuse, match="lease_s=0"):
        Policy(retention_s=5).over(Policy(lease_s=0)).settled()


# ------------------------------------------------------------------------------ verdicts

KEEP, FAILED, NO_EFFECT = Verdict.KEEP, Verdict.FAILED, Verdict.NO_EFFECT

#   status  definitive  success     errors too
VERDICTS = [
    (199,   NO_EFFECT,  FAILED,     NO_EFFECT),
    (200,   KEEP,       KEEP,       KEEP),
    (201,   KEEP,       KEEP,       KEEP),
    (204,   KEEP,       KEEP,       KEEP),
    (299,   KEEP,       KEEP,       KEEP),
    (300,   KEEP,       FAILED,     KEEP),
    (302,   KEEP,       FAILED,     KEEP),
    (307,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (308,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (400,   KEEP,       FAILED,     KEEP),
    (401,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (402,   KEEP,       FAILED,     KEEP),
    (403,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (404,   KEEP,       FAILED,     KEEP),
    (405,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (407,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (408,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (409,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (413,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (415,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (422,   KEEP,       FAILED,     KEEP),
    (425,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (429,   NO_EFFECT,  NO_EFFECT,  NO_EFFECT),
    (499,   KEEP,       FAILED,     KEEP),
    (500,   FAILED,     FAILED,     KEEP),
    (503,   FAILED,     FAILED,     KEEP),
    (599,   FAILED,     FAILED,     KEEP),
]  # fmt: skip


@pytest.mark.parametrize(("status", "definitive", "success", "errors_too"), VERDICTS)
def test_what_a_status_means(
    status: int, definitive: Verdict, success: Verdict, errors_too: Verdict
) -> None:
    rules: list[Callable[[int], Verdict]] = [keep_definitive, keep_success, keep_errors_too]
    assert [rule(status) for rule in rules] == [definitive, success, errors_too]


def test_the_default_is_what_the_design_says() -> None:
    assert DEFAULTS.keep is keep_definitive
    assert (DEFAULTS.recovery, DEFAULTS.in_flight, DEFAULTS.store_down) == (
        "rerun",
        "refuse",
        "refuse",
    )


@pytest.mark.parametrize("keep", [lambda status: status < 500, {200: Verdict.KEEP}.get])
def test_keep_gives_a_verdict_for_every_status(keep: Any) -> None:
    assert "must give Verdict.KEEP, Verdict.FAILED, Verdict.NO_EFFECT or" in refusal(keep=keep)


# ------------------------------------------------------------------- memory, and beyond it


def test_memory_is_the_shortest_retention_and_the_tombstone() -> None:
    """What a client may ask for can only shorten it; so can what is kept of unknown outcomes."""
    assert Policy(retention_s=100, tombstone_s=50).settled().memory_s == 150
    declared = Policy(retention_s=100, retention_declared_s=(40, 900), tombstone_s=50).settled()
    assert declared.memory_s == 90
    assert Policy(retention_s=100, retention_declared_s=(200, 900)).settled().memory_s == 100
    assert Policy(retention_s=100, unknown_retention_s=60).settled().memory_s == 60


def test_e67_no_key_may_be_new_for_longer_than_memory() -> None:
    Policy(retention_s=1000, key_age_s_max=700, clock_skew_s=300).settled()
    Policy(retention_s=900, tombstone_s=100, key_age_s_max=700).settled()
    said = refusal(retention_s=1000, key_age_s_max=701, clock_skew_s=300)
    assert "1001 s after it was made" in said
    assert "forgotten after 1000 s" in said
    assert "Lower key_age_s_max" in said
    refusal(retention_s=1000, retention_declared_s=(900, 1000), key_age_s_max=700)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "30"], ids=repr)
def test_an_age_is_a_number_of_seconds(value: Any) -> None:
    assert refusal(key_age_s_max=value) == (
        f"Policy(key_age_s_max={value!r}): takes seconds, or None"
    )


def test_keys_must_tell_their_time_only_where_it_is_looked_at() -> None:
    assert "key_age_s_max" in refusal(key_time_required=True)


@pytest.mark.parametrize(
    "value", [60, (60,), (60, 30), (0, 60), (1, math.inf), ("1", "2"), (1, 2, 3), "12"], ids=repr
)
def test_what_a_client_may_ask_for_is_two_numbers_in_order(value: Any) -> None:
    assert "the shortest and the longest" in refusal(retention_declared_s=value)


def test_a_policy_is_shown_by_what_it_sets() -> None:
    assert repr(Policy()) == "Policy()"
    assert repr(Policy(required=True, lease_s=5)) == "Policy(required=True, lease_s=5)"
