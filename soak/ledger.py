"""The ledger: what handlers record about their runs, independently of oncekey."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from oncekey._system.clock import SystemClock

now = SystemClock.boot
"""The clock that measures leases; all processes of a machine share it."""
SYNCED = ("begin", "effect", "end")
"""Entries that are on disk before the handler continues."""


class Id(NamedTuple):
    """What makes two requests the same operation."""

    account: str
    route: str
    key: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. Times are those of `now`."""

    what: str
    """`begin`, `beat`, `failed` or `end` of a run; `effect` of a step, which is `kept` later;
    `published`, the message of a part of a run; `settled` or `released` by an operator.
    """
    at: float
    id: Id
    run: str
    fence: int
    claimed_at: float
    """When oncekey reported the claim: no run may begin whose lease was over by then."""
    lease_until: float
    """The end of the lease as the handler sees it now: renewals move it."""
    pid: int
    step: str = ""


class Ledger:
    """Appends lines to a file shared by processes, and stores effects that can be looked up."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._known = Path(f"{path}.known")
        self._known.mkdir(exist_ok=True)

    def note(
        self,
        what: str,
        id_: Id,
        run: str,
        fence: int = 0,
        claimed_at: float = 0.0,
        lease_until: float = 0.0,
        step: str = "",
    ) -> None:
        times = now(), id_, run, fence, claimed_at, lease_until
        # One write to a file opened for appending: it survives the death of this process whole.
        line = json.dumps(asdict(Entry(what, *times, os.getpid(), step)))
        os.write(self._file, line.encode() + b"\n")
        if what in SYNCED:
            os.fsync(self._file)

    def record_effect(self, id_: Id, answer: dict[str, Any]) -> None:
        """Store the effect of an operation, atomically. The first one counts."""
        draft = self._known / answer["run"]
        draft.write_text(json.dumps(answer))
        with contextlib.suppress(FileExistsError):
            os.link(draft, self._known / " ".join(id_))

    def find_effect(self, id_: Id) -> dict[str, Any] | None:
        """Return the effect of this operation, if it had one."""
        try:
            answer: dict[str, Any] = json.loads((self._known / " ".join(id_)).read_text())
        except FileNotFoundError:
            return None
        return answer


def read(path: Path) -> Iterator[Entry]:
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        yield Entry(**{**fields, "id": Id(*fields["id"])})
