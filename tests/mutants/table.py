"""The mutants: one mistake each, as somebody could make it, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of the source. The text is exact and stands there `times` times."""

    name: str
    file: str
    """Below src/oncekey."""
    text: str
    replacement: str
    tests: str
    """The file whose tests must turn red …"""
    chosen: str
    """… those of them that `pytest -k` chooses by this."""
    times: int = 1
    server: str | None = None
    """The one that its tests need."""


CONTRACT = "tests/stores/test_contract.py"
ASGI = "tests/web/test_asgi.py"
ASGI_KEPT = "tests/web/test_asgi_kept.py"
ASGI_KEYS = "tests/web/test_asgi_keys.py"
ASGI_LEAVING = "tests/web/test_asgi_leaving.py"
ASGI_DOWN = "tests/web/test_asgi_store_down.py"
WSGI = "tests/web/test_wsgi.py"

_EXPECTED = "test_p2_state_fence_and_token_must_all_be_right"
_AT_THE_WRITE = "test_p8_a_condition_on_time_is_judged_at_the_write"
_SWEPT = "test_p10_nothing_is_swept_before_it_expires"


def _of_store(
    store: str,
    name: str,
    file: str,
    text: str,
    replacement: str,
    test: str = _EXPECTED,
    times: int = 1,
) -> Mutant:
    """A mistake in a store: the contract must notice it over that store."""
    return Mutant(
        f"{store}: {name}",
        f"stores/{file}",
        text,
        replacement,
        CONTRACT,
        f"{test} and async-{store}",
        times=times,
        server=store if store in ("postgres", "redis", "mariadb") else None,
    )


_QUERIES = "postgres/queries.sql"
_SWAP = "redis/swap.lua"
_COMPARED = "if (row.state, row.fence, row.token) != expected or"
_WHERE = "WHERE id = ? AND state = ? AND fence = ? AND token = ?\n"
_GIVEN = "state = column2 AND fence = column3 AND token = column4"
_LUA = "if state ~= ARGV[1] or fence ~= ARGV[2] or found[3] ~= ARGV[3] or not holds[ARGV[4]] then"

