"""Celery tasks that take effect once, however often the broker delivers them.

    app = Celery("shop", broker="redis://…")
    runtime = oncekey.Runtime("postgresql://…")

    @app.task(base=once_task(runtime))                           # once per task id
    def ship(order_id): ...

    @app.task(base=once_task(runtime, key="{order_id}/pay"))     # once per order
    def pay(order_id, amount): ...

Such a task is acknowledged after it ran (`acks_late`) and redelivered if its worker is lost
(`reject_on_worker_lost`): no task is lost, and a task delivered twice runs once. `self.retry()`
releases the record and keeps the key.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Self

from oncekey._core.expression import Source
from oncekey._core.policy import Policy, Verdict
from oncekey._engine.attempt import current_or_none
from oncekey._engine.function_call import SINGLE_TENANT, FunctionCalls
from oncekey._engine.operation import Operation
from oncekey._engine.outcomes import Declined
from oncekey._engine.runtime import Runtime
from oncekey._engine.unawaited import must_run_when_called
from oncekey.errors import Misuse

try:
    from celery import Task  # type: ignore[import-untyped]
    from celery.exceptions import (  # type: ignore[import-untyped]
        Ignore,
        Reject,
        Retry,
    )
    from celery.signals import celeryd_after_setup  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    _message = f"{error}: pip install 'oncekey[celery]'"
    raise ModuleNotFoundError(_message, name=error.name) from error

_log = logging.getLogger("oncekey")

RETRY_S = 1.0

_operations: list[Operation] = []
"""The operations of all tasks in this process."""


@celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _warn(**_: Any) -> None:
    """Warn before a worker starts its children, each of which would warn again."""
    for operation in _operations:
        operation.warn()


def once_task(
    runtime: Runtime,
    *,
    key: Source | None = None,
    tenant: Source = SINGLE_TENANT,
    policy: Policy | None = None,
    fingerprint: Callable[..., Any] | None = None,
) -> type[Any]:
    """Make a base class for tasks that run once per key, or per task id without a `key`.

    The settings are those of `oncekey.once`; the operation is the task's name. A delivery is put
    off while another one runs or the store is unavailable. A mismatch or an unknown outcome fails
    the task: `Mismatch`, `Unknown`.
    """

    class Once(OnceTask):
        @classmethod
        def settings(cls, run: Callable[..., Any]) -> tuple[Operation, FunctionCalls]:
            operation = Operation(runtime, cls.name, policy, kind="a task", redelivered=True)
            signature = inspect.signature(run)
            calls = FunctionCalls(
                cls.name,
                operation.policy,
                signature,
                key=key,
                tenant=tenant,
                fingerprint=fingerprint,
            )
            return operation, calls

    return Once


class OnceTask(Task):  # type: ignore[misc]  # Celery has no types
    """The class that `once_task` extends with settings."""

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    _settings: tuple[Operation, FunctionCalls]

    def __new__(cls, *given: Any) -> Self:
        if given:
            raise Misuse("once_task(…) makes a base class: @app.task(base=once_task(runtime))")
        task: Self = super().__new__(cls)
        return task

    @classmethod
    def settings(cls, run: Callable[..., Any]) -> tuple[Operation, FunctionCalls]:
        raise Misuse("OnceTask has no settings: use @app.task(base=once_task(runtime))")

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the settings when Celery has completed a task, before it is used."""
        run = vars(cls).get("run")
        if run is None:  # a base class of tasks
            return
        if not cls.acks_late:
            raise Misuse(
                f"{cls.name}: acks_late=False acknowledges a task before it runs, and loses it if "
                "its worker dies: leave that setting to once_task"
            )
        must_run_when_called(getattr(run, "__func__", run))
        plain = run.__func__ if isinstance(run, staticmethod) else partial(run, cls)
        cls._settings = operation, _ = cls.settings(plain)
        _operations.append(operation)
        if getattr(cls, "autoretry_for", ()) and operation.policy.recovery in ("block", "ask"):
            raise Misuse(
                f"{cls.name}: autoretry_for would run it again after an exception that may have "
                "happened after its effect, which "
                f"Policy(recovery={operation.policy.recovery!r}) prevents. Leave autoretry_for "
                "out; name the exceptions that prove that nothing happened, "
                "Policy(no_effect_on=(…,)), and call self.retry() on those"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if not getattr(request, "oncekey_runs", False):
            request.oncekey_runs = bool(request.id)
            return self._once(args, kwargs)
        # The task calls itself, which is not a delivery.
        direct = {"id": None, "called_directly": True, "oncekey_runs": False}
        self.push_request(args=args, kwargs=kwargs, **direct)
        try:
            return self._once(args, kwargs)
        finally:
            self.pop_request()

    def _once(self, args: Any, kwargs: Any) -> Any:
        operation, calls = self._settings
        if not calls.has_key and not self.request.id:
            raise Misuse(
                f"{self.name} runs once per task id, and a direct call has none: use "
                f"{self.name}.delay(…), give it a key=…, or call its run(…) without protection"
            )
        call = calls.read(args, kwargs, self.request.id)
        outcome = operation.run_sync(call, partial(self._run, args, kwargs))
        if isinstance(outcome, Declined):
            self._postpone(outcome)
        return outcome.result

    def _run(self, args: Any, kwargs: Any) -> Any:
        try:
            return self.run(*args, **kwargs)
        except (Retry, Reject) as again:  # the task itself wants to run again
            attempt = current_or_none()
            knows = attempt is None or attempt.verdict is not Verdict.UNKNOWN
            if attempt is not None and knows and (isinstance(again, Retry) or again.requeue):
                attempt.transient()
            raise

    def _postpone(self, declined: Declined) -> NoReturn:
        request, error = self.request, declined.error()
        if not declined.problem.retryable or request.called_directly or request.is_eager:
            raise error
        # As `self.retry` does it, without spending one of the task's own retries.
        countdown = declined.problem.retry_after_s or RETRY_S
        again = self.signature_from_request(
            request, request.args, request.kwargs, countdown=countdown, retries=request.retries
        )
        try:
            again.apply_async()
        except Exception as failure:
            raise Reject(failure, requeue=True) from failure
        _log.info("%s is put off for %g s: %s", self.name, countdown, error)
        raise Ignore(str(error))
