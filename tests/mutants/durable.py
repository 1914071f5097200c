"""Mutants of what outlives a process or a release: steps, forwarded keys, versions of answers."""

from __future__ import annotations

from tests.mutants.table import Mutant

LIFECYCLE = "_core/lifecycle.py"
HOLDING = "tests/engine/test_ownership.py"
STEPS = "tests/engine/test_steps.py"
FORWARD = "tests/client/test_forward.py"

_VERSIONS = (
    Mutant(
        "a kept answer's version is not compared",
        LIFECYCLE,
        "            current = record.schema_version == policy.schema_version\n",
        "            current = True\n",
        HOLDING,
        "test_a_refusal_says_what_was_done_and_where",
    ),
    Mutant(
        "the version is not kept",
        "_engine/guard.py",
        "            schema_version=policy.schema_version,\n",
        "",
        HOLDING,
        "test_the_version_is_kept_with_the_record",
    ),
    Mutant(
        "an older process undoes a newer one's answer",
        LIFECYCLE,
        ' or (policy.stale == "rerun" and old > new):\n',
        ":\n",
        HOLDING,
        "test_running_anew_replaces_the_answer",
    ),
    Mutant(
        "what its own release blocked is run anew",
        LIFECYCLE,
        'Action.RUN_AGAIN if record.recovery in ("rerun", "resume") else Action.STALE',
        "Action.RUN_AGAIN",
        HOLDING,
        "test_what_its_own_release_would_not_repeat_is_refused",
    ),
    Mutant(
        "what is run anew counts as a first attempt",
        LIFECYCLE,
        '"run anew", True, found.attempt + 1, 0',
        '"run anew", True, 1, 0',
        HOLDING,
        "test_p5_what_is_run_anew_stays_bound_to_its_request",
    ),
    Mutant(
        "what is run anew keeps its steps",
        LIFECYCLE,
        '"run anew", True, found.attempt + 1, 0',
        '"run anew", False, found.attempt + 1, 0',
        HOLDING,
        "test_what_is_run_anew_takes_all_its_steps_again",
    ),
    Mutant(
        "a request that came a moment ago is known by less than all of it",
        "web/_edge.py",
        "target, body.content()), ",
        "target), ",
        "tests/web/test_asgi.py",
        "test_p3_a_crowd_of_retries_asks_the_store_once",
    ),
    Mutant(
        "a request that came a moment ago is known without its account",
        "web/_edge.py",
        "asked = (key, tenant, ",
        "asked = (key, ",
        "tests/web/test_asgi.py",
        "test_p3_a_crowd_of_retries_asks_the_store_once",
    ),
    Mutant(
        "a failing upcast is an answer as it was",
        "_engine/replays.py",
        "            return Refuse(refusals.upcast_failed(record, new))\n",
        "            answer = kept\n",
        HOLDING,
        "test_an_upcast_that_fails_is_told_and_logged_and_changes_nothing",
    ),
    Mutant(
        "of two ways the one that was registered first is taken",
        "_core/versions.py",
        "in sorted(self._upcasts.get(here, {}).items()):",
        "in self._upcasts.get(here, {}).items():",
        "tests/core/test_versions.py",
        "test_p3_every_process_takes_the_same_way_whatever_was_registered_first",
    ),
)

