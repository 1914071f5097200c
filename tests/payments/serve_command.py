"""`payments serve` as a child process, for tests."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from payments.access.accounts import LOCAL_KEY
from tests.servers.process import free_port

WAIT_S_MAX = 50.0
CHARGE = {"amount": "2000", "currency": "eur", "source": "tok_visa"}


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not true():
        assert time.monotonic() < deadline, f"waited {WAIT_S_MAX} s for: {what}"
        time.sleep(0.02)


class ServeCommand:
    """`payments serve` as a child process."""

    def __init__(self, data: Path, *words: str, scheme: str = "http", trust: Any = True) -> None:
        self.data = data
        data.mkdir(exist_ok=True)
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.output = data / "output"
        command = [sys.executable, "-m", "payments", "serve", "--port", str(self.port)]
        command += ["--data", str(data), *words]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self.client = httpx2.Client(
            base_url=self.url, trust_env=False, timeout=WAIT_S_MAX, verify=trust
        )
        until(self.is_ready, f"an answer: {self.output_text()}")

    def output_text(self) -> str:
        return self.output.read_text()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.output_text()
        try:
            return self.client.get("/healthz").status_code == 200
        except httpx2.TransportError:
            return False

    def charge(self, idempotency_key: str, api_key: str = LOCAL_KEY) -> httpx2.Response:
        headers = {"Idempotency-Key": idempotency_key, "Authorization": f"Bearer {api_key}"}
        return self.client.post("/v1/charges", data=CHARGE, headers=headers)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S_MAX)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.client.close()
