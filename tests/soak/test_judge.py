"""The judge of the soak: each rule objects to what it is there for, and to nothing else."""

from __future__ import annotations

from dataclasses import replace

from soak.judge import ANSWER, CUT, FAILED, GAVE_UP, NO_ANSWER, ODD, Seen, judge
from soak.ledger import Entry, Id

LEASE_S = 1.5
RERUN = Id("account-0", "rerun", "order-1")
BLOCK = Id("account-0", "block", "order-1")
RESUME = Id("account-0", "resume", "order-1")
ATOMIC = Id("account-0", "atomic", "order-1")
NAME = "account-0 order-1"


def line(what: str, at: float, run: str = "a", fence: int = 1, **more: object) -> Entry:
    """A line of a run that was claimed when it begins, unless more is said."""
    told = {"id": RERUN, "claimed_at": at, "lease_until": at + LEASE_S, "pid": 7, **more}
    return Entry(what=what, at=at, run=run, fence=fence, **told)  # type: ignore[arg-type]


def seen(kind: str, sent: float, run: str = "", **more: object) -> Seen:
    told = {"id": RERUN, "asked": NAME, "got": sent + 0.1, **more}
    if kind == ANSWER:
        told = {"digest": f"of {run}", "told": NAME, **told}
    return Seen(sent=sent, kind=kind, run=run, **told)  # type: ignore[arg-type]


GOOD_RUN = [line("begin", 1.0), line("beat", 1.3), line("end", 1.6)]


def promises(
    entries: list[Entry], told: list[Seen] | None = None, rows: list[tuple[str, ...]] | None = None
) -> list[str]:
    return [violation.promise for violation in judge(entries, told or [], rows or [])]


def test_what_goes_well_is_not_objected_to() -> None:
    told = [seen("in-flight", 1.1), seen(NO_ANSWER, 1.0), seen(ANSWER, 1.55, "a")]
    told += [seen(ANSWER, 3.0, "a"), seen("mismatch", 3.0), seen("store-unavailable", 4.0)]
    told += [seen(CUT, 5.0)]
    assert promises(GOOD_RUN, told) == []


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
    belated = line("begin", 5.0, "a", 1, claimed_at=1.0, lease_until=2.5)
    assert promises([*answered, belated], [seen(ANSWER, 3.0, "b")]) == []


def test_p2_fences_only_rise() -> None:
    assert promises([*GOOD_RUN, line("begin", 4.0, "b", 1)]) == ["P2"]


def test_p3_one_answer() -> None:
    second = [line("begin", 4.0, "b", 2), line("end", 4.1, "b", 2)]
    told = [seen(ANSWER, 4.1, "a"), seen(ANSWER, 4.1, "b")]
    assert promises([*GOOD_RUN, *second], told) == ["P3"]


def test_p3_nothing_begins_after_an_answer() -> None:
    told = [seen(ANSWER, 1.6, "a")]
    assert promises([*GOOD_RUN, line("begin", 4.0, "b", 2)], told) == ["P3"]
    unmarked = [replace(told[0], stored=False)]
    assert promises([*GOOD_RUN, line("begin", 4.0, "b", 2)], unmarked) == []


def test_p3_after_the_last_word_nobody_is_told_anything_else() -> None:
    assert promises(GOOD_RUN, [seen(ANSWER, 1.6, "a"), seen("in-flight", 3.0)]) == ["P3"]
    assert promises(GOOD_RUN, [seen(ANSWER, 1.6, "a"), seen(FAILED, 3.0)]) == ["P3"]
    blocked = [replace(entry, id=BLOCK) for entry in GOOD_RUN]
    told = [seen("outcome-unknown", 3.0, id=BLOCK), seen(ANSWER, 4.0, "a", id=BLOCK)]
    assert promises(blocked, told) == ["P3"]


def test_p4_an_answer_has_its_run() -> None:
    assert promises([line("begin", 1.0)], [seen(ANSWER, 1.5, "a")]) == ["P4"]
    assert promises([], [seen(ANSWER, 1.5, "a")]) == ["P4"]


def test_p5_an_answer_is_about_what_was_asked() -> None:
    told = [seen(ANSWER, 1.6, "a"), seen(ANSWER, 1.7, "a", asked=f"{NAME} changed")]
    assert promises(GOOD_RUN, told) == ["P5"]


def test_p6_what_is_blocked_runs_once() -> None:
    lines = [line("begin", 1.0, id=BLOCK), line("begin", 9.0, "b", 2, id=BLOCK)]
    assert promises(lines) == ["P6"]
    failed = line("failed", 1.2, id=BLOCK)
    assert promises([*lines, failed]) == []


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


def test_atomic_rows_are_committed_once_and_before_the_answer() -> None:
    account, _, key = ATOMIC
    died = [line("begin", 0.9, "z", 1, id=ATOMIC)]  # rolled back: no effect of it is left
    lines = [*died, *(replace(entry, id=ATOMIC) for entry in GOOD_RUN)]
    told = [seen(ANSWER, 1.6, "a", id=ATOMIC)]
    assert promises(lines, told, [(account, key, "a")]) == []
    assert promises(lines, told, []) == ["P4"]
    assert promises(lines, told, [(account, key, "a"), (account, key, "z")]) == ["P2"]


def test_accounts_and_routes_that_share_a_key_are_judged_apart() -> None:
    others = RERUN._replace(account="account-1")
    other = [replace(entry, id=others, run="b") for entry in GOOD_RUN]
    assert promises([*GOOD_RUN, *other]) == []


def test_violations_name_the_operation() -> None:
    [violation] = judge([*GOOD_RUN, line("begin", 4.0, "b", 1)], [])
    assert violation.id == RERUN
    assert violation.what == "fences only rise, but 1 was followed by 1"
