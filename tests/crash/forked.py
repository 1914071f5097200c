"""Server processes that are there at once: forked off one that has imported all they need.

A crash test needs two or three processes, and the imports of each would take most of a second of a
CPU. They share nothing with the tests: the process that they are forked off is another one.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_IMPORTED = [
    "tests.crash.server",
    "tests.crash.wsgi",
    "tests.crash.atomic_server",
    "tests.crash.atomic_wsgi",
    "oncekey.stores.dynamodb.store",
    "oncekey.stores.mysql.store",
    "oncekey.stores.postgres.store",
    "oncekey.stores.redis.cluster",
    "oncekey.stores.redis.sentinel",
    "oncekey.stores.redis.store",
    "oncekey.stores.sealed.store",
    "oncekey.stores.sqlite.store",
    "oncekey.stores.tiered.store",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.lifespan.on",
]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_IMPORTED)
_FROZEN_S_MAX = 30.0


class Forked:
    """One process that runs a module's `main`, with the names that `subprocess.Popen` has."""

    def __init__(self, program: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        given = (program, [program, *arguments], dict(env))
        self._process = _context.Process(target=_run, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait_frozen(self) -> None:
        """Until every thread of it has stopped."""
        deadline = time.monotonic() + _FROZEN_S_MAX
        while _states(self.pid) != {"T"}:
            assert self.poll() is None, f"it ended with {self.returncode} instead of freezing"
            assert time.monotonic() < deadline, "it did not freeze"
            time.sleep(0.005)


def _states(pid: int) -> set[str]:
    """Those of its threads, as the kernel writes them."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks}


def _run(program: str, arguments: list[str], env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    sys.argv = arguments
    importlib.import_module(program).main()
