"""`@once`: any function, run once per key.

    runtime = oncekey.Runtime("sqlite:///keys.db")

    @oncekey.once(runtime, key="{order_id}/pay")
    def pay(order_id: str, amount: int) -> dict[str, str]: ...

The first call runs the function and keeps its result; every later call with the same key gets that
result, as JSON gives it back. Functions may be sync or async, methods too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from oncekey._core.expression import Source
from oncekey._core.policy import Policy
from oncekey._core.record import Record
from oncekey._engine.decisions import Call
from oncekey._engine.function_call import SINGLE_TENANT, FunctionCalls
from oncekey._engine.operation import Operation
from oncekey._engine.outcomes import Declined, Outcome
from oncekey._engine.registry import Orphan
from oncekey._engine.runtime import Runtime
from oncekey._engine.unawaited import must_run_when_called
from oncekey._system.warn_once import warn
from oncekey.errors import Misuse

P = ParamSpec("P")
R = TypeVar("R")


def once(
    runtime: Runtime,
    *,
    key: Source | None = None,
    tenant: Source = SINGLE_TENANT,
    name: str | None = None,
    policy: Policy | None = None,
    fingerprint: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run the function once per key.

    `key` is made from the arguments: `"{order.id}/pay"`, or a function that takes some of them by
    name. So is `tenant`, which may also be a constant. `name` is the operation, the function's own
    name unless given: whoever renames a function with records must give the old one. `fingerprint`
    says what makes two calls the same where that is not all arguments.

    A call raises `Mismatch` where the key was used with other arguments, `InFlight` while the first
    call runs, `Unknown` where nobody knows how it ended, `StoreUnavailable` where the store does
    not answer. What the function raises is raised to the caller; the next call runs again, or under
    `recovery="block"` raises `Unknown`.
    """
    if not isinstance(runtime, Runtime):
        raise Misuse(
            "@oncekey.once needs to know where to remember and by what: write "
            "@oncekey.once(oncekey.Runtime('sqlite:///keys.db'), key='{order_id}')"
        )
    if key is None:
        raise Misuse(
            "@oncekey.once(runtime, key=…) needs a key: what tells one operation from the next and "
            "is the same for every retry of it, such as key='{order_id}' or key=lambda order: …"
        )

    def guarded(function: Callable[P, R]) -> Callable[P, R]:
        _check(function)
        operation = Operation(runtime, name or _name_of(function), policy)
        _tell_of_a_namesake(operation, function)
        calls = FunctionCalls(
            operation.name,
            operation.policy,
            inspect.signature(function),
            key=key,
            tenant=tenant,
            fingerprint=fingerprint,
        )
        is_async = _is_async(function)
        if operation.policy.recovery != "rerun":
            runtime.registry.add(_Runner(function, operation, calls, is_async=is_async))
        if is_async:
            return cast("Callable[P, R]", _guarded_async(function, operation, calls))
        return _guarded_sync(function, operation, calls)

    return guarded


def _guarded_async(
    function: Callable[..., Any], operation: Operation, calls: FunctionCalls
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        read = calls.read(args, kwargs)
        return _result_of(await operation.run(read, partial(function, *args, **kwargs)))

    return call


def _guarded_sync(
    function: Callable[P, R], operation: Operation, calls: FunctionCalls
) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        read = calls.read(args, kwargs)
        return cast("R", _result_of(operation.run_sync(read, partial(function, *args, **kwargs))))

    return call


def _result_of(outcome: Outcome) -> Any:
    if isinstance(outcome, Declined):
        raise outcome.error()
    return outcome.result


class _Runner:
    """Finishes calls whose callers do not come back, for the recoverer."""

    def __init__(
        self,
        function: Callable[..., Any],
        operation: Operation,
        calls: FunctionCalls,
        *,
        is_async: bool,
    ) -> None:
        self.guard = operation.runtime.guard
        self._function = function
        self._operation = operation
        self._calls = calls
        self._is_async = is_async

    def policy(self, record: Record) -> Policy | None:
        return self._operation.policy if record.operation == self._operation.name else None

    def owns(self, orphan: Orphan) -> bool:
        if orphan.record.operation != self._operation.name or orphan.request is None:
            return False
        try:
            call, _ = self._reread(orphan.request)
        except Exception:  # it takes other arguments now, or its key is made from others
            return False
        return self.guard.claim(call, self._operation.policy).id == orphan.record.id

    async def recover(self, orphan: Orphan) -> bool:
        if orphan.request is None:
            return False
        call, work = self._reread(orphan.request)
        if self._is_async:
            return await self._operation.take_up(orphan, call, work)
        return await asyncio.to_thread(self._operation.take_up_sync, orphan, call, work)

    def _reread(self, request: bytes) -> tuple[Call, Callable[[], Any]]:
        args, kwargs = self._calls.decode_request(request)
        return self._calls.read(tuple(args), kwargs), partial(self._function, *args, **kwargs)


def _is_async(function: Callable[..., Any]) -> bool:
    called = getattr(function, "__call__", None)  # noqa: B004  (an object whose call is async)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _check(function: Any) -> None:
    if isinstance(function, classmethod | staticmethod):
        raise Misuse("@oncekey.once stands below @classmethod and @staticmethod, not above")
    if hasattr(function, "apply_async"):  # workers find the task by its name
        raise Misuse("@oncekey.once stands below @app.task, not above: workers would not see it")
    if not callable(function) or inspect.isclass(function):
        raise Misuse(f"@oncekey.once guards functions and methods, not {function!r:.80}")
    must_run_when_called(function)


_named: WeakKeyDictionary[Runtime, WeakValueDictionary[str, Any]] = WeakKeyDictionary()
"""The functions that can still be called, by runtime and by name."""


def _tell_of_a_namesake(operation: Operation, function: Any) -> None:
    """Functions that share a name share records: each is given the other's results. It may be the
    same one, made anew.
    """
    named = _named.setdefault(operation.runtime, WeakValueDictionary())
    if named.get(operation.name, function) is not function:
        warn(
            "names",
            f"another function is called {operation.name}, and each is given the other's results: "
            "if they do different things, give each a name=…",
        )
    with contextlib.suppress(TypeError):  # an object to which nobody can refer like that
        named[operation.name] = function


def _name_of(function: Any) -> str:
    """The module and name of a function: the same wherever it is imported from."""
    qualname = getattr(function, "__qualname__", None)
    if qualname is None or qualname.endswith("<lambda>"):
        raise Misuse("@oncekey.once(…, name=…): this function has no name of its own; give it one")
    module = function.__module__
    if module == "__main__":  # as a worker calls it that imports the program which we run
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    return f"{module}.{qualname}"
