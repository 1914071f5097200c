"""The card network as a child process, for tests: start, crash, start again, look into its file."""

import sqlite3
import sys
import time
from pathlib import Path
from typing import Self

import httpx2

from payments.demo.child_process import ChildProcess
from payments.network import Network
from tests.servers.process import free_port

START_S_MAX = 60.0


class CardNetwork:
    """A real one, on a file in `folder`. It ends with this process."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "network.db"
        self.log = folder / "network.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.child = self._launch()
        self._wait_until_ready()

    def restart(self, *, wait: bool = True) -> None:
        """After it crashed, on the same file and port."""
        assert self.child.exit_status is not None
        self.child = self._launch()
        if wait:
            self._wait_until_ready()

    def client(self) -> Network:
        return Network(self.url)

    def rows(self, kind: str = "capture") -> list[tuple[str, int]]:
        """(reference, amount) of what was carried out, as the file has it."""
        with sqlite3.connect(self.file) as file:
            found = file.execute(
                "SELECT reference, amount FROM transactions"
                " WHERE kind = ? AND declined IS NULL ORDER BY number",
                (kind,),
            ).fetchall()
        file.close()
        return found

    def close(self) -> None:
        self.child.kill()

    def _launch(self) -> ChildProcess:
        command = [sys.executable, "-m", "payments.network.server"]
        command += ["--file", str(self.file), "--port", str(self.port)]
        with open(self.log, "ab") as log:
            return ChildProcess("network", command, output=log)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while self.child.exit_status is None and time.monotonic() < deadline:
            try:
                httpx2.get(f"{self.url}/tally", trust_env=False)
            except httpx2.TransportError:
                time.sleep(0.02)
            else:
                return
        self.child.kill()
        raise AssertionError(f"The network did not start: {self.log.read_text()[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
