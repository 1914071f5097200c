"""`./dev run` as a child process, for tests, and a look at its family."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2

from tests.servers.process import free_port

WAIT_S_MAX = 100.0


def until(true: Callable[[], bool], what: str) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not true():
        assert time.monotonic() < deadline, f"waited {WAIT_S_MAX} s for: {what}"
        time.sleep(0.02)


def children_of(pid: int) -> dict[str, int]:
    """By what they are: network, serve, shopper."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_text()
        except (OSError, ValueError):
            continue
        if parent == pid:
            name = re.search(r"payments\.(?:demo\.load\.)?(network|shopper)|serve", command)
            found[(name[1] or name[0]) if name else command] = int(stat.parent.name)
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class RunCommand:
    """The command, with its output in a file."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.port = free_port()
        self.network_port = free_port()
        self.data = folder / "data"
        self.output = folder / "output"
        command = [sys.executable, "-m", "payments", "run", "--data", str(self.data)]
        command += ["--port", str(self.port), "--network-port", str(self.network_port), *words]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        until(
            lambda: "Ctrl-C" in self.output_text() or self.process.poll() is not None,
            "the greeting",
        )

    def output_text(self) -> str:
        return self.output.read_text()

    @property
    def network_url(self) -> str:
        return f"http://127.0.0.1:{self.network_port}"

    def answers(self) -> bool:
        """Whether API and network are there."""
        try:
            httpx2.get(f"http://127.0.0.1:{self.port}/v1/balance", trust_env=False)
            httpx2.get(f"{self.network_url}/tally", trust_env=False)
        except httpx2.TransportError:
            return False
        return True

    def close(self) -> None:
        family = children_of(self.process.pid)
        self.process.kill()
        self.process.wait()
        until(lambda: all(map(is_gone, family.values())), "children to be gone")
