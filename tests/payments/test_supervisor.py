"""`./dev run` as a process: keeps its children running, ends in order, leaves nobody behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from payments.network import Network
from payments.supervisor import Keeper
from tests.servers.process import free_port

WAIT_S_MAX = 50.0


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
            name = re.search(r"payments\.(network|shopper)|serve", command)
            found[(name[1] or name[0]) if name else command] = int(stat.parent.name)
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Running:
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
        until(lambda: "Ctrl-C" in self.said() or self.process.poll() is not None, "the greeting")

    def said(self) -> str:
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


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*words: str) -> Running:
        started.append(Running(tmp_path, *words))
        return started[-1]

    yield start
    for running in started:
        running.close()


@pytest.mark.slow
def test_it_runs_is_looked_after_and_ends_in_order(run: Callable[..., Running]) -> None:
    running = run()
    said = running.said()
    assert running.answers(), said
    assert f"http://127.0.0.1:{running.port}/" in said
    assert "sk_test_local" in said
    first = children_of(running.process.pid)
    assert set(first) == {"network", "serve"}

    with Network(running.network_url) as network:
        network.arm("crash-after")
        network.authorise(  # the client's retries meet the network that was started again
            key="1", card="4242424242424242", amount=5, currency="usd", reference="ch_x"
        )
        assert len(list(network.transactions())) == 1
    os.kill(first["serve"], signal.SIGKILL)
    until(
        lambda: children_of(running.process.pid).get("serve") not in (first["serve"], None), "API"
    )
    until(running.answers, "all to be well again")
    second = children_of(running.process.pid)
    assert not set(first.values()) & set(second.values())
    assert "the card network ended with status 70" in running.said()

    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(WAIT_S_MAX) == 0
    assert all(map(is_gone, [*first.values(), *second.values()]))
    assert (running.data / "network.db").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of a parent's death")
def test_nobody_is_left_behind_by_a_kill(run: Callable[..., Running]) -> None:
    running = run()
    family = children_of(running.process.pid)
    running.process.kill()
    running.process.wait()
    until(lambda: all(map(is_gone, family.values())), "orphans to be gone")


def in_vain(*words: str) -> tuple[int, str]:
    """A start that must fail: its status, and what it says."""
    command = [sys.executable, "-m", "payments", "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, said = in_vain("--port", str(port))
    assert (status, said) == (
        1,
        f"Port {port} is taken: end whoever has it, or choose another by --port.\n",
    )


@pytest.mark.slow
def test_what_does_not_start_says_why() -> None:
    port = str(free_port())
    status, said = in_vain("--port", port, "--database", "postgresql://127.0.0.1:1/nowhere")
    assert status == 1
    assert "the API did not start" in said
    assert "The database cannot be used" in said


@pytest.mark.slow
def test_a_crowd_needs_a_key_that_works() -> None:
    status, said = in_vain(
        "--port", str(free_port()), "--traffic", "--database", "postgresql://h/d"
    )
    assert status == 1
    assert "payments account create" in said


# ------------------------------------------------------------------------------------------ keeping


def test_what_ends_again_and_again_is_started_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("payments.clock.monotonic", lambda: now)
    keeper = Keeper("it", ["false"], tmp_path / "log", death_signal=signal.SIGKILL)
    waits = []
    for _ in range(7):
        keeper.child.wait(WAIT_S_MAX)
        assert keeper.look() == "it ended with status 1: starting it again"
        ended_at, ended = now, keeper.child.pid
        while keeper.look() is None and keeper.child.pid == ended:
            now += 0.05
        waits.append(round(now - ended_at, 1))
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    keeper.child.wait(WAIT_S_MAX)
    now += 60.0  # it was well for a while
    keeper.look()
    ended = keeper.child.pid
    keeper.look()
    assert keeper.child.pid != ended
    keeper.child.wait(WAIT_S_MAX)
