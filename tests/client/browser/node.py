"""The browser's module in Node: a child that is asked by lines and answers by lines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Self

from oncekey.client import browser
from tests.servers.programs import find_tool


class Node:
    """Runs the commands of harness.mjs."""

    def __init__(self) -> None:
        program = find_tool("node")
        harness = Path(__file__).with_name("harness.mjs")
        self._child = subprocess.Popen(
            [str(program.path), str(harness), browser.path().as_uri()],
            env=program.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str, argument: Any) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([command, argument]) + "\n")
        self._child.stdin.flush()
        answer = json.loads(self._child.stdout.readline())
        assert "ok" in answer, answer["failed"]
        return answer["ok"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.communicate(timeout=20)
