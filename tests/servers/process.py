"""A server as a child process: start, stop, crash, start again."""

import contextlib
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

from tests.servers import folders
from tests.servers.programs import Program, Unavailable

_START_S_MAX = 30.0
_STOP_S_MAX = 15.0
_PORT_TRIES_MAX = 5


class PortTaken(Exception):
    """Somebody else was faster to the port that was free a moment ago."""


class Server(ABC):
    """One private server. Start it from a thread that outlives it: it dies with that thread."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    death_signal: ClassVar[signal.Signals] = signal.SIGKILL
    drops_root: ClassVar[bool] = True

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.program = program
        self.folder = folders.private(name)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    # ---- what each kind of server says about itself

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect, with user and password."""

    @property
    @abstractmethod
    def version(self) -> str:
        """As the server itself reports it."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command that serves `self.port` from `self.folder`."""

    @abstractmethod
    def ready(self) -> bool:
        """Does it answer?"""

    # ---- the same for all

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def family(self) -> list[int]:
        """The process ids of the server and of all that it started, parents first."""
        return _tree(self.pid)

    @property
    def running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    @property
    def source(self) -> str:
        """Where the program came from."""
        return self.program.source

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> Self:
        """Start on a free port; the port is kept from then on."""
        for _ in range(_PORT_TRIES_MAX):
            self.port = free_port()
            try:
                self._launch()
            except PortTaken:
                continue
            return self
        raise Unavailable(f"{self.name}: {_PORT_TRIES_MAX} free ports in turn were taken")

    def restart(self) -> None:
        """Start again on the same folder and port, after `kill` or instead of it."""
        self.stop()
        self._launch()

    def kill(self) -> None:
        """SIGKILL the whole process tree at once, as if the machine had lost power."""
        if self._process is None:
            return
        self.signal_all(signal.SIGSTOP)  # so that nothing is cleaned up or started meanwhile
        family = self.family
        self.signal_all(signal.SIGKILL)
        self._process.wait()
        self._process = None
        deadline = time.monotonic() + _STOP_S_MAX
        while not all(map(_is_dead, family)) and time.monotonic() < deadline:
            time.sleep(0.001)  # a server does not start while a child of the old one still lives

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and all its children, parents first."""
        for pid in self.family:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        """An orderly end; a crash if that takes too long."""
        if self._process is None:
            return
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(_STOP_S_MAX)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """Stop and remove the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, command: list[str]) -> None:
        """Run a set-up command as the server's user."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.program.environment(),
            capture_output=True,
            text=True,
            **folders.identity(),
        )
        if done.returncode:
            raise Unavailable(f"{self.name}: {command[0]} failed: {done.stderr.strip()}")

    def write(self, name: str, text: str) -> Path:
        """Write a file for the server: nobody else can read it."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        folders.give(path)
        return path

    def _launch(self) -> None:
        # The kernel sends the death signal when we end, even by SIGKILL: no server is orphaned.
        # A session of its own keeps Ctrl-C from reaching it before the tests have ended.
        guard = shutil.which("setpriv")
        prefix = [guard, "--pdeathsig", self.death_signal.name[3:]] if guard else []
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*prefix, *self.command()],
                cwd=self.folder,
                env=self.program.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **(folders.identity() if self.drops_root else {}),
            )
        self._await_ready()

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S_MAX
        while time.monotonic() < deadline:
            # Alive as well as answering: on a taken port it is a stranger that answers.
            if self._process.poll() is None and self.ready() and self._process.poll() is None:
                return
            if self._process.poll() is not None:
                self._process = None
                if "in use" in self.log:
                    raise PortTaken
                raise Unavailable(f"{self.name} ended at once: {self.log[-2000:]}")
            time.sleep(0.01)
        self.kill()
        raise Unavailable(f"{self.name} not ready in {_START_S_MAX} s: {self.log[-2000:]}")


_PORTS = range(12_000, 32_000)
"""Below those that the system gives to clients by itself."""
_PORTS_EACH = 500


def free_port() -> int:
    """A port that nobody listens on, and that no other process of tests is given: a test would take
    another's server for its own.
    """
    ports = _own_ports(os.getpid())
    for _ in range(_PORTS_EACH):
        port = next(ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise Unavailable(f"none of {_PORTS_EACH} ports is free")


@functools.cache
def _own_ports(pid: int) -> Iterator[int]:
    """A part of them, in turn, for as long as this process lives."""
    for first in _PORTS[::_PORTS_EACH]:
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            claim.bind(f"\0oncekey-tests-ports-{first}")
            _claims.append(claim)
            return itertools.cycle(range(first, first + _PORTS_EACH))
        claim.close()
    raise Unavailable("other processes of tests have all ports")


_claims: list[socket.socket] = []


def _is_dead(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def _tree(root: int) -> list[int]:
    """The process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found
