"""What must become of a record by how its attempt ended.

The rule stands here a second time, as the documentation has it, so that the engine's own can be
compared with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from oncekey._core.policy import Policy, Verdict, keep_errors_too, keep_success
from simulator.plans import Plan, keep_doubtful

if TYPE_CHECKING:
    from simulator.task import Task

Due = Literal["", "stored", "free", "retry", "ask", "unknown", "left"]
"""What is due to a record: its answer is stored; even another request may run; the same request
may run again; the application is asked; nobody knows, an operator must find out; nothing is
written. Empty until its attempt has ended.
"""


def due(task: Task, *, raised: bool) -> Due:
    """What is due to a task's record, once its handler has answered, or raised."""
    plan, policy = task.plan, task.policy
    if not raised and _stores(plan, policy):
        return "stored"
    if task.steps.doubts or (task.steps.broke and not task.earlier):
        return "unknown"
    if plan.said is Verdict.NO_EFFECT:
        return "free"
    if plan.said is Verdict.FAILED:
        return "retry"
    if plan.said is Verdict.UNKNOWN:
        return "ask" if policy.recovery == "ask" else "unknown"
    if raised:
        return "free" if plan.raises == "proof" else _broken(task)
    return _of_status(task)


def _stores(plan: Plan, policy: Policy) -> bool:
    if plan.said is not None:
        return plan.said is Verdict.KEEP
    if plan.status >= 500:
        return policy.keep is keep_errors_too
    return plan.status != 403 and (plan.status < 400 or policy.keep is not keep_success)


def _of_status(task: Task) -> Due:
    """What an answer means that is not stored."""
    status, policy = task.plan.status, task.policy
    if status == 403:
        return "free"
    if status < 500:
        return "retry"
    if status == 504 and policy.keep is keep_doubtful and not task.earlier:
        return "ask" if policy.recovery == "ask" else "unknown"
    return _broken(task)


def _broken(task: Task) -> Due:
    """It may have had its effect, and did not say how it ended."""
    policy = task.policy
    if policy.atomic or task.earlier or policy.recovery in ("rerun", "resume"):
        return "retry"
    return "ask" if policy.recovery == "ask" else "unknown"
