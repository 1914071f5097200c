"""The judge of the soak: each rule objects to what it is there for, and to nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from soak.judge import ANSWER, CUT, FAILED, GAVE_UP, NO_ANSWER, ODD, Observation, judge
from soak.ledger import Entry, Id

LEASE_S = 1.5
RERUN = Id("account-0", "rerun", "order-1")
BLOCK = Id("account-0", "block", "order-1")
RESUME = Id("account-0", "resume", "order-1")
ATOMIC = Id("account-0", "atomic", "order-1")
ASK = Id("account-0", "ask", "order-1")
CAREFUL = Id("account-0", "careful", "order-1")
JOINED = Id("account-0", "joined", "order-1")
BRIEF = Id("account-0", "brief", "order-1")
NAME = "account-0 order-1"


def line(what: str, at: float, run: str = "a", fence: int = 1, **more: object) -> Entry:
    """A line of a run that was claimed when it begins, unless more is said."""
    fields = {"id": RERUN, "claimed_at": at, "lease_until": at + LEASE_S, "pid": 7, **more}
    return Entry(what=what, at=at, run=run, fence=fence, **fields)  # type: ignore[arg-type]


def seen(kind: str, sent: float, run: str = "", **more: object) -> Observation:
    fields = {"id": RERUN, "asked": NAME, "got": sent + 0.1, **more}
    if kind == ANSWER:
        fields = {"digest": f"of {run}", "received": NAME, **fields}
    return Observation(sent=sent, kind=kind, run=run, **fields)  # type: ignore[arg-type]


GOOD_RUN = [line("begin", 1.0), line("beat", 1.3), line("end", 1.6)]


def promises(
    entries: list[Entry],
    received: list[Observation] | None = None,
    rows: Sequence[Sequence[str]] = (),
) -> list[str]:
    return [violation.promise for violation in judge(entries, received or [], rows)]


def test_what_goes_well_is_not_objected_to() -> None:
    received = [seen("in-flight", 1.1), seen(NO_ANSWER, 1.0), seen(ANSWER, 1.55, "a")]
    received += [seen(ANSWER, 3.0, "a"), seen("mismatch", 3.0), seen("store-unavailable", 4.0)]
    received += [seen(CUT, 5.0)]
    assert promises(GOOD_RUN, received) == []


def test_p1_a_second_run_while_the_first_ones_lease_lives() -> None:
    second = [line("begin", 2.7, "b", 2), line("end", 2.8, "b", 2)]
    assert promises([*GOOD_RUN, *second]) == ["P1"]  # the first was renewed at 1.6, until 3.1
    assert promises([*GOOD_RUN, line("begin", 3.2, "b", 2)]) == []


def test_p1_whoever_has_failed_holds_no_lease() -> None:
    failed = [line("begin", 1.0), line("failed", 1.1)]
    assert promises([*failed, line("begin", 1.2, "b", 2)]) == []
    assert promises([line("begin", 1.0), line("failed", 1.3), line("begin", 1.2, "b", 2)]) == ["P1"]


def test_p1_a_run_whose_claim_came_after_its_lease_was_over() -> None:
    assert promises([line("begin", 5.0, claimed_at=4.9, lease_until=4.0)]) == ["P1"]


def test_a_process_that_stood_still_after_its_claim_is_set_aside() -> None:
    answered = [line("begin", 3.0, "b", 2), line("end", 3.1, "b", 2)]
    is_belated = line("begin", 5.0, "a", 1, claimed_at=1.0, lease_until=2.5)
    assert promises([*answered, is_belated], [seen(ANSWER, 3.0, "b")]) == []


def test_p2_fences_only_rise() -> None:
    assert promises([*GOOD_RUN, line("begin", 4.0, "b", 1)]) == ["P2"]


def test_p3_one_answer() -> None:
    second = [line("begin", 4.0, "b", 2), line("end", 4.1, "b", 2)]
    received = [seen(ANSWER, 4.1, "a"), seen(ANSWER, 4.1, "b")]
    assert promises([*GOOD_RUN, *second], received) == ["P3"]


def test_p3_nothing_begins_after_an_answer() -> None:
    received = [seen(ANSWER, 1.6, "a")]
    assert promises([*GOOD_RUN, line("begin", 4.0, "b", 2)], received) == ["P3"]
    unmarked = [replace(received[0], stored=False)]
    assert promises([*GOOD_RUN, line("begin", 4.0, "b", 2)], unmarked) == []


def test_p3_after_the_last_word_nobody_is_told_anything_else() -> None:
    assert promises(GOOD_RUN, [seen(ANSWER, 1.6, "a"), seen("in-flight", 3.0)]) == ["P3"]
    assert promises(GOOD_RUN, [seen(ANSWER, 1.6, "a"), seen(FAILED, 3.0)]) == ["P3"]
    blocked = [replace(entry, id=BLOCK) for entry in GOOD_RUN]
    received = [seen("outcome-unknown", 3.0, id=BLOCK), seen(ANSWER, 4.0, "a", id=BLOCK)]
    assert promises(blocked, received) == ["P3"]


def test_p3_an_answer_that_is_kept_for_a_while_may_be_replaced_after_it() -> None:
    first = [replace(entry, id=BRIEF) for entry in GOOD_RUN]  # its answer is kept until 4.6
    received = [seen(ANSWER, 1.6, "a", id=BRIEF), seen("in-flight", 5.05, id=BRIEF)]
    second = [line("begin", 5.0, "b", 2, id=BRIEF), line("end", 5.1, "b", 2, id=BRIEF)]
    received += [seen(ANSWER, 5.0, "b", id=BRIEF), seen(ANSWER, 5.6, "b", id=BRIEF)]
    assert promises([*first, *second], received) == []
    assert promises([*first, *second], [*received, seen(ANSWER, 5.7, "a", id=BRIEF)]) == ["P3"]
    early = [replace(entry, at=entry.at - 0.5) for entry in second]
    assert promises([*first, *early], received) == ["P3"]
    assert promises([*first, *early], received[1:]) == []  # nobody was told of the first
    other = replace(received[-1], digest="other bytes")
    assert promises([*first, *second], [*received, other]) == ["P3"]


def test_p2_fences_rise_over_what_was_swept() -> None:
    first = [replace(entry, id=BRIEF) for entry in GOOD_RUN]
    assert promises([*first, line("begin", 9.0, "b", 1, id=BRIEF)]) == ["P2"]


def test_p4_an_answer_has_its_run() -> None:
    assert promises([line("begin", 1.0)], [seen(ANSWER, 1.5, "a")]) == ["P4"]
    assert promises([], [seen(ANSWER, 1.5, "a")]) == ["P4"]


def test_p5_an_answer_is_about_what_was_asked() -> None:
    received = [seen(ANSWER, 1.6, "a"), seen(ANSWER, 1.7, "a", asked=f"{NAME} changed")]
    assert promises(GOOD_RUN, received) == ["P5"]


def test_p6_what_is_blocked_runs_once() -> None:
    lines = [line("begin", 1.0, id=BLOCK), line("begin", 9.0, "b", 2, id=BLOCK)]
    assert promises(lines) == ["P6"]
    failed = line("failed", 1.2, id=BLOCK)
    assert promises([*lines, failed]) == ["P6"]  # whatever it was that it did before


def test_p6_what_is_blocked_runs_once_for_each_time_that_an_operator_let_it() -> None:
    lines = [line("begin", 1.0, id=BLOCK), line("begin", 9.0, "b", 2, id=BLOCK)]
    lines += [line("begin", 19.0, "c", 3, id=BLOCK)]
    once = line("released", 8.0, "operator-1", id=BLOCK)
    assert promises([*lines, once]) == ["P6"]
    assert promises([*lines, once, line("released", 18.0, "operator-2", id=BLOCK)]) == []


def test_p6_what_is_blocked_has_one_effect() -> None:
    effect = line("effect", 1.1, id=BLOCK, step="block")
    lines = [line("begin", 1.0, id=BLOCK), effect]
    assert promises(lines) == []
    assert promises([*lines, replace(effect, at=1.2)]) == ["P6"]
    again = [line("begin", 9.0, "b", 2, id=BLOCK), line("effect", 9.1, "b", 2, id=BLOCK)]
    released = line("released", 8.0, "operator-1", id=BLOCK)
    assert promises([*lines, *again, released]) == []
    assert promises([*lines, *again]) == ["P6", "P6"]


def test_p6_who_is_blocked_is_told_that_no_retry_runs() -> None:
    broke = [line("begin", 1.0, id=BLOCK), line("failed", 1.2, id=BLOCK)]
    assert promises(broke, [seen(FAILED, 1.0, id=BLOCK)]) == ["P6"]
    assert promises(broke, [seen(FAILED, 1.0, id=BLOCK, marked=True)]) == []
    assert promises([replace(entry, id=RERUN) for entry in broke], [seen(FAILED, 1.0)]) == []


def test_p6_a_kept_step_is_not_taken_again() -> None:
    first = [line("begin", 1.0, id=RESUME), line("effect", 1.0, id=RESUME, step="mail")]
    second = [
        line("begin", 9.0, "b", 2, id=RESUME),
        line("effect", 9.0, "b", 2, id=RESUME, step="mail"),
    ]
    assert promises([*first, *second]) == []  # nobody knows of it: it has to be taken again
    kept = line("kept", 1.1, id=RESUME, step="mail")
    assert promises([*first, kept, *second]) == ["P6"]


def test_p6_everybody_ends_with_what_is_documented() -> None:
    assert promises([], [seen(GAVE_UP, 1.0)]) == ["P6"]
    assert promises([], [seen(ODD, 1.0)]) == ["P6"]
    assert promises([], [seen("outcome-unknown", 1.0)]) == ["P6"]
    assert promises([], [seen("outcome-unknown", 1.0, id=BLOCK)]) == []


def test_p3_an_operator_may_end_what_was_unknown_and_that_is_the_last_word() -> None:
    blocked = [replace(entry, id=BLOCK) for entry in GOOD_RUN]
    settled = line("settled", 3.5, "operator-1", id=BLOCK)
    received = [seen("outcome-unknown", 3.0, id=BLOCK), seen(ANSWER, 4.0, "operator-1", id=BLOCK)]
    assert promises([*blocked, settled], received) == []
    assert promises([*blocked, settled], [*received, seen("outcome-unknown", 5.0, id=BLOCK)]) == [
        "P3"
    ]
    other = seen(ANSWER, 5.0, "a", id=BLOCK)
    assert promises([*blocked, settled], [*received, other]) == ["P3"]
    unrecorded = seen(ANSWER, 1.6, "a", id=BLOCK, stored=False)
    assert promises([*blocked, settled], [unrecorded, *received]) == []


def test_p4_only_an_operator_answers_for_an_operator() -> None:
    received = [seen(ANSWER, 4.0, "operator-1", id=BLOCK)]
    assert promises([line("begin", 1.0, id=BLOCK)], received) == ["P4"]
    released = line("released", 3.5, "operator-1", id=BLOCK)
    assert promises([line("begin", 1.0, id=BLOCK), released], received) == ["P4"]


def test_p6_what_an_operator_released_may_run_again() -> None:
    lines = [line("begin", 1.0, id=BLOCK), line("begin", 9.0, "b", 2, id=BLOCK)]
    assert promises([*lines, line("released", 8.0, "operator-1", id=BLOCK)]) == []
    assert promises([*lines, line("released", 9.5, "operator-1", id=BLOCK)]) == ["P6"]
    assert promises([*lines, line("settled", 8.0, "operator-1", id=BLOCK)]) == ["P6"]


def test_p6_what_the_application_knows_of_is_not_run_again() -> None:
    first = [line("begin", 1.0, id=ASK), line("effect", 1.2, id=ASK, step="ask")]
    second = line("begin", 9.0, "b", 2, id=ASK, claimed_at=8.0, lease_until=9.5)
    assert promises([*first, second]) == ["P6"]
    assert promises([*first, line("failed", 1.3, id=ASK), second]) == ["P6"]
    is_belated = line("effect", 8.5, id=ASK, step="ask", lease_until=2.5)
    sleeper = [first[0], is_belated]  # nobody could know of it when they asked
    assert promises([*sleeper, second]) == []
    assert promises([*first, second, line("released", 7.0, "operator-1", id=ASK)]) == []


def test_p4_an_answer_that_was_asked_for_is_of_a_run_that_had_an_effect() -> None:
    received = [seen(ANSWER, 5.0, "a", id=ASK)]
    assert promises([line("begin", 1.0, id=ASK)], received) == ["P4"]
    effect = line("effect", 1.2, id=ASK, step="ask")
    assert promises([line("begin", 1.0, id=ASK), effect], received) == []


def test_p6_a_step_that_is_taken_at_most_once_is() -> None:
    first = [line("begin", 1.0, id=CAREFUL), line("effect", 1.0, id=CAREFUL, step="mail")]
    second = [line("begin", 9.0, "b", 2, id=CAREFUL)]
    assert promises([*first, *second], [seen("outcome-unknown", 9.5, id=CAREFUL)]) == []
    again = line("effect", 9.0, "b", 2, id=CAREFUL, step="mail")
    assert promises([*first, *second, again]) == ["P6"]
    released = line("released", 8.0, "operator-1", id=CAREFUL)  # who says that it was not done
    assert promises([*first, *second, again, released]) == []


def test_atomic_rows_are_committed_once_and_before_the_answer() -> None:
    died = [line("begin", 0.9, "z", 1, id=ATOMIC)]  # rolled back: no effect of it is left
    published = line("published", 2.0, "a", step="answer", id=ATOMIC)
    lines = [*died, *(replace(entry, id=ATOMIC) for entry in GOOD_RUN), published]
    received = [seen(ANSWER, 1.6, "a", id=ATOMIC)]
    assert promises(lines, received, [(*ATOMIC, "a", "answer")]) == []
    assert promises(lines[:-1], received, []) == ["P4"]
    both = [(*ATOMIC, "a", "answer"), (*ATOMIC, "z", "answer")]
    also = line("published", 2.0, "z", step="answer", id=ATOMIC)
    assert promises([*lines, also], received, both) == ["P2"]


def test_p2_each_part_of_what_is_joined_is_committed_once() -> None:
    first = [line("begin", 1.0, id=JOINED)]
    second = [line("begin", 9.0, "b", 2, id=JOINED), line("failed", 9.9, "b", 2, id=JOINED)]
    published = [line("published", 2.0, "a", step="step", id=JOINED)]
    published += [line("published", 9.5, "b", step="answer", id=JOINED)]
    lines, rows = [*first, *second, *published], [(*JOINED, "a", "step"), (*JOINED, "b", "answer")]
    received = [
        seen(ANSWER, 9.8, "b", id=JOINED)
    ]  # recorded, though its handler did not hear of it
    assert promises(lines, received, rows) == []
    assert promises(lines, [seen(ANSWER, 9.8, "a", id=JOINED)], rows) == ["P4"]
    again = line("published", 9.5, "b", step="step", id=JOINED)
    assert promises([*lines, again], received, [*rows, (*JOINED, "b", "step")]) == ["P2"]


def test_messages_are_published_if_and_only_if_they_were_committed() -> None:
    published = line("published", 2.0, "a", step="answer", id=ATOMIC)
    rows = [(*ATOMIC, "a", "answer")]
    assert promises([published, replace(published, at=4.0)], [], rows) == []
    assert promises([], [], rows) == ["outbox"]
    assert promises([published], [], []) == ["outbox"]


def test_accounts_and_routes_that_share_a_key_are_judged_apart() -> None:
    others = RERUN._replace(account="account-1")
    other = [replace(entry, id=others, run="b") for entry in GOOD_RUN]
    assert promises([*GOOD_RUN, *other]) == []


def test_violations_name_the_operation() -> None:
    [violation] = judge([*GOOD_RUN, line("begin", 4.0, "b", 1)], [])
    assert violation.id == RERUN
    assert violation.what == "fences only rise, but 1 was followed by 1"
