"""The processes that serve the application: started, killed, replaced, frozen and thawed."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from soak.wall import Wall

ROOT = Path(__file__).parent.parent
_LOG_CHARS_MAX = 3000


class Worker:
    """One process. Its port stays open and its own over all lives: whoever calls while it is down
    waits until it is back.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, module: str = "soak.application"
    ) -> None:
        """`arguments` are those of the module, without the last two. What a worker leaves lies
        beside its log.
        """
        self._module = module
        self._arguments = arguments
        self._log = log
        self._mark = log.with_suffix(".up")
        self.wall = Wall(log.with_suffix(".wall"))
        self._stopping = False
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listening.getsockname()[1]
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def up(self) -> bool:
        """Whether it serves already."""
        return self._mark.exists() and self._mark.read_text() == str(self.pid)

    def start(self) -> None:
        descriptor = self._listening.fileno()
        # The kernel kills it when we end, even by SIGKILL; a session of its own keeps Ctrl-C
        # from reaching it before us.
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
        """At once, frozen or not."""
        self._process.kill()
        self._process.wait()

    def replace(self, seconds_max: float) -> None:
        """As a deployment does: it is asked to end, and killed if that takes too long."""
        old, self._stopping = self._process, True
        old.terminate()
        try:
            old.wait(seconds_max)
        except subprocess.TimeoutExpired:
            old.kill()
            old.wait()
        if self._process is old:  # else it was killed meanwhile, and the next one serves already
            self.start()
        self._stopping = False

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise if it ended and nobody ended it."""
        if self._process.poll() is not None and not self._stopping:
            said = self._log.read_text(errors="replace")[-_LOG_CHARS_MAX:]
            raise RuntimeError(f"worker {self.pid} ended with {self._process.returncode}:\n{said}")

    def close(self) -> None:
        self.kill()
        self._listening.close()