_STEPS = (
    Mutant(
        "a handler repeats by itself what must not be repeated",
        "_engine/steps.py",
        "        if name in self._begun:\n",
        "        if not name:\n",
        STEPS,
        "test_at_most_once_is_not_repeated_by_its_own_attempt_either",
    ),
    Mutant(
        "a step that failed is forgotten by a refusal",
        "_engine/steps.py",
        "        return bool(self._tried or self._begun or self._known)\n",
        "        return bool(self._taken or self._begun or self._known)\n",
        STEPS,
        "test_p5_a_step_that_failed_binds_the_key_to_its_request",
    ),
    Mutant(
        "two steps share a name",
        "_engine/steps.py",
        "        if name in self._taken and name not in self._unheard:\n",
        "        if not name:\n",
        STEPS,
        "test_each_step_has_a_name_of_its_own",
    ),
    Mutant(
        "the record is left out of the child key",
        "_engine/steps.py",
        '    parts = [b"oncekey/child/1", record_id, as_bytes(name)]\n',
        '    parts = [b"oncekey/child/1", as_bytes(name)]\n',
        STEPS,
        "test_e47_a_child_key_is_the_same_over_all_attempts_and_differs_otherwise",
    ),
    Mutant(
        "a retry within a step gets a new key",
        "client/forward.py",
        "calls.key_for((method, address))",
        "calls.key_for(object())",
        FORWARD,
        "test_a_retry_within_a_step_has_the_same_key_though_its_words_differ",
    ),
    Mutant(
        "a prepared request carries one step's key into another",
        "client/forward.py",
        "            if given_by is calls:\n",
        "            if given_by:\n",
        FORWARD,
        "test_a_prepared_request_does_not_carry_one_steps_key_into_another",
    ),
    Mutant(
        "a key of one's own is overwritten",
        "client/forward.py",
        "        if method in METHODS and self._header not in headers:\n",
        "        if method in METHODS:\n",
        FORWARD,
        "test_a_key_of_ones_own_stays",
    ),
)

_ENDS = (
    Mutant(
        "a lost take-over is given back",
        "_engine/ownership.py",
        """                if ours and found.lapses and found.recovery in ("resume", "ask"):\n""",
        "                if ours and not found.fence:\n",
        "tests/engine/test_guard_ends.py",
        "test_a_lost_take_over_is_left_to_lapse",
    ),
    Mutant(
        "what was not found out is given back",
        "_engine/ownership.py",
        "        if attempt.lease.phase is Phase.ASKING:  # it",
        "        if not attempt:  # it",
        "tests/web/test_ask.py",
        "test_an_answer_that_cannot_be_kept_is_none",
    ),
    Mutant(
        "complete_in keeps what it is given",
        "_engine/attempt.py",
        "ports.ownership.completion(self, kept)",
        "ports.ownership.completion(self, answer)",
        "tests/engine/test_attempt.py",
        "test_p12_secrets_are_sent_but_not_stored",
    ),
    Mutant(
        "whoever is let go is renewed again",
        "_engine/heartbeat.py",
        "    return attempt.lease.phase not in RENEWED\n",
        "    return attempt.lease.phase is Phase.ENDED\n",
        "tests/engine/test_heartbeat.py",
        "test_p6_an_attempt_that_is_let_go_while_it_is_renewed_lapses",
    ),
    Mutant(
        "what was answered and not recorded is given back by a failure after it",
        "_engine/ownership.py",
        "        attempt.give_back()\n        # Under `block` a retry would only learn",
        "        attempt.lease.phase = attempt.lease.phase.RUNNING\n"
        "        # Under `block` a retry would only learn",
        "tests/web/test_asgi_store_down.py",
        "test_e43_a_handler_that_fails_after_an_unrecorded_answer_gives_nothing_back",
    ),
    Mutant(
        "what was cut off is renewed",
        "_engine/session.py",
        "            self._ports.heartbeat.drop(self.attempt)\n",
        "            pass\n",
        "tests/web/test_asgi_kept.py",
        "test_under_block_a_handler_that_was_cut_off_is_not_run_again",
    ),
    Mutant(
        "a purge forgets that steps were taken",
        "stores/memory.py",
        "            for name, step in row.steps.items():\n"
        "                row.steps[name] = dataclasses.replace(step, result=None)\n",
        "            row.steps.clear()\n",
        STEPS,
        "test_a_purge_never_takes_a_step_twice",
    ),
)

DURABLE = {mutant.name: mutant for mutant in (*_VERSIONS, *_STEPS, *_ENDS)}
