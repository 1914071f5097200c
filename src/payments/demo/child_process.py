"""A child process that never outlives its parent."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO


class ChildProcess:
    """One program in a process of its own.

    Start it from the main thread: where the system has `setpriv`, as Linux has, the kernel ends a
    child when the thread that started it is gone, however that came. Elsewhere only an orderly end
    of the parent ends it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        output: IO[bytes] | int | None = None,
        errors: IO[bytes] | int | None = None,
        environment: Mapping[str, str] | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        guard = shutil.which("setpriv")
        bound = [guard, "--pdeathsig", death_signal.name[3:]] if guard else []
        # A session of its own: Ctrl-C reaches the parent alone, which ends its children in order.
        self._process = subprocess.Popen(  # noqa: S603
            [*bound, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output if errors is None else errors,
            env=environment,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int:
        """The exit status; TimeoutExpired if it runs longer."""
        return self._process.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def stop(self, grace_s: float) -> int:
        """SIGTERM, and SIGKILL for what is still there after `grace_s`."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(grace_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """The end, at once."""
        self.signal(signal.SIGKILL)
        return self._process.wait()
