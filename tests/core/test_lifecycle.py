"""The life of a record: the table of moves, the table of decisions, and who may do what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from oncekey._core import lifecycle
from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import DECISIONS, TRANSITIONS, Action, Held, Situation, took_effect
from oncekey._core.policy import DEFAULTS, Policy
from oncekey._core.record import Answer, Claim, Record, State
from oncekey._core.retention import blank_answer, with_tombstone
from oncekey._core.verbs import Swap, When
from oncekey._core.versions import Versions
from tests.core.test_record import record

RUNNING, COMPLETED, RELEASED, UNKNOWN = State
ANSWER = Answer(201, (), b"created")
CLAIM = Claim(b"i" * 32, b"n" * 16, "acct_1", "POST /orders", "order-17", b"g" * 32, 1, 40.0, 700.0)
NEWER_CLAIM = dataclasses.replace(CLAIM, schema_version=1)

# ---------------------------------------------------------------------------------- moves

MOVES = """
    move                  from                                 to         when      fence
    renew                 running                              running    any       stays
    shorten               running                              running    overlong  stays
    lapse                 running                              running    any       stays
    complete              running                              completed  any       stays
    release               running                              released   any       stays
    take over             running                              running    lapsed    rises
    doubt                 running                              unknown    lapsed    rises
    give up               running                              unknown    any       rises
    run again             released                             running    any       rises
    run anew              completed                            running    any       rises
    start over            running completed released unknown   running    expired   rises
    fade                  completed                            completed  any       rises
    resolve as completed  unknown                              completed  any       rises
    resolve as released   unknown                              released   any       rises
"""


def columns(table: str) -> list[list[str]]:
    """The cells of a table whose columns stand where those of its first line do."""
    first, *rows = table.strip("\n").splitlines()
    starts = [at for at in range(len(first)) if first[at - 2 : at] == "  " and first[at] != " "]
    bounds = list(zip(starts, [*starts[1:], None], strict=True))
    return [[row[start:end].strip() for start, end in bounds] for row in rows if row.strip()]


def test_the_moves_are_these_and_no_others() -> None:
    expected = {
        name: lifecycle.Transition(
            tuple(State(state) for state in sources.split()),
            State(to),
            When(when),
            fence == "rises",
        )
        for name, sources, to, when, fence in columns(MOVES)
    }
    assert expected == TRANSITIONS


def test_p1_whoever_changes_the_owner_raises_the_fence() -> None:
    """Only the owner's own writes leave it, and shortening, after which nobody else owns it."""
    kept = {name for name, move in TRANSITIONS.items() if not move.raise_fence}
    assert kept == {"renew", "shorten", "lapse", "complete", "release"}


def test_p1_nobody_takes_a_running_record_without_looking_at_the_clock() -> None:
    """Giving up is the owner's own move: it presents the token that only the owner knows."""
    for name, move in TRANSITIONS.items():
        if RUNNING in move.sources and move.raise_fence and name != "give up":
            assert move.when is not When.ANY, name


def held(state: State = RUNNING) -> Held:
    return Held(b"i" * 32, 1, b"t" * 16, state)


BUILDERS: dict[str, Callable[[State], Swap]] = {
    "renew": lambda state: lifecycle.renew(held(state), lease_s=30, retention_s=600),
    "shorten": lambda state: lifecycle.shorten(record(state)),
    "lapse": lambda state: lifecycle.lapse(held(state), retention_s=600),
    "complete": lambda state: lifecycle.complete(held(state), ANSWER, retention_s=600),
    "release": lambda state: lifecycle.release(held(state), no_effect=False, retention_s=600),
    "take over": lambda state: lifecycle.take(record(state, lease_left_s=0.0), CLAIM),
    "doubt": lambda state: lifecycle.doubt(record(state), new_token=b"n", retention_s=600),
    "give up": lambda state: lifecycle.give_up(
        held(state), new_token=b"n", lapses=1, retention_s=600
    ),
    "run again": lambda state: lifecycle.take(record(state), CLAIM),
    "run anew": lambda state: lifecycle.take(record(state), NEWER_CLAIM),
    "start over": lambda state: lifecycle.take(record(state, expires_in_s=0.0), CLAIM),
    "fade": lambda state: lifecycle.fade(record(state), new_token=b"n"),
    "resolve as completed": lambda state: lifecycle.resolve(
        record(state), new_token=b"n", answer=ANSWER, retention_s=600
    ),
    "resolve as released": lambda state: lifecycle.resolve(
        record(state), new_token=b"n", answer=None, retention_s=600
    ),
}
LEGAL = [(name, state) for name, move in TRANSITIONS.items() for state in move.sources]
TAKEN_FROM = {
    "take over": (RUNNING, RELEASED),
    "run again": (RUNNING, RELEASED),
    "run anew": (RUNNING, RELEASED, COMPLETED),
}
"""`take` chooses between them by what it found."""
ILLEGAL = [
    (name, state)
    for name, move in TRANSITIONS.items()
    for state in State
    if state not in TAKEN_FROM.get(name, move.sources)
]


