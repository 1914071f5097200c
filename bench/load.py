"""Load on an HTTP server, by wrk."""

from __future__ import annotations

import json
import math
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.servers import find_tool

SCRIPT = Path(__file__).with_name("load.lua")
BODY = json.dumps({"item": "tea", "quantity": 2, "note": "to be delivered before noon"})
_MARK = "RESULT "
_LATE_S_MAX = 30


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk measured."""

    requests: int
    seconds: float
    refused: int
    """Responses of 400 and above."""
    broken: int
    """Connections that failed or timed out."""

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def wrk(port: int, *, connections: int, seconds: float, prefix: str = "", keys: int = 0) -> Load:
    """Send orders: each with a new key, or with `keys` keys that begin with `prefix`, in turn."""
    program = find_tool("wrk")
    command = [str(program.path), "-t1", f"-c{connections}", f"-d{max(1, math.ceil(seconds))}s"]
    command += ["-s", str(SCRIPT), f"http://127.0.0.1:{port}", "--"]
    command += [prefix or f"{uuid.uuid4().hex}-", str(keys), BODY]
    done = subprocess.run(
        command,
        env=program.environment(),
        capture_output=True,
        text=True,
        timeout=seconds + _LATE_S_MAX,
    )
    return parse(done.stdout + done.stderr)


def parse(output: str) -> Load:
    """Parse what `done` in load.lua has written."""
    for line in output.splitlines():
        if line.startswith(_MARK):
            return Load(**json.loads(line.removeprefix(_MARK)))
    raise ValueError(f"wrk gave no result: {output.strip()[-500:]}")
