"""What happens around expiry, as the documentation has it: how long what is kept, and for whom.

Answers are kept for their retention, and that they were given for a tombstone longer. Where keys
tell their age, what is older than memory does not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncekey._core.policy import Policy
from oncekey._core.record import Answer, Record
from oncekey._core.retention import tombstone_s, without_tombstone
from oncekey._core.verbs import Swap
from simulator.ghost import ABSENT, COMPLETED, Ghost
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.task import Task


def kept(ghost: Ghost, answer: Answer, verb: Swap, tombstone_s: float, now: float) -> None:
    """An answer is recorded."""
    ghost.state, ghost.faded = COMPLETED, False
    ghost.answer = answer
    ghost.lease_until = now
    ghost.expires = now + verb.retention_s
    ghost.answer_until = ghost.expires - tombstone_s


def same_answer(ghost: Ghost, record: Record) -> bool:
    """Whether the store has the answer that was kept, and for as long."""
    answer = record.answer
    if answer is None or ghost.answer is None:
        return answer is ghost.answer
    left_s = ghost.expires - ghost.answer_until
    return without_tombstone(answer) == ghost.answer and abs(tombstone_s(record) - left_s) < 0.001


def given_back(task: Task, verb: Swap, now: float) -> None:
    """A record was released: it has no tombstone. A lost claim that is given back does not know
    what its policy said, and may be there for as long as one.
    """
    policy, ghost = task.policy, task.ghost
    if verb.retention_s not in (policy.retention_s, policy.retention_s + policy.tombstone_s):
        raise Violation("P3", f"{task}: {ghost} is kept for {verb.retention_s} s")
    ghost.lease_until = now
    ghost.expires = now + verb.retention_s


def unknown_s(policy: Policy) -> float:
    """How long an outcome stays unknown."""
    return policy.unknown_retention_s + policy.tombstone_s


def faded(task: Task, verb: Swap, fence: int, now: float, *, clock_was_set: bool) -> None:
    """Content was blanked. How much is left of the tombstone was read before, so it may have become
    longer by what the write took; whether the answer was over, too.
    """
    ghost = task.ghost
    if ghost.answer is None or (ghost.answer_until > now and not clock_was_set):
        raise Violation("P3", f"{task}: blanked the answer of {ghost}, which is not over")
    kept_s = ghost.expires - ghost.answer_until
    ghost.answer, ghost.faded = Answer(ghost.answer.status, (), None), True
    ghost.book.steps = {}
    ghost.token, ghost.fence = verb.new_token or b"", fence
    ghost.expires = now + verb.retention_s
    ghost.answer_until = ghost.expires - kept_s


def swept(ghosts: Iterable[Ghost], removed: int, now: float) -> None:
    """So many records were removed."""
    expired = [
        ghost
        for ghost in ghosts
        if ghost.state is not ABSENT and ghost.expires <= now and not ghost.held
    ]
    if removed != len(expired):
        raise Violation("P10", f"swept {removed} records where {len(expired)} were expired")
    for ghost in expired:
        ghost.state = ABSENT


# ------------------------------------------------------------------------------ the age of keys


def began_late(task: Task) -> bool:
    """Whether the record began when its key was too old already, as this worker sees it."""
    age_s_max = task.policy.key_age_s_max
    return age_s_max is not None and task.ghost.begun_at + task.worker.ahead_s > age_s_max


def is_late(task: Task) -> bool:
    """Whether its key is too old by now, as this worker sees it."""
    age_s_max = task.policy.key_age_s_max
    return age_s_max is not None and task.worker.clock.wall() > age_s_max


def told_too_old(task: Task, *, known: bool) -> None:
    """A client is told that its key is older than memory."""
    if not is_late(task):
        raise Violation("P7", f"{task} is told too old, and is not")
    if known and not task.fence and not began_late(task):
        raise Violation("P6", f"{task} is told too old, though {task.ghost} is remembered")


def runs(task: Task) -> None:
    """A handler starts."""
    if task.attempt == 1 and began_late(task):
        raise Violation("P1", f"{task} runs {task.ghost}, whose key is older than memory")
