"""Every exception that oncekey raises.

    OncekeyError
    ├── Misuse               the program is wrong: a bad setting, a call in the wrong place
    ├── StoreError
    │   ├── StoreUnavailable the store did not answer; `sent` says whether it may have acted
    │   ├── StoreUnfit       the store answers, but is not safe to use as it is
    │   │   └── TooLong      a value is longer than the store accepts
    │   └── CorruptRecord    what the store returned cannot be read
    ├── StepsChanged         a later attempt takes other steps than the one it continues
    ├── OutcomeUnknown       an `at_most_once` step was begun, and nobody knows how it ended
    ├── LeaseLost            raised in a handler that no longer owns its record
    └── Refusal              a call of a guarded function was refused and did not run
        ├── InFlight         the first call with this key is still running
        ├── Mismatch         the key belongs to a call with other arguments
        ├── Unknown          an earlier call began, and nobody knows how it ended
        └── NotKept          it was done, but its result cannot be returned again

In the engine and over HTTP, refusals are values, not exceptions: see `_core.problems`.
"""

from __future__ import annotations

from typing import Any


class OncekeyError(Exception):
    """The base of all exceptions of oncekey."""


class Misuse(OncekeyError):
    """The program uses oncekey wrongly; the message says what to write instead."""


class StoreError(OncekeyError):
    """A problem of the store."""


class StoreUnavailable(StoreError):
    """The store did not answer.

    `sent` is False only if the query provably never left this process. A query that may have been
    sent may also have been carried out: repeat it with the same token, and never assume that it
    failed.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class StoreUnfit(StoreError):
    """The store works but is not safe to use; the message says what helps."""


class TooLong(StoreUnfit):
    """A value is longer than the store ever accepts. Nothing was sent."""


class CorruptRecord(StoreError):
    """A stored record cannot be decoded."""


class StepsChanged(OncekeyError):
    """A later attempt takes other steps than the one it continues: the code changed in between."""


class OutcomeUnknown(OncekeyError):
    """An earlier attempt began an `at_most_once` step, and nobody knows how that ended."""


class LeaseLost(OncekeyError):
    """This attempt no longer owns its record: its writes will be refused."""


class Refusal(OncekeyError):
    """A call of a guarded function was refused and did not run. `problem` says why.

    `problem` is an `oncekey._core.problems.Problem`; None if the exception came from another
    process as a name and a text, as task queues pass it on.
    """

    def __init__(self, detail: str, problem: Any = None) -> None:
        super().__init__(detail)
        self.problem = problem

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later if nothing changes."""
        return self.problem is not None and bool(self.problem.retryable)

    @property
    def retry_after_s(self) -> float | None:
        """After how many seconds to call again, if that helps."""
        wait_s: float | None = self.problem and self.problem.retry_after_s
        return wait_s


class InFlight(Refusal):
    """The first call with this key is still running: call again after `retry_after_s`."""


class Mismatch(Refusal):
    """The key belongs to a call with other arguments."""


class Unknown(Refusal):
    """An earlier call with this key began, and nobody knows how it ended: find out first."""


class NotKept(Refusal):
    """The call with this key was done, but its result was not stored, or not in a form that this
    release reads. It will not run again.
    """
