"""Every exception that oncekey raises.

    OncekeyError
    ├── Misuse               the program is wrong: a bad setting, a call in the wrong place
    ├── StoreError
    │   ├── StoreUnavailable the store did not answer; `sent` says whether it may have acted
    │   ├── StoreUnfit       the store answers, but must not be used as it is
    │   │   └── TooLong      what is to be kept is more than it takes
    │   └── CorruptRecord    what the store returned cannot be read
    ├── StepsChanged         a later attempt takes other steps than the one it continues
    ├── OutcomeUnknown       a step that must not be repeated was begun, and nobody knows its end
    ├── LeaseLost            raised in a handler that does not own its record any more
    └── Refusal              a call of a guarded function was refused, and did not run
        ├── InFlight         the first call with this key still runs
        ├── Mismatch         the key belongs to a call with other arguments
        ├── Unknown          an earlier call began, and nobody knows how it ended
        └── NotKept          it was done, but its result cannot be given back

Within the engine and over HTTP refusals are not exceptions but values: see `_core.problems`.
"""

from __future__ import annotations

from typing import Any


class OncekeyError(Exception):
    """The base of everything below, so that one `except` can catch it."""


class Misuse(OncekeyError):
    """The program uses oncekey wrongly; the message says what to write instead."""


class StoreError(OncekeyError):
    """Something about the store."""


class StoreUnavailable(StoreError):
    """The store did not answer.

    `sent` is False only when the question provably never left this process. A question that may
    have been sent may also have been carried out: repeat it with the same token, never assume that
    it failed.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class StoreUnfit(StoreError):
    """The store works but would not keep the promises; the message names the setting or command
    that helps.
    """


class TooLong(StoreUnfit):
    """What is to be kept is more than the store takes, now and later. Nothing was sent."""


class CorruptRecord(StoreError):
    """A stored record could not be decoded; it is never guessed at."""


class StepsChanged(OncekeyError):
    """A later attempt takes other steps than the one it continues: the program was changed in
    between.
    """


class OutcomeUnknown(OncekeyError):
    """A step that must not be repeated was begun by an earlier attempt, and nobody knows how it
    ended.
    """


class LeaseLost(OncekeyError):
    """This attempt does not own its record any more: what it writes will be refused."""


class Refusal(OncekeyError):
    """A call of a guarded function was refused, and did not run. `problem` says why.

    `problem` is an `oncekey._core.problems.Problem`; None where the exception came from another
    process as a name and a text, as task queues pass it on.
    """

    def __init__(self, detail: str, problem: Any = None) -> None:
        super().__init__(detail)
        self.problem = problem

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later, without anybody changing anything."""
        return self.problem is not None and bool(self.problem.retryable)

    @property
    def retry_after_s(self) -> float | None:
        """When to call again, where that helps."""
        wait_s: float | None = self.problem and self.problem.retry_after_s
        return wait_s


class InFlight(Refusal):
    """The first call with this key still runs: call again after `retry_after_s`."""


class Mismatch(Refusal):
    """The key belongs to a call with other arguments."""


class Unknown(Refusal):
    """An earlier call with this key began, and nobody knows how it ended: an operator must look."""


class NotKept(Refusal):
    """The call with this key was done, but its result was not kept, or not in a form that this
    release reads. It will not run again.
    """
