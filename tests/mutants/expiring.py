"""Mutants of what happens around expiry: old keys, tombstones, fading, quotas."""

from __future__ import annotations

from tests.mutants.table import Mutant

EXPIRY = "tests/engine/test_expiry.py"
FADING = "tests/engine/test_tombstones.py"
QUOTAS = "tests/engine/test_quotas.py"
WEB = "tests/web/test_expiry.py"

_KEYS = (
    Mutant(
        "an old key is claimed and given back",
        "_engine/guard.py",
        "        barred = self.admission.refusal(call, policy)\n        if barred is None:\n",
        "        barred = self.admission.refusal(call, policy)\n        if barred or not barred:\n",
        EXPIRY,
        "test_e67_p7_what_is_too_old_spends_nothing_and_writes_nothing",
    ),
    Mutant(
        "an old key starts over what is expired and not swept",
        "_engine/admission.py",
        "    return found.expired or (found",
        "    return (found",
        EXPIRY,
        "test_an_old_key_whose_record_is_expired_but_not_swept_is_refused",
    ),
    Mutant(
        "a claim that was long on its way runs",
        "_engine/admission.py",
        "        if old is not None:\n            yield from self._ownership.abandon",
        "        if old is not None and not old:\n            yield from self._ownership.abandon",
        EXPIRY,
        "test_e67_a_claim_that_was_on_its_way_for_too_long_does_not_run",
    ),
    Mutant(
        "a retry goes on with a claim that came too late",
        "_engine/admission.py",
        "0.0 if attempt.attempt == 1 else max(attempt.age_s, 0.0)",
        "max(attempt.age_s, 0.0) + attempt.attempt * 1e6",
        EXPIRY,
        "test_e67_nor_does_a_retry_of_such_a_claim",
    ),
    Mutant(
        "a key from the future is taken for young",
        "_core/key_age.py",
        "    if made_at - now_wall > policy.clock_skew_s:\n",
        "    if made_at - now_wall > 1e12:\n",
        "tests/core/test_key_age.py",
        "test_e67_one_that_memory_does_not_cover_may_not",
    ),
    Mutant(
        "keys may be older than memory",
        "_core/policy.py",
        "    if needed_s > policy.memory_s:\n",
        "    if needed_s > policy.memory_s * 2:\n",
        "tests/core/test_policy.py",
        "test_e67_no_key_may_be_new_for_longer_than_memory",
    ),
    Mutant(
        "a retention that is too long is cut",
        "_core/retention.py",
        "    if retention_s > longest_s:\n",
        "    if retention_s > longest_s * 1e9:\n",
        WEB,
        "test_p7_what_cannot_be_given_is_refused_before_it_runs",
    ),
    Mutant(
        "the retention that a client asks for is not kept",
        "_engine/guard.py",
        "            policy = dataclasses.replace(policy, retention_s=call.retention_s)\n"
        "        decision",
        "            pass\n        decision",
        WEB,
        "test_a_client_asks_for_a_retention_and_gets_it",
    ),
)

