"""Mutants of the store that has no clock, whose every write is one condition: DynamoDB."""

from __future__ import annotations

from tests.mutants.table import CONTRACT, Mutant

ITEMS = "dynamodb/items.py"
VERBS = "dynamodb/verbs.py"
WALK = "dynamodb/scan.py"
LEASES = "tests/stores/dynamodb/test_leases_on_the_server.py"
TESTS = "tests/stores/dynamodb/test_store.py"

_EXPECTED = "test_p2_state_fence_and_token_must_all_be_right and async-dynamodb"
_AT_THE_WRITE = "test_p8_a_condition_on_time_is_judged_at_the_write and async-dynamodb"
_OWNER_KEEPS = "test_p2_only_the_owner_keeps_steps and async-dynamodb"


def _mutant(
    name: str, file: str, text: str, replacement: str, chosen: str, tests: str = CONTRACT
) -> Mutant:
    return Mutant(
        f"dynamodb: {name}",
        f"stores/{file}",
        text,
        replacement,
        tests,
        chosen,
        server="dynamodb",
    )


_MUTANTS = (
    _mutant("no state check", ITEMS, "equal(state=s(verb.state), ", "equal(", _EXPECTED),
    _mutant("no fence check", ITEMS, "fence=n(verb.fence), token=", "token=", _EXPECTED),
    _mutant("no token check", ITEMS, ", token=b(verb.token))\n", ")\n", _EXPECTED),
    _mutant(
        "no lapse check at the write",
        "dynamodb/leases.py",
        "return beat if left_s <= 0 else None",
        "return beat",
        _AT_THE_WRITE,
    ),
    _mutant(
        "no expiry check at the write",
        VERBS,
        """update.only_if(f"{update.name('expires')} <= {update.bind('now', n(now))}")""",
        "pass",
        _AT_THE_WRITE,
    ),
    _mutant(
        "a renewal that nobody saw is passed over",
        VERBS,
        "            update.equal(beat=n(beat))\n",
        "",
        "test_p1_a_renewal_that_nobody_saw_defeats_a_take_over",
        LEASES,
    ),
    _mutant(
        "that a lease lapsed counts after its renewal",
        ITEMS,
        'lapsed=item.get("lapsed") == item["beat"]',
        'lapsed="lapsed" in item',
        "test_p1",
        LEASES,
    ),
    _mutant(
        "an insert replaces what is there",
        VERBS,
        '"ConditionExpression": "attribute_not_exists(id)",',
        '"ConditionExpression": "attribute_not_exists(nothing)",',
        "test_p1_many_inserts_of_many_ids_have_one_winner_each and async-dynamodb",
    ),
    _mutant(
        "no state check of steps",
        VERBS,
        "            state=s(State.RUNNING),\n            fence",
        "            fence",
        "test_p2_only_what_runs_keeps_steps and async-dynamodb",
    ),
    _mutant(
        "no token check of steps",
        VERBS,
        "            token=b(verb.token),\n            generation",
        "            generation",
        _OWNER_KEEPS,
    ),
    _mutant(
        "the sweep removes what runs again",
        WALK,
        "{update.name('expires')} <= {update.bind('now', n(self._now()))}",
        "{update.name('expires')} > {update.bind('now', n(0))}",
        "test_p10_what_starts_over_before_its_removal_stays",
        TESTS,
    ),
    _mutant(
        "a removed record's fences come again",
        "dynamodb/server_date.py",
        "max(self._last + 1, above + 1, self.now())",
        "above + 1",
        "test_a_removed_record_leaves_no_fence_to_be_used_again and async-dynamodb",
    ),
    _mutant(
        "a purge removes the request of who runs again",
        WALK,
        '        update.equal(state=item["state"], fence=item["fence"])\n',
        '        update.equal(generation=item["generation"])\n',
        "test_p2_a_purge_does_not_remove_the_request_of_who_runs_again",
        TESTS,
    ),
)

DYNAMODB = {mutant.name: mutant for mutant in _MUTANTS}
