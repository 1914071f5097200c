"""Planted bugs in the session: the right engine, driven in the wrong order (P1, P2, P4, P7)."""

from __future__ import annotations

import contextlib
from typing import Any

from oncekey._core import lifecycle
from oncekey._core.endings import End
from oncekey._core.op import Op
from oncekey._core.record import Answer, Record, State
from oncekey._core.verbs import Find
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import Decision, Execute, Finished, Refuse, Stored
from oncekey._engine.lease import Phase
from oncekey._engine.session import Session
from oncekey.errors import StoreUnavailable
from simulator.bugs.planting import planted
from simulator.parts import Parts

# ------------------------------------------------------------------------------- the heartbeat


@planted(seeds=200)
def heartbeat_starts_when_the_handler_has_ended() -> Parts:
    """Nobody renews a long handler's lease: a retry runs it beside the first one."""

    class Late(Session):
        def _own(self, attempt: Attempt) -> None:
            self.attempt, self._is_held = attempt, True

        def answered(self, end: End, answer: Answer | None) -> Op[Finished]:
            super()._own(self.attempt)
            return super().answered(end, answer)

    return Parts(session=Late)


@planted(seeds=5_000)
def heartbeat_waits_for_the_application() -> Parts:
    """The application takes long to find out what became of it: by then another runs it."""

    class Late(Session):
        def _own(self, attempt: Attempt) -> None:
            self.attempt, self._is_held = attempt, True
            if not attempt.asks:
                super()._own(attempt)

        def learned(self, found: object) -> Op[Finished | None]:
            super()._own(self.attempt)
            return super().learned(found)

    return Parts(session=Late)


# ----------------------------------------------------------------------------------- the claim


@planted(seeds=5_000)
def claim_of_a_cancelled_request_stays() -> Parts:
    """A client hangs up while its key is claimed: nobody owns the record, and a retry waits."""

    class Forgetful(Session):
        def open(self) -> Op[Decision]:
            decision = yield from self._engine.begin(self.call, self.policy, self.claim)
            if isinstance(decision, Execute):
                self._own(decision.attempt)
            elif isinstance(decision, Refuse) and decision.lost_claim is not None:
                self._forget()
            return decision

    return Parts(session=Forgetful)


# ------------------------------------------------------------------------- what must be one end


@planted(seeds=500)
def ended_twice() -> Parts:
    """Code behind the response raises: an attempt that was recorded is given back as failed."""

    class Twice(Session):
        def failed(self, error: BaseException) -> Op[Finished | None]:
            return self._ownership.conclude_failed(self.attempt, error, self.call)

    return Parts(session=Twice)


@planted(seeds=2_000)
def released_after_loss() -> Parts:
    """Who lost its record gives back what stands there now: that is another's, which still runs."""

    class Careless(Session):
        def failed(self, error: BaseException) -> Op[Finished | None]:
            if self.attempt.lost and self._ports is not None:
                with contextlib.suppress(StoreUnavailable):
                    found: Record | None = yield Find(self.claim.id)
                    if found is not None and found.state is State.RUNNING:
                        now = lifecycle.Held(found.id, found.fence, found.token)
                        retention_s = self.policy.retention_s + self.policy.tombstone_s
                        yield lifecycle.release(now, no_effect=False, retention_s=retention_s)
            return (yield from super().failed(error))

    return Parts(session=Careless)


class _Blind:
    """Ports of a process that does not look at its threads."""

    def __init__(self, ports: Any) -> None:
        self._ports = ports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ports, name)

    def still_running(self, attempt: Attempt) -> bool:
        return False


@planted(seeds=1_000)
def thread_runs_on_after_release() -> Parts:
    """A time limit cuts the handler off, its thread goes on, and a retry runs beside it."""

    class Blind(Session):
        def _own(self, attempt: Attempt) -> None:
            super()._own(attempt)
            if attempt.ports is not None:
                blind: Any = _Blind(attempt.ports)
                attempt.ports = blind

    return Parts(session=Blind)


@planted(seeds=5_000)
def answer_after_a_drain_is_not_stored() -> Parts:
    """The process is about to stop, and its store closed: the answer goes out all the same."""

    class Drained(Session):
        def answered(self, end: End, answer: Answer | None) -> Op[Finished]:
            ports: Any = self._ports
            if end is End.KEPT and ports is not None and ports.is_draining:
                self.attempt.lease.move(Phase.ENDED)
                return Stored(self.policy.retention_s)
            return (yield from super().answered(end, answer))

    return Parts(session=Drained)


# --------------------------------------------------------------------- the application is asked


@planted(seeds=2_000)
def what_the_application_said_is_lost() -> Parts:
    """The application knows that it was done, and it is done again."""

    class Deaf(Session):
        def learned(self, found: object) -> Op[Finished | None]:
            if isinstance(found, Answer):
                self.attempt.lease.move(Phase.RUNNING)
                return None
            return (yield from super().learned(found))

    return Parts(session=Deaf)
