"""An attempt: one try at running a handler, as the handler and the engine see it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar

from oncekey.core.lifecycle import Held
from oncekey.core.policy import Policy, Verdict
from oncekey.core.printable import printable
from oncekey.core.record import Claim
from oncekey.errors import LeaseLost, Misuse

RESOURCE_ID_CHARS_MAX = 255

_log = logging.getLogger("oncekey")


class Attempt:
    """The attempt that runs now: `oncekey.current()` gives it to the handler."""

    __slots__ = (
        "_claim",
        "_listeners",
        "_resource_id",
        "age_s",
        "attempt",
        "claimed_at",
        "fence",
        "finished",
        "held",
        "lapses",
        "lease_until",
        "lost",
        "policy",
        "verdict",
    )

    def __init__(
        self,
        claim: Claim,
        policy: Policy,
        *,
        fence: int,
        attempt: int,
        lapses: int,
        age_s: float,
        claimed_at: float,
    ) -> None:
        self._claim = claim
        self._listeners: list[Callable[[], None]] = []
        self.policy = policy
        self.held = Held(claim.id, fence, claim.token)
        self.fence = fence
        """Rises with every change of owner: hand it to systems that can fence."""
        self.attempt = attempt
        """1 for the first try."""
        self.lapses = lapses
        """How many earlier attempts died without finishing."""
        self.age_s = age_s
        """How long before this attempt the first one began."""
        self.claimed_at = claimed_at
        self.lease_until = claimed_at + claim.lease_s
        """By this process's monotonic clock, counted from before the claim was sent: never later
        than the store's own deadline.
        """
        self.lost = False
        """True once this attempt does not own its record any more, or cannot know: stop before the
        next effect.
        """
        self.finished = False
        self.verdict: Verdict | None = None
        self._resource_id: str | None = None

    def __repr__(self) -> str:
        lost = ", lost" if self.lost else ""
        return f"<Attempt {self.attempt} of {self.operation!r}, fence {self.fence}{lost}>"

    @property
    def key(self) -> str:
        """The key that the client sent."""
        return self._claim.key

    @property
    def tenant(self) -> str:
        return self._claim.tenant

    @property
    def operation(self) -> str:
        return self._claim.operation

    @property
    def lease_s(self) -> float:
        return self._claim.lease_s

    @property
    def retention_s(self) -> float:
        return self._claim.retention_s

    @property
    def resource_id(self) -> str | None:
        """The id of what the handler created, set by it: kept with the answer, for operators."""
        return self._resource_id

    @resource_id.setter
    def resource_id(self, created: str | None) -> None:
        # Numbers and UUIDs are ids too. A store that refused one would refuse the whole answer,
        # after the effect.
        text = None if created is None else printable(str(created), RESOURCE_ID_CHARS_MAX)
        self._resource_id = text

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt died after it had begun: its effects may have happened."""
        return self.lapses > 0

    def final(self) -> None:
        """Keep this answer, whatever its status."""
        self.verdict = Verdict.KEEP

    def transient(self) -> None:
        """Do not keep this answer: the same request may run again."""
        self.verdict = Verdict.FAILED

    def no_effect(self) -> None:
        """Nothing happened: forget this try, even another request may use the key."""
        self.verdict = Verdict.NO_EFFECT

    def ensure_owned(self) -> None:
        """Raise `LeaseLost` if this attempt should stop: call it before an effect in a long
        handler.
        """
        if self.lost:
            raise LeaseLost(
                f"attempt {self.attempt} of {self.operation} lost its record; another may be "
                "running: stop here, what this one answers will be discarded"
            )

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the lease is lost, from the heartbeat's thread; at once if it is
        lost already.
        """
        self._listeners.append(listener)
        if self.lost:
            listener()

    def mark_lost(self) -> bool:
        """For the engine: signal the loss, once. False if it was signalled before, or the attempt
        has ended.
        """
        if self.lost or self.finished:
            return False
        self.lost = True
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # whoever signals serves every other attempt too
                _log.exception("a listener failed when %r was lost", self)
        return True


_current: ContextVar[Attempt | None] = ContextVar("oncekey_attempt", default=None)


def current() -> Attempt:
    """The attempt that this code runs in.

    Raises `Misuse` outside one, for instance in a request that brought no key: use
    `current_or_none()` there.
    """
    attempt = _current.get()
    if attempt is None:
        raise Misuse(
            "oncekey.current() was called outside a guarded handler: the request brought no key, "
            "or its method or route is not guarded; oncekey.current_or_none() allows for that"
        )
    return attempt


def current_or_none() -> Attempt | None:
    """The attempt that this code runs in, None outside one."""
    return _current.get()


def enter(attempt: Attempt) -> None:
    """For the edges: what `current()` gives from here on in this context."""
    _current.set(attempt)


def leave() -> None:
    """For the edges that share a context between requests (threads)."""
    _current.set(None)