@pytest.mark.parametrize(("name", "state"), LEGAL)
def test_every_move_presents_what_it_expects(name: str, state: State) -> None:
    move, swap = TRANSITIONS[name], BUILDERS[name](state)
    assert (swap.id, swap.state, swap.fence, swap.token) == (b"i" * 32, state, 1, b"t" * 16)
    assert (swap.to, swap.when, swap.raise_fence) == (move.to, move.when, move.raise_fence)


@pytest.mark.parametrize(("name", "state"), LEGAL)
def test_a_new_owner_brings_a_new_token_and_nobody_else_does(name: str, state: State) -> None:
    swap = BUILDERS[name](state)
    assert (swap.new_token is not None) is TRANSITIONS[name].raise_fence


@pytest.mark.parametrize(("name", "state"), LEGAL)
def test_a_lease_is_given_exactly_to_what_runs(name: str, state: State) -> None:
    swap = BUILDERS[name](state)
    assert (swap.lease_s is not None) is (swap.to is RUNNING)


@pytest.mark.parametrize(("name", "state"), ILLEGAL)
def test_any_other_move_is_a_mistake_of_the_program(name: str, state: State) -> None:
    with pytest.raises(ValueError, match=f"a record that is {state} cannot"):
        BUILDERS[name](state)


# ------------------------------------------------------------------- what the moves carry


def test_a_renewal_carries_deadlines_and_nothing_else() -> None:
    swap = lifecycle.renew(held(), lease_s=20, retention_s=100)
    plain = dataclasses.replace(swap, lease_s=None, retention_s=0.0)
    assert plain == Swap(
        id=swap.id,
        state=RUNNING,
        fence=1,
        token=swap.token,
        when=When.ANY,
        to=RUNNING,
        raise_fence=False,
        retention_s=0.0,
    )
    assert (swap.lease_s, swap.retention_s) == (20, 100)


def test_shortening_leaves_one_lease_of_the_records_own() -> None:
    swap = lifecycle.shorten(record(lease_s=12.0, retention_s=34.0))
    assert (swap.lease_s, swap.retention_s) == (12.0, 34.0)


def test_completing_carries_the_answer() -> None:
    swap = lifecycle.complete(held(), ANSWER, retention_s=5, resource_id="order_1")
    assert (swap.answer, swap.resource_id, swap.retention_s) == (ANSWER, "order_1", 5)


def test_starting_over_begins_at_one() -> None:
    found = record(COMPLETED, expires_in_s=-1.0, attempt=4, lapses=3)
    swap = lifecycle.take(found, CLAIM)
    assert (swap.fresh, swap.attempt, swap.lapses) == (True, 1, 0)


def test_an_expired_record_is_started_over_whatever_else_it_is() -> None:
    """Also a lapsed or a released one: what it kept is over."""
    for found in (
        record(RUNNING, lease_left_s=-1.0, expires_in_s=-1.0),
        record(RELEASED, expires_in_s=-1.0),
    ):
        assert lifecycle.take(found, CLAIM).when is When.EXPIRED


def test_a_take_over_counts_a_lapse() -> None:
    swap = lifecycle.take(record(lease_left_s=0.0, attempt=2, lapses=1), CLAIM)
    assert (swap.fresh, swap.attempt, swap.lapses) == (False, 3, 2)


def test_an_honest_failure_is_no_lapse() -> None:
    swap = lifecycle.take(record(RELEASED, attempt=2, lapses=1), CLAIM)
    assert (swap.fresh, swap.attempt, swap.lapses) == (False, 3, 1)


