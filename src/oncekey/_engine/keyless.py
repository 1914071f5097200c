"""What `current()` gives where a guarded application serves a request that nothing protects.

It brought no key, its method is not guarded, or the store is down and the policy lets it run. A
handler should not have to ask which: steps run and are not kept, what it says of its answer has no
effect, and child keys are new for every request.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from oncekey._core import lifecycle, refusals
from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import Op, arun, run
from oncekey._core.policy import Policy
from oncekey._core.record import Answer, Claim, Step
from oncekey._core.verbs import Done, Insert
from oncekey._engine.attempt import Attempt, Passing, served
from oncekey._engine.decisions import Call, Decision, Execute, Finished, Given, Refuse
from oncekey._engine.lease import Phase
from oncekey._system.chance import random_token
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import Store

T = TypeVar("T")


class _Nothing:
    """The engine and the ports of an attempt that has no record: whatever is to be kept is done."""

    ownership: Any
    heartbeat: Any

    def __init__(self, store: Store | None = None) -> None:
        self.ownership = self.heartbeat = self
        self.store = store

    def watch_lease(self, attempt: Attempt) -> None:
        """It has none."""

    def keep_step(self, attempt: Attempt, step: Step) -> Op[Done]:
        yield from ()
        return Done(0)

    async def drive(self, op: Op[T]) -> T:
        return await arun(op, _refuse_question)

    drive_to_end = drive

    def drive_sync(self, op: Op[T]) -> T:
        return run(op, _refuse_question)


def _refuse_question(verb: object) -> Awaitable[Any]:
    raise AssertionError(f"an attempt without a record asked for {verb!r}")


def passing(
    find: Callable[[], tuple[str, Policy]], store: Store, claim: Claim | None = None
) -> Passing:
    """For the edges: a request that is served and not protected. `find` says what applies to it, if
    its handler asks; `claim` is what it would have been protected by.
    """
    return Passing(lambda: _unprotected(*find(), claim, store))


def _unprotected(
    operation: str, policy: Policy, claim: Claim | None, store: Store | None = None
) -> Attempt:
    claim = claim or _claim(operation, policy)
    attempt = Attempt(claim, policy, fence=0, claimed_at=0.0)
    attempt.protected = False
    nothing: Any = _Nothing(store)
    attempt.ports = nothing
    return attempt


def _claim(operation: str, policy: Policy) -> Claim:
    return Claim(
        id=random_token() + random_token(),
        token=random_token(),
        tenant="",
        operation=operation,
        key="",
        fingerprint=b"",
        fingerprint_version=0,
        lease_s=policy.lease_s,
        retention_s=policy.retention_s,
    )


class Parts:
    """An answer that nothing protects, as it is read: what makes its parts is its handler still."""

    def __init__(self, source: Iterable[Any], unprotected: Passing) -> None:
        self._source, self._unprotected = source, unprotected
        self._parts: Iterator[Any] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        with served(self._unprotected):
            if self._parts is None:
                self._parts = iter(self._source)
            return next(self._parts)

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            with served(self._unprotected):
                close()


async def parts_awaited(source: AsyncIterable[T], unprotected: Passing) -> AsyncIterator[T]:
    """The same, awaited."""
    parts = aiter(source)
    while True:
        with served(unprotected):
            try:
                part = await anext(parts)
            except StopAsyncIteration:
                return
        yield part


class Plain:
    """The engine of requests without a key on atomic routes: a transaction that commits by the same
    rule as one with a key, and no record. For units that are `plain`.
    """

    @property
    def ownership(self) -> Plain:
        return self

    def claim(self, call: Call, policy: Policy) -> Claim:
        return _claim(call.operation, policy)

    def begin(self, call: Call, policy: Policy, claim: Claim) -> Op[Decision]:
        try:
            yield Insert(claim)
        except StoreUnavailable:
            return Refuse(refusals.store_unavailable())
        return Execute(_unprotected(call.operation, policy, claim))

    def take_up(self, *_: object) -> Op[Execute | None]:
        raise AssertionError("nobody takes up a request that has no record")

    def learned(self, *_: object) -> Op[Finished | None]:
        raise AssertionError("nobody is asked about a request that has no record")

    def conclude(
        self, attempt: Attempt, end: End, answer: Answer | None, call: Call
    ) -> Op[Finished]:
        attempt.lease.move(Phase.ENDED)
        if attempt.handed is not None and end is End.KEPT:
            attempt.handed.check(attempt.operation)
        if end is End.KEPT and answer is not None:
            swap = lifecycle.complete(attempt.held, answer, retention_s=attempt.retention_s)
        else:
            swap = lifecycle.release(attempt.held, no_effect=True, retention_s=attempt.retention_s)
        try:
            yield swap
        except StoreUnavailable:  # nobody acknowledged the commit
            return Refuse(refusals.commit_unknown())
        return Given()

    def conclude_failed(self, attempt: Attempt, error: BaseException, call: Call) -> Op[Finished]:
        return self.conclude(attempt, End.FAILED, None, call)


PLAIN = Plain()


def keyless(operation: str) -> Call:
    """What an edge knows of such a request."""
    return Call("", operation, "", Fingerprint(0, b""))
