"""Worker processes of the application: start, kill, replace, freeze and thaw them."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from soak.clock import SkewedClock

ROOT = Path(__file__).parent.parent
_LOG_CHARS_MAX = 3000


class Worker:
    """A worker process. Its port stays open over restarts: callers wait while it is down."""

    def __init__(
        self, arguments: Sequence[str], log: Path, module: str = "soak.application"
    ) -> None:
        """`arguments` are the module's, without the last two. Other files lie beside the log."""
        self._module = module
        self._arguments = arguments
        self._log = log
        self._mark = log.with_suffix(".up")
        self.clock = SkewedClock(log.with_suffix(".wall"))
        self._stopping = False
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listening.getsockname()[1]
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def up(self) -> bool:
        """Whether it serves."""
        return self._mark.exists() and self._mark.read_text() == str(self.pid)

    def start(self) -> None:
        descriptor = self._listening.fileno()
        # The kernel kills it when this process ends, even by SIGKILL; a separate session keeps
        # Ctrl-C from reaching it first.
        guard = shutil.which("setpriv")
        command = [guard, "--pdeathsig", "KILL"] if guard else []
        command += [sys.executable, "-m", self._module, *self._arguments]
        command += [str(self._mark), str(descriptor)]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the process, frozen or not."""
        self._process.kill()
        self._process.wait()

    def replace(self, seconds_max: float) -> None:
        """Restart like a deployment: SIGTERM, then SIGKILL if it takes too long."""
        old, self._stopping = self._process, True
        old.terminate()
        try:
            old.wait(seconds_max)
        except subprocess.TimeoutExpired:
            old.kill()
            old.wait()
        if self._process is old:  # else it was killed meanwhile and restarted already
            self.start()
        self._stopping = False

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise if it ended by itself."""
        if self._process.poll() is not None and not self._stopping:
            output = self._log.read_text(errors="replace")[-_LOG_CHARS_MAX:]
            raise RuntimeError(
                f"worker {self.pid} ended with {self._process.returncode}:\n{output}"
            )

    def close(self) -> None:
        self.kill()
        self._listening.close()
