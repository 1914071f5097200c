"""`bench.app` in a separate process."""

from __future__ import annotations

import http.client
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Self

from bench import load, machine

_START_S_MAX = 30
_STOP_S_MAX = 15
_REST_S = 0.05


class AppProcess:
    """One worker process: with the middleware on a store, bare, or writing to a store by hand."""

    def __init__(
        self, store_url: str | None = None, *, by_hand: bool = False, relaxed: bool = False
    ) -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(1024)
            self.port: int = listening.getsockname()[1]
            guard = shutil.which("setpriv")  # it ends when this process ends, for whatever reason
            command = [guard, "--pdeathsig", "KILL"] if guard else []
            command += [sys.executable, "-m", "bench.app", str(listening.fileno())]
            command += [store_url] if store_url else []
            command += ["by-hand"] if by_hand else []
            command += ["relaxed"] if relaxed else []
            self._process = subprocess.Popen(command, pass_fds=[listening.fileno()])
        self._wait_until_ready()

    def cpu_s(self) -> float:
        return machine.cpu_s(self._process.pid)

    def runs(self) -> int:
        """Return how often the handler ran, once idle: requests of lost clients may run on."""
        seen = -1
        while seen != (seen := int(self._ask("GET", "/runs")[1])):
            time.sleep(_REST_S)
        return seen

    def order(self, key: str) -> bool:
        """Send an order; return whether the response is a replay."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        replayed, answer = self._ask("POST", "/orders", load.BODY, headers)
        assert b"order_1" in answer, answer
        return replayed

    def _ask(
        self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[bool, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_START_S_MAX)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.getheader("idempotent-replayed") == "true", answer.read()
        finally:
            connection.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                self.runs()
                return
            except (OSError, http.client.HTTPException):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
