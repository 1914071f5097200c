"""The real application as a process of its own, for tests that kill it.

    python -m tests.payments.api_server '{"data": …, "port": …, "network_url": …}' [point]

At `point` it dies as by `kill -9`: at one of oncekey's probes, or at one of its own below.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from oncekey._system import probes
from payments.api import transactions
from payments.app import create_app
from payments.money import orders
from payments.settings import Settings
from payments.storage.database import Database
from tests.payments.api_client import UNLIMITED, InProcessNetwork

POINTS = {
    "before_pending": (transactions.ResumableRequest, "begin", "before"),
    "after_pending": (transactions.ResumableRequest, "begin", "after"),
    "after_authorise": (orders, "authorise", "after"),
    "before_commit_of_the_end": (transactions, "encode", "after"),
    "after_commit_of_the_end": (transactions, "respond", "before"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Die there."""
    if point not in POINTS:
        probes.arm(point, die)
        return
    owner, name, when = POINTS[point]
    function: Callable[..., Any] = getattr(owner, name)

    def call_and_die(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            function(*args, **kwargs)
        die()

    setattr(owner, name, call_and_die)


def main(text: str, point: str = "") -> None:
    options = json.loads(text)
    port = options.pop("port")
    options["data"] = Path(options["data"])
    settings = Settings(local_key=True, rates=UNLIMITED, deliver=False, **options)
    database = Database(settings)
    database.create_tables()
    database.close()
    app = create_app(settings, None if "network_url" in options else InProcessNetwork())
    if point:
        arm(point)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
