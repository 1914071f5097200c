"""The ledger: what the handlers themselves know of their runs. Whatever oncekey believes, this is
what happened.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from oncekey.attempt import Attempt

SYNCED = ("begin", "effect", "end")
"""What is on disk before the handler goes on."""


class Id(NamedTuple):
    """What makes two requests the same operation."""

    account: str
    route: str
    key: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. Times are of the monotonic clock, which all processes of a machine share."""

    what: str
    """`begin`, `beat`, `failed` or `end` of a run; `effect` of a step, which is `kept` later."""
    at: float
    id: Id
    run: str
    fence: int
    claimed_at: float
    """When oncekey said that the claim is made: it lets nobody begin whose lease was over then."""
    lease_until: float
    """What the handler is told of its lease now: renewals move it."""
    pid: int
    step: str = ""


class Ledger:
    """Lines that processes append to one file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, attempt: Attempt, run: str, claimed_at: float, step: str) -> None:
        id_ = Id(attempt.tenant, attempt.operation.rpartition("/")[2], attempt.key)
        times = time.monotonic(), id_, run, attempt.fence, claimed_at, attempt.lease_until
        # One write to a file opened for appending: it survives the death of this process whole.
        line = json.dumps(asdict(Entry(what, *times, os.getpid(), step)))
        os.write(self._file, line.encode() + b"\n")
        if what in SYNCED:
            os.fsync(self._file)


def read(path: Path) -> Iterator[Entry]:
    for line in path.read_text().splitlines() if path.exists() else ():
        told = json.loads(line)
        yield Entry(**{**told, "id": Id(*told["id"])})
