"""`./dev run` as a process: keeps its children running, ends in order, leaves nobody behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from payments.demo.supervisor import Plan, SupervisedProcess, welcome_text
from payments.network import Network
from tests.payments.run_command import WAIT_S_MAX, RunCommand, children_of, is_gone, until
from tests.servers.process import free_port

pytestmark = pytest.mark.timeout(300)  # several starts of several processes, on a busy machine


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., RunCommand]]:
    started: list[RunCommand] = []

    def start(*words: str) -> RunCommand:
        started.append(RunCommand(tmp_path, *words))
        return started[-1]

    yield start
    for running in started:
        running.close()


@pytest.mark.slow
def test_it_runs_is_looked_after_and_ends_in_order(run: Callable[..., RunCommand]) -> None:
    running = run()
    said = running.output_text()
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
    assert "the card network ended with status 70" in running.output_text()

    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(WAIT_S_MAX) == 0
    assert all(map(is_gone, [*first.values(), *second.values()]))
    assert (running.data / "network.db").exists()


@pytest.mark.slow
def test_p12_its_files_are_for_their_owner_alone(run: Callable[..., RunCommand]) -> None:
    running = run("--traffic")
    httpx2.get(f"http://127.0.0.1:{running.port}/demo/faults", trust_env=False).raise_for_status()
    made = {"payments.db", "network.db", "listener.db", "api.log", "network.log", "shoppers.log"}
    until(lambda: made <= {file.name for file in running.data.iterdir()}, "its files")
    modes = {file.name: file.stat().st_mode for file in [running.data, *running.data.iterdir()]}
    assert not [name for name, mode in modes.items() if mode & 0o077]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of a parent's death")
def test_nobody_is_left_behind_by_a_kill(run: Callable[..., RunCommand]) -> None:
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
        f"Port {port} is in use: stop the process that uses it, or choose another with --port.\n",
    )


@pytest.mark.slow
def test_a_port_that_does_not_exist() -> None:
    assert in_vain("--port", "99999") == (
        1,
        "Port 99999 does not exist: choose one up to 65535 with --port.\n",
    )


@pytest.mark.slow
def test_the_api_and_the_network_have_a_port_each() -> None:
    port = str(free_port())
    assert in_vain("--port", port, "--network-port", port) == (
        1,
        f"Port {port} is the API's: choose another by --network-port.\n",
    )


@pytest.mark.slow
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    status, said = in_vain("--data", str(file / "data"))
    assert status == 1
    assert said.startswith(f"cannot create the folder {file / 'data'} (")
    assert "choose another with --data" in said


@pytest.mark.slow
def test_what_does_not_start_says_why() -> None:
    port = str(free_port())
    status, said = in_vain("--port", port, "--database", "postgresql://127.0.0.1:1/nowhere")
    assert status == 1
    assert "the API did not start" in said
    assert "Cannot use the database" in said


@pytest.mark.slow
def test_a_crowd_needs_a_key_that_works() -> None:
    status, said = in_vain(
        "--port", str(free_port()), "--traffic", "--database", "postgresql://h/d"
    )
    assert status == 1
    assert "payments account create" in said


def test_a_database_of_ones_own_is_greeted_without_a_checkout_page(tmp_path: Path) -> None:
    """It pays with a key that does not work there."""
    here = Plan(tmp_path, 8000, 8001, database="", redis="", workers=1, api_key="sk_test_local")
    there = replace(here, database="postgresql://db/shop", api_key="")
    assert "checkout page   http://127.0.0.1:8000/\n" in welcome_text(here, kept=True)
    assert "checkout" not in welcome_text(there, kept=True)
    assert "http://127.0.0.1:8000/explain\n" in welcome_text(there, kept=True)


# ------------------------------------------------------------------------------------------ keeping


def test_what_ends_again_and_again_is_started_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("payments.clock.monotonic", lambda: now)
    keeper = SupervisedProcess("it", ["false"], tmp_path / "log", death_signal=signal.SIGKILL)
    waits = []
    for _ in range(7):
        keeper.child.wait(WAIT_S_MAX)
        assert keeper.restart_if_ended() == "it ended with status 1: restarting it"
        ended_at, ended = now, keeper.child.pid
        while keeper.restart_if_ended() is None and keeper.child.pid == ended:
            now += 0.05
        waits.append(round(now - ended_at, 1))
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    keeper.child.wait(WAIT_S_MAX)
    now += 60.0  # it was well for a while
    keeper.restart_if_ended()
    ended = keeper.child.pid
    keeper.restart_if_ended()
    assert keeper.child.pid != ended
    keeper.child.wait(WAIT_S_MAX)