STORES = (
    # ------------------------------------------------------------------------------- memory
    _of_store(
        "memory",
        "no state check",
        "memory.py",
        _COMPARED,
        "if (verb.state, row.fence, row.token) != expected or",
    ),
    _of_store(
        "memory",
        "no fence check",
        "memory.py",
        _COMPARED,
        "if (row.state, verb.fence, row.token) != expected or",
    ),
    _of_store(
        "memory",
        "no token check",
        "memory.py",
        _COMPARED,
        "if (row.state, row.fence, verb.token) != expected or",
    ),
    _of_store(
        "memory",
        "no lapse check at the write",
        "memory.py",
        "return self.is_lapsed(now)\n",
        "return True\n",
        _AT_THE_WRITE,
    ),
    _of_store(
        "memory",
        "the sweep removes what runs",
        "memory.py",
        "for record_id, row in self._rows.items() if row.expires <= now]",
        "for record_id, row in self._rows.items()]",
        _SWEPT,
    ),
    # ------------------------------------------------------------------------------- SQLite
    _of_store(
        "sqlite",
        "no state check",
        "sqlite/statements.py",
        _WHERE,
        _WHERE.replace("state = ", "'' <> "),
    ),
    _of_store(
        "sqlite",
        "no fence check",
        "sqlite/statements.py",
        _WHERE,
        _WHERE.replace("fence = ", "'' <> "),
    ),
    _of_store(
        "sqlite",
        "no token check",
        "sqlite/statements.py",
        _WHERE,
        _WHERE.replace("token = ", "'' <> "),
    ),
    *(
        Mutant(
            f"sqlite: no {what} check in a batch",
            "stores/sqlite/statements.py",
            _GIVEN,
            _GIVEN.replace(f"{what} = ", "'' <> "),
            "tests/stores/sqlite/test_verbs.py",
            "test_p2_one_that_is_refused_is_refused_alone",
        )
        for what in ("state", "fence", "token")
    ),
    _of_store(
        "sqlite",
        "no lapse check at the write",
        "sqlite/verbs.py",
        "if found is None or not _HOLDS[verb.when](found):",
        "if found is None:",
        _AT_THE_WRITE,
    ),
    _of_store(
        "sqlite",
        "the sweep removes what runs",
        "sqlite/statements.py",
        "WHERE state = 'running' AND expires <= ? AND (boot <> ? OR lease_until <= ?)",
        "WHERE state = 'running' AND ? AND (? OR ?)",
        _SWEPT,
    ),
    Mutant(
        "sqlite: a batch that was not all done counts as done",
        "stores/sqlite/verbs.py",
        ".rowcount != len(rows):",
        ".rowcount > len(rows):",
        "tests/stores/sqlite/test_verbs.py",
        "test_p2_one_that_is_refused_is_refused_alone",
    ),
    Mutant(
        "sqlite: an insert that lost a race counts as inserted",
        "stores/sqlite/verbs.py",
        ".rowcount != len(rows):",
        ".rowcount > len(rows):",
        "tests/stores/sqlite/test_verbs.py",
        "test_p1_an_insert_that_lost_a_race_after_the_look_finds_the_winner",
    ),
    # ---------------------------------------------------------------------------- PostgreSQL
    _of_store("postgres", "no state check", _QUERIES, "c.state = a.state AND ", ""),
    _of_store(
        "postgres",
        "no state check for owners",
        _QUERIES,
        "c.state = 'running' AND c.fence = a.fence",
        "c.fence = a.fence",
        "test_p2_after_a_release_its_owner_writes_nothing",
        times=3,
    ),
    _of_store(
        "postgres", "no fence check", _QUERIES, " AND c.fence = a.fence AND", " AND", times=4
    ),
    _of_store("postgres", "no token check", _QUERIES, " AND c.token = a.token", "", times=4),
    _of_store(
        "postgres",
        "no lapse check at the write",
        _QUERIES,
        "WHEN 'lapsed' THEN old_lease_until <= now",
        "WHEN 'lapsed' THEN true",
        _AT_THE_WRITE,
    ),
    _of_store(
        "postgres",
        "the sweep removes what runs",
        _QUERIES,
        "    WHERE c.expires <= statement_timestamp() AND (\n",
        "    WHERE (c.state = 'running' OR c.expires <= statement_timestamp()) AND (\n",
        _SWEPT,
    ),
    # ------------------------------------------------------------------------------- MariaDB
    _of_store("mariadb", "no state check", "mysql/writes.py", "c.state = {state} AND ", ""),
    _of_store("mariadb", "no fence check", "mysql/writes.py", " AND c.fence = {fence}", ""),
    _of_store("mariadb", "no token check", "mysql/writes.py", " AND c.token = {token}", ""),
    _of_store(
        "mariadb",
        "no lapse check at the write",
        "mysql/writes.py",
        'When.LAPSED: f"c.lease_until <= {CLOCK}"',
        'When.LAPSED: "TRUE"',
        _AT_THE_WRITE,
    ),
    _of_store(
        "mariadb",
        "a sweep forgets the fences",
        "mysql/verbs.py",
        '"WHERE one = 1 AND removed < @oncekey_fence"',
        '"WHERE one = 2 AND removed < @oncekey_fence"',
        "test_a_removed_record_leaves_no_fence_to_be_used_again",
    ),
    # --------------------------------------------------------------------------------- Redis
    _of_store("redis", "no state check", _SWAP, _LUA, _LUA.replace("state ~= ARGV[1] or ", "")),
    _of_store("redis", "no fence check", _SWAP, _LUA, _LUA.replace("fence ~= ARGV[2] or ", "")),
    _of_store("redis", "no token check", _SWAP, _LUA, _LUA.replace("found[3] ~= ARGV[3] or ", "")),
    _of_store(
        "redis",
        "no lapse check at the write",
        _SWAP,
        "lapsed = state == 'running' and lease_until <= now,",
        "lapsed = true,",
        _AT_THE_WRITE,
    ),
    Mutant(
        "redis: the sweep removes what runs again",
        "stores/redis/sweep.lua",
        "if not found[1] or tonumber(found[1]) > clock() then return 0 end",
        "if not found[1] then return 0 end",
        "tests/stores/redis/test_scan.py",
        "test_p10_a_record_that_is_renewed_before_its_removal_stays",
        server="redis",
    ),
)

_CONCLUDE = "await self._record(*self._classify())\n"

