"""The system under the money test: everything that can be killed, and a hand that kills it."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2

from oncekey.client import Retries
from payments.access.accounts import LOCAL_KEY
from payments.demo.child_process import ChildProcess
from payments.network import FAULTS, Network, NetworkDown
from tests.payments.card_network import CardNetwork
from tests.payments.serve_command import until
from tests.servers.process import free_port

ROOT = Path(__file__).parents[3]
LEASE_S = 3.0
PATIENCE_S = 4.0
END_S_MAX = 60.0
RAGE_S_MORE = 120.0


class System:
    """API workers, card network and a receiver of webhooks, each a process that may die."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, *, workers: int) -> None:
        self.folder = folder
        self.network = CardNetwork(folder)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._print_report = json.dumps(
            {
                "data": str(folder),
                "port": self._port,
                "workers": workers,
                "database_url": database_url,
                "redis_url": redis_url,
                "network_url": self.network.url,
                "lease_s": LEASE_S,
                "patience_s": PATIENCE_S,
                "threads_max": 8,
            }
        )
        self.api = self._serve()
        until(self.answers, "the API to answer")
        self._receiver_port = free_port()
        self._secret = self._register()
        self.receiver = self._receive()

    # ------------------------------------------------------------------------------ its parts

    def _child(self, name: str, words: list[str], **environment: str) -> ChildProcess:
        # What is started from here dies with this process.
        with open(self.folder / f"{name}.log", "ab") as log:
            command = [sys.executable, *words]
            return ChildProcess(
                name, command, output=log, environment={**os.environ, **environment}
            )

    def _serve(self) -> ChildProcess:
        return self._child("api", ["-m", "tests.payments.money.server", self._print_report])

    def _receive(self) -> ChildProcess:
        words = [str(ROOT / "examples" / "webhook_receiver.py")]
        words += ["--port", str(self._receiver_port), "--data", str(self.folder)]
        return self._child("receiver", words, WEBHOOK_SECRET=self._secret)

    def answers(self) -> bool:
        """Whether some worker serves."""
        assert self.api.exit_status is None, self.log("api")
        try:
            return httpx2.get(f"{self.url}/healthz", trust_env=False).status_code == 200
        except httpx2.TransportError:
            return False

    def _register(self) -> str:
        answer = httpx2.post(
            f"{self.url}/v1/webhook_endpoints",
            json={
                "url": f"http://127.0.0.1:{self._receiver_port}/webhooks",
                "enabled_events": ["*"],
            },
            headers={"Authorization": f"Bearer {LOCAL_KEY}"},
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["secret"])

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def workers(self) -> list[int]:
        """The processes that serve, of whatever age."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                command = (stat.parent / "cmdline").read_bytes()
            except (OSError, ValueError):
                continue
            if parent == self.api.pid and b"--multiprocessing-fork" in command:
                found.append(int(stat.parent.name))
        return found

    def count_bookings(self) -> Counter[str]:
        """How often the receiver has booked each event, as its own file has it."""
        with closing(sqlite3.connect(self.folder / "bookings.db")) as file:
            return Counter(event for (event,) in file.execute("SELECT event FROM bookings"))

    # --------------------------------------------------------------------------------- its end

    def mend(self) -> None:
        """Start again whatever has ended."""
        if self.network.child.exit_status is not None:
            self.network.restart(wait=False)
        if self.receiver.exit_status is not None:
            self.receiver = self._receive()
        if self.api.exit_status is not None:
            self.api = self._serve()

    def end_api(self) -> int:
        """Its exit status after an orderly end."""
        self.api.signal(signal.SIGTERM)
        return self.api.wait(END_S_MAX)

    def close(self) -> None:
        for pid in self.workers():
            _kill(pid)
        for child in (self.api, self.receiver, self.network.child):
            child.kill()


class Killer:
    """Lets happen what should never happen, as often as the seed says."""

    def __init__(self, system: System, seed: int) -> None:
        self._system = system
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()

    def rage(self, seconds: float) -> None:
        """For so long, and on a slow machine until at least one worker was killed at its work."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or not self.done["worker"]:
            assert time.monotonic() < deadline + RAGE_S_MORE, self._system.log("api")
            time.sleep(self._random.uniform(0.3, 1.2))
            [act] = self._random.choices([act for act, _ in ACTS], [share for _, share in ACTS])
            if act(self):
                self.done[act.__name__.strip("_")] += 1
            self._system.mend()

    def _worker(self) -> bool:
        """One worker, in the middle of whatever it does; its parent replaces it."""
        if not self._system.answers():
            return False  # there is nothing to be in the middle of
        _kill(self._random.choice(sorted(self._system.workers())))
        return True

    def _network(self) -> bool:
        self._system.network.child.kill()
        return True

    def _receiver(self) -> bool:
        self._system.receiver.kill()
        return True

    def _blackout(self) -> bool:
        """All of the API at once."""
        if not self._system.answers():
            return False
        workers = self._system.workers()
        self._system.api.kill()
        for pid in workers:
            _kill(pid)
        return True

    def _fault(self) -> bool:
        try:
            with Network(self._system.network.url, retries=Retries(attempts_max=1)) as network:
                network.arm(self._random.choice(list(FAULTS)))
        except NetworkDown:
            return False
        return True


Act = Callable[[Killer], bool]
ACTS: list[tuple[Act, float]] = [
    (Killer._worker, 6),
    (Killer._network, 2),
    (Killer._receiver, 1),
    (Killer._blackout, 0.3),
    (Killer._fault, 3),
]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it was dead already


def read_told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