def test_p5_what_is_run_anew_forgets_its_answer_but_not_its_request() -> None:
    """As the second attempt it can never be released without effect."""
    found = record(COMPLETED, answer=ANSWER, attempt=1, lapses=3)
    swap = lifecycle.take(found, NEWER_CLAIM)
    assert (swap.fresh, swap.attempt, swap.lapses) == (True, 2, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_p3_nobody_runs_anew_what_has_this_version_or_a_newer_one(version: int) -> None:
    found = record(COMPLETED, answer=ANSWER, schema_version=version)
    with pytest.raises(ValueError, match="a record that is completed cannot"):
        lifecycle.take(found, NEWER_CLAIM)


def test_whoever_takes_brings_its_claim() -> None:
    swap = lifecycle.take(record(RELEASED), CLAIM)
    assert (swap.claim, swap.new_token) == (CLAIM, CLAIM.token)
    assert (swap.lease_s, swap.retention_s) == (40.0, 700.0)


def test_doubt_counts_the_lapse_that_led_to_it() -> None:
    swap = lifecycle.doubt(record(lapses=2), new_token=b"n", retention_s=9)
    assert (swap.lapses, swap.new_token, swap.retention_s) == (3, b"n", 9)


def test_fading_leaves_the_id_and_the_time_and_nothing_of_the_request_or_its_answer() -> None:
    answer = with_tombstone(Answer(201, ((b"location", b"/orders/7"),), b"created"), 50.0)
    found = record(COMPLETED, answer=answer, resource_id="7", field_digests={"a": "b"})
    swap = lifecycle.fade(dataclasses.replace(found, expires_in_s=40.0), new_token=b"n")
    assert swap.claim is not None
    assert (swap.fresh, swap.resource_id, swap.retention_s) == (True, None, 40.0)
    assert swap.answer == blank_answer(answer)
    assert (swap.claim.key, dict(swap.claim.field_digests)) == ("", {})
    assert swap.claim.fingerprint == bytes(len(found.fingerprint)) != found.fingerprint


# ------------------------------------------------------------------------------ situations

ENTOMBED = with_tombstone(ANSWER, 100.0)
SITUATIONS = [
    (record(), Situation.IN_FLIGHT),
    (record(lease_left_s=0.001), Situation.IN_FLIGHT),
    (record(lease_left_s=31.0), Situation.OVERLONG),
    (record(lease_left_s=0.0), Situation.LAPSED),
    (record(lease_left_s=0.0, lapses=3), Situation.LAPSED),
    (record(lease_left_s=0.0, lapses=4), Situation.WORN_OUT),
    (record(lease_left_s=5.0, lapses=4), Situation.IN_FLIGHT),
    (record(RELEASED), Situation.FAILED),
    (record(RELEASED, no_effect=True), Situation.NO_EFFECT),
    (record(COMPLETED, answer=ANSWER), Situation.COMPLETED),
    (record(COMPLETED, answer=Answer(204, (), b"")), Situation.COMPLETED),
    (record(COMPLETED, answer=ANSWER, schema_version=1), Situation.STALE),
    (record(COMPLETED, answer=Answer(200, (), None)), Situation.BODILESS),
    (record(COMPLETED, answer=Answer(200, (), None), schema_version=1), Situation.BODILESS),
    (record(RELEASED, schema_version=1), Situation.FAILED),
    (record(lease_left_s=0.0, schema_version=1), Situation.LAPSED),
    (record(COMPLETED), Situation.BODILESS),
    (record(COMPLETED, answer=ENTOMBED, expires_in_s=100.001), Situation.COMPLETED),
    (record(COMPLETED, answer=ENTOMBED, expires_in_s=100.0), Situation.GONE),
    (record(COMPLETED, answer=blank_answer(ENTOMBED), expires_in_s=1.0), Situation.GONE),
    (record(COMPLETED, answer=ENTOMBED, expires_in_s=0.0), Situation.EXPIRED),
    (record(UNKNOWN), Situation.UNKNOWN),
    *((record(state, expires_in_s=0.0), Situation.EXPIRED) for state in State),
    (record(lease_left_s=0.0, lapses=9, expires_in_s=-1.0), Situation.EXPIRED),
]


@pytest.mark.parametrize(("found", "expected"), SITUATIONS)
def test_what_a_record_is_to_somebody_who_finds_it(found: Record, expected: Situation) -> None:
    assert lifecycle.situation(found, DEFAULTS) is expected


def test_every_situation_can_be_met() -> None:
    assert {expected for _, expected in SITUATIONS} == set(Situation)


def test_with_one_lapse_allowed_the_first_is_too_many() -> None:
    policy = Policy(lapses_max=1).settled()
    assert lifecycle.situation(record(lease_left_s=0.0), policy) is Situation.WORN_OUT


# ------------------------------------------------------------------------------- decisions

FOUND = {
    "expired": record(expires_in_s=0.0),
    "running": record(),
    "overlong": record(lease_left_s=99.0),
    "lapsed": record(lease_left_s=0.0),
    "worn out": record(lease_left_s=0.0, lapses=4),
    "failed": record(RELEASED),
    "no effect": record(RELEASED, no_effect=True),
    "completed": record(COMPLETED, answer=ANSWER),
    "stale": record(COMPLETED, answer=ANSWER, schema_version=1),
    "bodiless": record(COMPLETED, answer=Answer(200, (), None)),
    "gone": record(COMPLETED, answer=ENTOMBED, expires_in_s=100.0),
    "unknown": record(UNKNOWN),
}

# `recovery` is what the record was begun with, then what the operation says now; * stands for any.
TABLE = """
    found      recovery      same request   other request  newer version
    expired    *             START_OVER     START_OVER     START_OVER
    no effect  *             RUN_AGAIN      RUN_AGAIN      RUN_AGAIN
    failed     *             RUN_AGAIN      MISMATCH       NEWER
    running    *             IN_FLIGHT      MISMATCH       NEWER
    overlong   *             SHORTEN        MISMATCH       NEWER
    lapsed     rerun rerun   RUN_AGAIN      MISMATCH       NEWER
    lapsed     rerun block   DOUBT          MISMATCH       NEWER
    lapsed     block rerun   DOUBT          MISMATCH       NEWER
    lapsed     block block   DOUBT          MISMATCH       NEWER
    worn out   *             DOUBT          MISMATCH       NEWER
    completed  *             REPLAY         MISMATCH       NEWER
    stale      *             REPLAY         MISMATCH       NEWER
    bodiless   *             FACT_ONLY      MISMATCH       NEWER
    gone       *             GONE           GONE           GONE
    unknown    *             UNKNOWN        MISMATCH       NEWER
"""
ANY_RECOVERY = ("rerun rerun", "rerun block", "block rerun", "block block")
ROWS = [
    (found, recovery, comparison, Action[action])
    for found, recoveries, *actions in columns(TABLE)
    for recovery in (ANY_RECOVERY if recoveries == "*" else (recoveries,))
    for comparison, action in zip(
        (Comparison.SAME, Comparison.DIFFERENT, Comparison.UNKNOWN_VERSION), actions, strict=True
    )
]


@pytest.mark.parametrize(("found", "recovery", "comparison", "action"), ROWS)
def test_what_a_request_gets(
    found: str, recovery: str, comparison: Comparison, action: Action
) -> None:
    begun_with, now = recovery.split()
    there = dataclasses.replace(FOUND[found], recovery=begun_with)
    policy = Policy(recovery=now, lapses_max=5).over(DEFAULTS)  # type: ignore[arg-type]
    assert lifecycle.decide(there, comparison, policy) is action


def test_the_table_has_an_answer_for_everything() -> None:
    assert set(DECISIONS) == {(found, how) for found in Situation for how in Comparison}


def test_p5_another_request_is_never_answered_from_the_record() -> None:
    harmless = {Action.MISMATCH, Action.START_OVER, Action.RUN_AGAIN, Action.GONE}
    for found in Situation:
        assert DECISIONS[found, Comparison.DIFFERENT] in harmless


def test_p5_a_fingerprint_that_cannot_be_compared_is_never_a_match() -> None:
    harmless = {Action.NEWER, Action.START_OVER, Action.RUN_AGAIN, Action.GONE}
    for found in Situation:
        assert DECISIONS[found, Comparison.UNKNOWN_VERSION] in harmless


def test_what_was_completed_never_runs_again_within_its_retention() -> None:
    """Unless it is stale, and then only as the operation's policy says."""
    for found in (Situation.COMPLETED, Situation.STALE, Situation.BODILESS, Situation.UNKNOWN):
        for how in Comparison:
            assert DECISIONS[found, how] not in (Action.RUN_AGAIN, Action.START_OVER)


# ------------------------------------------------------------------------------- versions

UPWARDS, DOWNWARDS = Versions(), Versions()
UPWARDS.upcast(3, 4)(lambda answer: answer)
DOWNWARDS.upcast(4, 3)(lambda answer: answer)

# What a process of the version `now` does with an answer of the version `kept`, by its `stale`.
STALE = """
    stale    kept  now  begun with  upcasts    action
    replay   3     4    rerun       none       REPLAY
    replay   4     3    rerun       none       REPLAY
    replay   3     4    block       none       REPLAY
    replay   3     4    rerun       upwards    UPCAST
    replay   3     4    rerun       downwards  REPLAY
    replay   4     3    rerun       downwards  UPCAST
    rerun    3     4    rerun       none       RUN_AGAIN
    rerun    3     4    resume      none       RUN_AGAIN
    rerun    3     4    block       none       STALE
    rerun    3     4    ask         none       STALE
    rerun    3     4    rerun       upwards    UPCAST
    rerun    3     4    block       upwards    UPCAST
    rerun    4     3    rerun       none       REPLAY
    rerun    4     3    rerun       downwards  UPCAST
    refuse   3     4    rerun       none       STALE
    refuse   3     4    rerun       upwards    UPCAST
    refuse   4     3    rerun       none       NEWER
    refuse   4     3    block       downwards  UPCAST
"""


@pytest.mark.parametrize(
    ("stale", "kept", "now", "begun_with", "upcasts", "action"), columns(STALE)
)
def test_what_a_kept_answer_of_another_version_gets(
    stale: str, kept: str, now: str, begun_with: str, upcasts: str, action: str
) -> None:
    found = record(COMPLETED, answer=ANSWER, schema_version=int(kept), recovery=begun_with)
    policy = Policy(
        schema_version=int(now),
        stale=stale,  # type: ignore[arg-type]
        upcasts={"none": None, "upwards": UPWARDS, "downwards": DOWNWARDS}[upcasts],
    ).settled()
    assert lifecycle.decide(found, Comparison.SAME, policy) is Action[action]


@pytest.mark.parametrize("stale", ["replay", "rerun", "refuse"])
def test_p5_another_version_is_no_excuse_for_another_request(stale: str) -> None:
    found = record(COMPLETED, answer=ANSWER, schema_version=3)
    policy = Policy(schema_version=4, stale=stale, upcasts=UPWARDS).settled()  # type: ignore[arg-type]
    assert lifecycle.decide(found, Comparison.DIFFERENT, policy) is Action.MISMATCH
    assert lifecycle.decide(found, Comparison.UNKNOWN_VERSION, policy) is Action.NEWER


def test_what_only_the_fact_is_kept_of_is_not_run_again_for_a_version() -> None:
    """Too large, or purged: a purge never causes a second run."""
    found = record(COMPLETED, answer=Answer(201, (), None), schema_version=3)
    policy = Policy(schema_version=4, stale="rerun").settled()
    assert lifecycle.decide(found, Comparison.SAME, policy) is Action.FACT_ONLY


# --------------------------------------------------------------------------------- landed


def after(swap: Swap) -> Record:
    """The record as it stands when the swap was carried out."""
    return record(
        swap.to, token=swap.new_token or swap.token, fence=swap.fence + (7 * swap.raise_fence)
    )


@pytest.mark.parametrize(("name", "state"), LEGAL)
def test_p9_a_swap_recognises_what_it_did_itself(name: str, state: State) -> None:
    swap = BUILDERS[name](state)
    assert took_effect(swap, after(swap))


@pytest.mark.parametrize(("name", "state"), LEGAL)
def test_p9_what_others_did_is_not_taken_for_it(name: str, state: State) -> None:
    swap = BUILDERS[name](state)
    mine = after(swap)
    assert not took_effect(swap, None)
    assert not took_effect(swap, dataclasses.replace(mine, token=b"somebody else's"))
    for other in State:
        if other is not swap.to:
            assert not took_effect(swap, dataclasses.replace(mine, state=other))
    wrong = swap.fence if swap.raise_fence else swap.fence + 1
    assert not took_effect(swap, dataclasses.replace(mine, fence=wrong))