ENGINE = (
    Mutant(
        "ASGI: the answer is sent before it is recorded",
        "web/_asgi_run.py",
        f"                {_CONCLUDE}",
        f"                await self._release()\n                {_CONCLUDE}",
        ASGI,
        "test_p4_nothing_is_sent_before_the_answer_is_recorded",
    ),
    Mutant(
        "WSGI: the answer is handed over before it is recorded",
        "web/wsgi.py",
        "            instead = self.instead = self._conclude()\n",
        "            _start(self._start_response, self._capture.status, self._capture.headers)\n"
        "            instead = self.instead = self._conclude()\n",
        WSGI,
        "test_p4_nothing_is_handed_over_before_the_answer_is_recorded",
    ),
    Mutant(
        "its own answer is sent although its completion was refused",
        "_engine/ownership.py",
        "_s)\n"
        "        return (yield from self._answer_as_superseded(attempt, outcome.record, call))\n",
        "_s)\n        return Stored(swap.retention_s)\n",
        ASGI,
        "test_p2_e33_a_stale_owner_answers_from_the_record_it_finds",
    ),
    Mutant(
        "the tenant is left out of the record id",
        "_core/key.py",
        '    account = tenant.encode("utf-8", "surrogatepass")\n',
        '    account = b""\n',
        ASGI,
        "test_p5_e15_another_tenant_never_gets_the_stored_answer",
    ),
    Mutant(
        "the operation is left out of the record id",
        "_core/key.py",
        "    if operation is None:\n",
        "    if True:\n",
        ASGI,
        "test_e16_the_same_key_for_another_operation_is_another_key",
    ),
    Mutant(
        "the path is left out of the fingerprint",
        "_core/fingerprint.py",
        "    texts = method.upper(), path, media_type\n",
        '    texts = method.upper(), "", media_type\n',
        ASGI,
        "test_e16_the_concrete_path_is_part_of_the_request",
    ),
    Mutant(
        "the body is left out of the fingerprint",
        "_core/fingerprint.py",
        "        digest.update(each)",
        "        each",
        ASGI,
        "test_p5_another_request_never_gets_the_stored_answer",
    ),
    Mutant(
        "the order of form fields is left out of the fingerprint",
        "_core/canonical.py",
        "    if version == 1:\n        return canonical_query(",
        "    if True:\n        return canonical_query(",
        "tests/core/test_fingerprint.py",
        "test_p5_e21_the_order_of_form_fields_counts",
    ),
    Mutant(
        "a body stays in memory while its request waits",
        "_engine/guard.py",
        "            if call.put_away is not None:\n",
        "            if False:\n",
        "tests/web/test_waiting_bodies.py",
        "test_p11_in_threads_too",
    ),
    Mutant(
        "room for bodies is not given back",
        "web/_body.py",
        "            room.give_back(self._counted)\n",
        "            pass\n",
        "tests/web/test_body.py",
        "test_p11_bodies_are_counted_from_a_size_on_and_given_back_once",
    ),
    Mutant(
        "the lease is used as retention",
        "_engine/ownership.py",
        "        retention_s = policy.retention_s\n",
        "        retention_s = policy.lease_s\n",
        ASGI,
        "test_e68_a_record_does_not_expire_while_it_runs",
    ),
    Mutant(
        "retention counts from the claim",
        "_engine/ownership.py",
        '        if self._retention_from == "first use":\n',
        "        if self._retention_from:\n",
        ASGI,
        "test_e68_a_record_does_not_expire_while_it_runs",
    ),
    Mutant(
        "what was read a moment ago is replayed for ever",
        "web/_replay_cache.py",
        "return Known(replay, sent, ago_s) if fresh else None",
        "return Known(replay, sent, ago_s)",
        ASGI,
        "test_p3_what_was_read_a_moment_ago_is_not_replayed_beyond_its_retention",
    ),
    Mutant(
        "an insert whose reply was lost is not recognised by its token",
        "_engine/guard.py",
        "        if found.token != claim.token or found.state is not State.RUNNING:\n",
        "        if found.token:\n",
        ASGI_DOWN,
        "test_p9_lost_replies_to_insert_and_complete_are_harmless",
    ),
    Mutant(
        "a completion whose reply was lost is not recognised by its token",
        "_engine/store_calls.py",
        "    if isinstance(outcome, Refused) and lifecycle.took_effect(verb, outcome.record):\n",
        "    if isinstance(outcome, Refused) and outcome.record is None:\n",
        ASGI_DOWN,
        "test_p9_lost_replies_to_insert_and_complete_are_harmless",
    ),
    Mutant(
        "anybody's completion is taken for one's own",
        "_core/lifecycle.py",
        "    return found.token == (swap.new_token or swap.token) and (\n",
        "    return bool(found.token) and (\n",
        "tests/core/test_lifecycle.py",
        "test_p9_what_others_did_is_not_taken_for_it",
    ),
    Mutant(
        "the heartbeat does not renew",
        "_engine/heartbeat.py",
        "outcomes = line.perform([self._ownership.renewal(attempt) for attempt in alive])",
        "outcomes = [Done(attempt.fence) for attempt in alive]",
        "tests/engine/test_heartbeat.py",
        "test_a_renewal_gives_a_whole_lease",
    ),
    Mutant(
        "a take-over does not raise the fence",
        "_core/lifecycle.py",
        '    "take over": Transition((RUNNING,), RUNNING, When.LAPSED, True),\n',
        '    "take over": Transition((RUNNING,), RUNNING, When.LAPSED, False),\n',
        "tests/core/test_lifecycle.py",
        "test_p1_whoever_changes_the_owner_raises_the_fence",
    ),
    Mutant(
        "in flight is said before mismatch",
        "_core/lifecycle.py",
        "(Situation.IN_FLIGHT, Action.IN_FLIGHT, Action.MISMATCH, Action.NEWER)",
        "(Situation.IN_FLIGHT, Action.IN_FLIGHT, Action.IN_FLIGHT, Action.NEWER)",
        ASGI,
        "test_e29_a_mismatch_wins_over_in_flight",
    ),
    Mutant(
        "a blocked operation runs again",
        "_core/lifecycle.py",
        '    if "block" in declared or ("ask" in declared and policy.ask is None):\n',
        '    if "ask" in declared and policy.ask is None:\n',
        ASGI,
        "test_e34_block_declares_the_outcome_unknown",
    ),
    Mutant(
        "401 is kept",
        "_core/policy.py",
        "_REFUSALS = CONDITIONAL | {307, 308, 401, 403,",
        "_REFUSALS = CONDITIONAL | {307, 308, 403,",
        ASGI_KEPT,
        "test_p7_e40_refusals_leave_nothing_that_answers_or_blocks",
    ),
    Mutant(
        "a handler's word keeps a part of an answer",
        "web/_edge.py",
        "if end is End.KEPT and capture.status in CONDITIONAL:",
        "if end is End.KEPT and attempt.verdict is None and capture.status in CONDITIONAL:",
        "tests/web/test_hidden_headers.py",
        "test_e58_what_answers_a_condition_is_never_stored",
    ),
    Mutant(
        "another spelling of a path leads around the stricter rules",
        "web/_routes.py",
        "return method in one.methods and one.required >= other.required and careful",
        "return method in one.methods",
        "tests/web/test_routes.py",
        "test_e16_weaker_rules_are_not_got_by_another_spelling",
    ),
    Mutant(
        "a path is matched as it is alone",
        "web/_routes.py",
        "        texts = (inner,) if _ODD.search(inner) is None else readings(inner)\n",
        "        texts = (inner,)\n",
        "tests/web/test_routes.py",
        "test_e16_a_template_applies_to_every_spelling_of_its_path",
    ),
    Mutant(
        "post is not POST",
        "web/_asgi_messages.py",
        'scope["method"].upper(),',
        'scope["method"],',
        "tests/web/test_entry.py",
        "test_e26_a_method_is_the_same_in_either_case and asgi",
    ),
    Mutant(
        "Set-Cookie is stored",
        "_core/response_headers.py",
        '    b"set-cookie set-cookie2 authorization',
        '    b"set-cookie2 authorization',
        ASGI_KEPT,
        "test_p12_e53_secrets_are_sent_once_and_never_stored",
    ),
    Mutant(
        "a store that is down is no reason not to run",
        "_engine/guard.py",
        '        if not error.sent and policy.store_down == "run":\n',
        "        if not error.sent:\n",
        ASGI_DOWN,
        "test_e42_store_down_at_the_claim_refuses_and_runs_nothing",
    ),
    Mutant(
        "an answer that could not be recorded is sent",
        "_engine/ownership.py",
        'attempt.policy.recovery == "block" and attempt.recorded is None:\n',
        "attempt.recorded is None:\n",
        ASGI_DOWN,
        "test_e43_store_down_at_complete_under_rerun_answers_503",
    ),
    Mutant(
        "a client that hangs up stops its handler",
        "web/_asgi_run.py",
        "self._edge.runtime.background.apart(self._run_app())\n            return",
        "asyncio.ensure_future(self._run_app())\n            return",
        ASGI_LEAVING,
        "test_e35_a_client_that_hangs_up_does_not_stop_the_handler",
    ),
    Mutant(
        "an answer is coded for whoever came first",
        "web/_hidden_headers.py",
        'frozenset({b"accept-encoding", ',
        "frozenset({",
        ASGI_KEPT,
        "test_e58_an_answer_is_not_coded_for_one_client",
    ),
    Mutant(
        "of two key lines the first counts",
        "web/_edge.py",
        "found = keys.parse(lines, chars_min=chars_min) if lines else None",
        "found = keys.parse(lines[:1], chars_min=chars_min) if lines else None",
        ASGI_KEYS,
        "test_e2_two_key_lines_are_refused_even_if_equal",
    ),
)

MUTANTS = {mutant.name: mutant for mutant in (*STORES, *ENGINE)}
