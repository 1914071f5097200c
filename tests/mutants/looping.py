"""Mutants of what SQLite answers in the event loop, and at once."""

from __future__ import annotations

from tests.mutants.table import Mutant

CONNECTION = "stores/sqlite/connection.py"
TESTS = "tests/stores/sqlite/test_async_connection.py"

_MUTANTS = (
    Mutant(
        "the loop waits for another writer",
        CONNECTION,
        "self._file.wait_s = 0\n",
        "self._file.wait_s = 0.1\n",
        TESTS,
        "test_p11_the_loop_does_not_wait_for_another_writer",
    ),
    Mutant(
        "reads prove that a disk is quick",
        "stores/sqlite/async_connection.py",
        "        elif wrote:\n",
        "        else:\n",
        TESTS,
        "test_pace_is_not_quick_because_of_reads",
    ),
    Mutant(
        "retries of one key keep the loop to themselves",
        "stores/batching.py",
        "if self._queue.waiting:  # a reply",
        "if False:  # a reply",
        TESTS,
        "test_p11_others_have_their_turn_between_retries_of_one_key",
    ),
    Mutant(
        "a replay waits until a checkpoint can be made",
        CONNECTION,
        "self._limit_wal(little=True, may_wait=False)",
        "self._limit_wal(little=True)",
        "tests/stores/sqlite/test_connection.py",
        "test_p11_a_replay_does_not_wait_until_a_checkpoint_can_be_made",
    ),
    Mutant(
        "nobody looks whether the file is still there",
        "stores/sqlite/wal.py",
        "if self._look_around() != self._settled:",
        "if not self._folders:",
        "tests/stores/sqlite/test_wal.py",
        "test_that_its_files_are_gone_is_noticed",
    ),
    Mutant(
        "what found a record at once is said to be new",
        "stores/sqlite/verbs.py",
        "            return Inserted(fence)\n        raise NotAll\n",
        "            return Inserted(fence)\n        return Inserted(1)\n",
        "tests/stores/test_contract.py",
        "test_p1_of_many_inserts_one_wins and sqlite",
    ),
)

LOOPING = {mutant.name: mutant for mutant in _MUTANTS}