_TOMBSTONES = (
    Mutant(
        "an answer is replayed after its retention",
        "_core/lifecycle.py",
        "            if is_tombstone(record):\n",
        "            if record.expired:\n",
        EXPIRY,
        "test_e67_after_retention_a_retry_is_refused_instead_of_run",
    ),
    Mutant(
        "the store keeps a record for its retention alone",
        "_engine/ownership.py",
        "            retention_s=retention_s + policy.tombstone_s,\n",
        "            retention_s=retention_s,\n",
        EXPIRY,
        "test_e67_after_retention_a_retry_is_refused_instead_of_run",
    ),
    Mutant(
        "what died is forgotten after a retention",
        "_engine/guard.py",
        "retention_s=retention_s + policy.tombstone_s",
        "retention_s=retention_s",
        EXPIRY,
        "test_what_died_is_remembered_for_as_long_as_what_was_done",
    ),
    Mutant(
        "the tombstone is sent as a header",
        "_engine/replays.py",
        "        return Replay(without_tombstone(answer), ",
        "        return Replay(answer, ",
        WEB,
        "test_a_tombstone_over_http",
    ),
    Mutant(
        "a client is promised its answer for as long as the tombstone",
        "_engine/ownership.py",
        "Stored(swap.retention_s - attempt.policy.tombstone_s)",
        "Stored(swap.retention_s)",
        EXPIRY,
        "test_within_retention_a_tombstone_changes_nothing",
    ),
    Mutant(
        "what was blanked comes back to life with the clock",
        "_core/retention.py",
        "        return True\n    return answer_left_s(record) <= 0\n",
        "        pass\n    return answer_left_s(record) <= 0\n",
        "tests/core/test_retention.py",
        "test_what_was_blanked_is_over_for_good",
    ),
    Mutant(
        "content is blanked before its time",
        "_engine/tombstones.py",
        "            if (left_s := answer_left_s(record)) > 0:\n",
        "            if (left_s := answer_left_s(record)) > 1e12:\n",
        FADING,
        "test_what_is_not_over_by_the_stores_clock_is_left_and_listed_again",
    ),
    Mutant(
        "a list that could not be written is lost",
        "_engine/tombstones.py",
        "                    self._noted.setdefault(span, [])[:0] = ids\n",
        "                    self._noted.setdefault(span, [])\n",
        FADING,
        "test_a_store_that_fails_meanwhile_only_delays_it",
    ),
    Mutant(
        "what is noted dies with its process",
        "_engine/sweeper.py",
        "        for finish in (*(chore.finish for chore in self._chores), self._write_tallies):\n",
        "        for finish in (self._write_tallies,):\n",
        FADING,
        "test_the_chore_of_a_runtime_writes_its_lists_when_it_stops",
    ),
    Mutant(
        "a tombstone keeps the fingerprint",
        "_core/lifecycle.py",
        "        fingerprint=bytes(len(found.fingerprint)),\n",
        "        fingerprint=found.fingerprint,\n",
        "tests/core/test_lifecycle.py",
        "test_fading_leaves_the_id_and_the_time_and_nothing_of_the_request_or_its_answer",
    ),
)

_QUOTAS = (
    Mutant(
        "who has used up its quota cannot learn what became of its requests",
        "_engine/guard.py",
        "        return Refuse(barred) if found is None or is_new(found) else found\n",
        "        return Refuse(barred)\n",
        QUOTAS,
        "test_e49_retries_of_what_was_begun_are_not_affected",
    ),
    Mutant(
        "a record that is tried again counts again",
        "_engine/guard.py",
        "            if self.quotas is not None and found.expired:\n",
        "            if self.quotas is not None:\n",
        QUOTAS,
        "test_what_runs_again_counts_once",
    ),
    Mutant(
        "processes do not hear of each other",
        "_engine/quotas.py",
        "            counts = NOTHING if unknown else Usage(",
        "            counts = NOTHING if unknown or record else Usage(",
        QUOTAS,
        "test_e49_processes_count_for_each_other",
    ),
    Mutant(
        "what was counted here is counted twice",
        "_engine/quotas.py",
        "                    account.included = included.get(tenant, account.included)\n",
        "",
        QUOTAS,
        "test_what_is_let_in_between_two_looks_is_all_that_passes_the_quota",
    ),
    Mutant(
        "a count that could not be written is lost",
        "_engine/quotas.py",
        "                for place, used in counted.items():\n",
        "                for place, used in {}.items():\n",
        QUOTAS,
        "test_a_store_that_fails_meanwhile_loses_no_count",
    ),
    Mutant(
        "counts stay when their records have expired",
        "_core/quota.py",
        "for number in range(first, first",
        "for number in range(first - 9, first",
        QUOTAS,
        "test_e49_what_expires_makes_room",
    ),
    Mutant(
        "the bytes of answers are not counted",
        "_engine/ownership.py",
        "            self._quotas.count_answer(attempt.tenant, ",
        "            self._quotas.count_answer(attempt.key, ",
        QUOTAS,
        "test_e49_no_more_bytes_than_the_quota_allows",
    ),
)

EXPIRING = {mutant.name: mutant for mutant in (*_KEYS, *_TOMBSTONES, *_QUOTAS)}
