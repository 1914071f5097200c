"""A handle on `api_server`: start it, let it die, start it again on the same data."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx2

from payments.access.accounts import LOCAL_KEY
from payments.demo.child_process import ChildProcess
from tests.servers.process import free_port

START_S_MAX = 60.0


class ApiProcess:
    """One server process, and a client for it."""

    def __init__(self, data: Path, point: str = "", **settings: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = data / "api.log"
        told = json.dumps({"data": str(data), "port": self.port, **settings})
        command = [sys.executable, "-m", "tests.payments.api_server", told]
        with open(self.log, "ab") as log:
            self.child = ChildProcess("api", [*command, point] if point else command, output=log)
        self.client = httpx2.Client(
            base_url=f"{self.url}/v1/",
            headers={"authorization": f"Bearer {LOCAL_KEY}"},
            timeout=60,
            trust_env=False,
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while self.child.exit_status is None and time.monotonic() < deadline:
            try:
                self.client.get("balance")
            except httpx2.TransportError:
                time.sleep(0.02)
            else:
                return
        self.close()
        raise AssertionError(f"The API did not start: {self.log.read_text()[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()
        self.child.kill()
