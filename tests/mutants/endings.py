"""Mutants of how attempts end that broke: what runs again, and what nobody is asked about."""

from __future__ import annotations

from tests.mutants.table import Mutant

BROKEN = "tests/web/test_broken.py"
TABLE = "_core/endings.py"
GUARD_ENDS = "tests/engine/test_guard_ends.py"
_NEVER = "test_p6_under_block_an_exception_is_never_run_again"
_ASKED = "test_p6_under_ask_the_next_retry_asks_at_once"

_MUTANTS = (
    Mutant(
        "what broke under block is given back",
        TABLE,
        "    (End.BROKEN, Fate.RELEASE, Fate.RELEASE, Fate.ASK, Fate.GIVE_UP),\n",
        "    (End.BROKEN, Fate.RELEASE, Fate.RELEASE, Fate.ASK, Fate.RELEASE),\n",
        BROKEN,
        _NEVER,
    ),
    Mutant(
        "what broke under ask is given back",
        TABLE,
        "    (End.BROKEN, Fate.RELEASE, Fate.RELEASE, Fate.ASK, Fate.GIVE_UP),\n",
        "    (End.BROKEN, Fate.RELEASE, Fate.RELEASE, Fate.RELEASE, Fate.GIVE_UP),\n",
        BROKEN,
        _ASKED,
    ),
    Mutant(
        "a server error is an answer like any other",
        TABLE,
        "_end_of_failure(policy) if status >= 500 else End.FAILED",
        "End.FAILED",
        BROKEN,
        "test_p6_under_block_a_server_error_is_never_run_again",
    ),
    Mutant(
        "a failure below 500 is a server error",
        TABLE,
        "_end_of_failure(policy) if status >= 500 else End.FAILED",
        "_end_of_failure(policy)",
        BROKEN,
        "test_so_may_a_failure_below_500",
    ),
    Mutant(
        "every exception proves that nothing happened",
        TABLE,
        "isinstance(error, policy.no_effect_on)",
        "isinstance(error, Exception)",
        BROKEN,
        _NEVER,
    ),
    Mutant(
        "no exception proves that nothing happened",
        TABLE,
        "isinstance(error, policy.no_effect_on)",
        "isinstance(error, ())",
        BROKEN,
        "test_an_exception_that_proves_that_nothing_happened_releases",
    ),
    Mutant(
        "only who was not cut off is doubted",
        TABLE,
        "    return End.NO_EFFECT if isinstance(error, policy.no_effect_on) else",
        "    if not isinstance(error, Exception):\n"
        "        return End.FAILED\n"
        "    return End.NO_EFFECT if isinstance(error, policy.no_effect_on) else",
        "tests/test_once_attempt.py",
        "test_nor_of_one_that_is_cancelled_within",
    ),
    Mutant(
        "an exception after final() is an answer",
        TABLE,
        "    if said is not None and said is not Verdict.KEEP:\n",
        "    if said is not None:\n",
        BROKEN,
        "test_final_is_not_an_answer_where_an_exception_follows",
    ),
    Mutant(
        "nobody hears that a handler cannot tell",
        TABLE,
        "    Verdict.UNKNOWN: End.UNKNOWN,\n",
        "    Verdict.UNKNOWN: End.TRANSIENT,\n",
        BROKEN,
        "test_any_handler_can_say_that_nobody_knows",
    ),
    Mutant(
        "a step that broke is overlooked",
        "_engine/ownership.py",
        "        if end is not End.KEPT and attempt.steps.in_doubt:\n",
        "        if end is not End.KEPT and not attempt.steps:\n",
        BROKEN,
        "test_a_step_that_must_not_be_repeated_and_raised_is_unknown",
    ),
    Mutant(
        "a step that broke spoils the answer, too",
        "_engine/ownership.py",
        "        if end is not End.KEPT and attempt.steps.in_doubt:\n",
        "        if attempt.steps.in_doubt:\n",
        BROKEN,
        "test_unless_its_handler_knows_the_answer",
    ),
    Mutant(
        "a lapse leaves its lease to run out",
        "_core/lifecycle.py",
        '    return _swap("lapse", held, lease_s=0.0, retention_s=retention_s)\n',
        '    return _swap("lapse", held, lease_s=30.0, retention_s=retention_s)\n',
        BROKEN,
        _ASKED,
    ),
    Mutant(
        "a handler's lapse is not counted",
        "_core/lifecycle.py",
        '"take over", False, found.attempt + 1, found.lapses + 1\n',
        '"take over", False, found.attempt + 1, found.lapses\n',
        BROKEN,
        "test_p6_under_ask_it_is_not_asked_for_ever",
    ),
    Mutant(
        "a failed answer does not say that no retry runs",
        "web/_edge.py",
        "        return unknown_headers(headers, self.profile)\n",
        "        return list(headers)\n",
        BROKEN,
        "test_p6_under_block_a_server_error_is_never_run_again and asgi",
    ),
    Mutant(
        "who finds out too late that it was not done runs it",
        "_engine/ownership.py",
        "        return over and not attempt.policy.atomic\n",
        "        return False\n",
        GUARD_ENDS,
        "test_p1_who_finds_out_too_late_that_it_was_not_done_does_not_run_it",
    ),
    Mutant(
        "a take-over that is found again is not asked about",
        "_engine/guard.py",
        '        asks = asks or (policy.recovery == "ask" and found.lapses > 0)\n',
        "",
        GUARD_ENDS,
        "test_p9_a_take_over_whose_reply_was_lost_is_asked_about_too",
    ),
    Mutant(
        "a key that is too old frees what must be asked about",
        "_engine/admission.py",
        "(old is not None and attempt.asks)",
        "(old is not None and not attempt.asks)",
        GUARD_ENDS,
        "test_p6_a_key_that_is_too_old_does_not_free_what_must_be_asked_about",
    ),
    Mutant(
        "rows of an atomic handler that cannot tell are committed",
        "atomic/_transaction.py",
        "        if swap.to is not State.COMPLETED:\n",
        "        if swap.to is State.UNKNOWN:\n",
        "tests/atomic/test_transaction.py",
        "test_what_a_handler_wrote_that_cannot_tell_does_not_go_with_the_end_of_its_lease",
    ),
)

ENDINGS = {mutant.name: mutant for mutant in _MUTANTS}
