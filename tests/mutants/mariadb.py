"""Mutants of what commits with the caller's rows on MySQL and MariaDB."""

from __future__ import annotations

from tests.mutants.table import Mutant

ATOMIC = "stores/mysql/transactions.py"
OUTBOX = "stores/mysql/outbox.py"
FAULTS = "tests/atomic/test_faults.py"
LEASED = "tests/atomic/test_beside_leases.py"
JOINED_TESTS = "tests/messaging/test_inbox_joined.py"
INBOX_MYSQL_TESTS = "tests/messaging/test_inbox_mysql.py"
SHELF_TESTS = "tests/stores/test_outbox.py"
_DELIVERIES = "test_p1_two_deliveries_at_once_have_one_effect_and_nobody_waits and mariadb"

_MUTANTS = (
    Mutant(
        "an id stays in the table, mariadb",
        ATOMIC,
        ", _LET_GO.format(id=given))",
        ")",
        FAULTS,
        "test_nothing_is_left_in_the_table_of_held_ids",
        server="mariadb",
    ),
    Mutant(
        "an id that was left behind fails whoever comes next, mariadb",
        ATOMIC,
        "VALUES ({id}) ON DUPLICATE KEY UPDATE id = oncekey_held.id",
        "VALUES ({id})",
        INBOX_MYSQL_TESTS,
        "test_p6_an_id_that_was_left_behind_holds_nobody_up",
        server="mariadb",
    ),
    Mutant(
        "who resolves waits for the steps of others, mariadb",
        "stores/mysql/writes.py",
        "{rows} r FORCE INDEX (PRIMARY) ",
        "{rows} r IGNORE INDEX (PRIMARY) ",
        "tests/stores/mysql/test_held.py",
        "test_p11_who_resolves_waits_for_no_step_of_another_record",
        server="mariadb",
    ),
    Mutant(
        "a step in a caller's transaction holds up those of others, mariadb",
        "stores/mysql/writes.py",
        "    if len(rows) == 1:\n        lookup",
        "    if not rows:\n        lookup",
        "tests/stores/mysql/test_transactions.py",
        "test_p11_a_step_in_an_open_transaction_holds_up_no_step_of_another",
        server="mariadb",
    ),
    Mutant(
        "the end of a transaction is not noticed, mariadb",
        ATOMIC,
        "    except TransactionOver:\n        return False\n",
        "    except TransactionOver:\n        return True\n",
        FAULTS,
        "test_a_handler_that_ends_its_transaction_is_found_out and asyncmy",
        server="mariadb",
    ),
    Mutant(
        "atomic mode is not READ COMMITTED, mariadb",
        ATOMIC,
        "begin=READ_COMMITTED",
        "begin=None",
        LEASED,
        "test_others_go_on_while_an_atomic_one_runs and asyncmy",
        server="mariadb",
    ),
    Mutant(
        "another's record passes for one's own, mariadb",
        ATOMIC,
        " == [(claim.token,)]",
        " != []",
        LEASED,
        "test_p2_a_leased_claim_of_the_same_key_is_not_blocked_and_wins and asyncmy",
        server="mariadb",
    ),
    Mutant(
        "a message that is handled elsewhere is waited for, mariadb",
        ATOMIC,
        "yield Question(statements, at_once=True)",
        "yield Question(statements)",
        JOINED_TESTS,
        _DELIVERIES,
        server="mariadb",
    ),
    Mutant(
        "a message keeps others from being handled, mariadb",
        ATOMIC,
        "take = _TAKE if callers else _LOOK_AND_TAKE",
        "take = _LOOK_AND_TAKE",
        JOINED_TESTS,
        _DELIVERIES,
        server="mariadb",
    ),
    Mutant(
        "a caller's transaction that was undone goes on, mariadb",
        "atomic/_transaction.py",
        "self._final = error if self._callers else None",
        "self._final = None",
        INBOX_MYSQL_TESTS,
        "test_p2_a_caller_whose_transaction_was_undone_hears_of_it",
        server="mariadb",
    ),
    Mutant(
        "a caller's transaction keeps others from sweeping, mariadb",
        ATOMIC,
        "partial(_hold, callers=True), is_ours, _insert_completed_in, undoes",
        "partial(_hold, callers=True), is_ours, insert_completed, undoes",
        INBOX_MYSQL_TESTS,
        "test_a_transaction_that_stays_open_keeps_nobody_from_sweeping",
        server="mariadb",
    ),
    Mutant(
        "a worker takes what another holds, mariadb",
        OUTBOX,
        "IF(FIND_IN_SET({n}, @oncekey_fits), {n}, NULL)",
        "{n}",
        SHELF_TESTS,
        "mariadb",
        server="mariadb",
    ),
    Mutant(
        "a worker gives back what another has, mariadb",
        OUTBOX,
        "WHERE o.n = {n} AND o.token = {token}",
        "WHERE o.n = {n}",
        SHELF_TESTS,
        "mariadb",
        server="mariadb",
    ),
)

MARIADB = {mutant.name: mutant for mutant in _MUTANTS}
