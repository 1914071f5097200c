"""A child process that never outlives its parent."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO


class ChildProcess:
    """A program in a child process.

    Start it from the main thread: where the system has `setpriv`, as Linux does, the kernel kills
    the child when the thread that started it ends for whatever reason. Elsewhere the child ends
    only if the parent exits in an orderly way.
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
        # A separate session: Ctrl-C reaches only the parent, which stops its children in order.
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
        """Wait for the exit status; raise TimeoutExpired if it runs longer."""
        return self._process.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def stop(self, grace_s: float) -> int:
        """Send SIGTERM, and SIGKILL if it still runs after `grace_s`; return the exit status."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(grace_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Send SIGKILL and return the exit status."""
        self.signal(signal.SIGKILL)
        return self._process.wait()
