"""Make a process die, freeze or exit at a named probe.

A parent process configures a child through its environment: `ONCEKEY_AT="after_handler=kill"`. The
child calls `arm_from_environment()` before it serves. Separate several plans by commas:

    kill     the process ends at once, as by `kill -9`: no cleanup, no `finally`
    stop     the process freezes, as by SIGSTOP, until its parent sends SIGCONT; only the first time
    exit     the process ends with status 0, but without cleanup (`os._exit`)

`"after_step=kill@2"` acts when the probe is passed for the second time.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from oncekey._system import probes

VARIABLE = "ONCEKEY_AT"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop_once() -> Callable[[], None]:
    stopped: list[bool] = []

    def stop() -> None:
        if not stopped:
            stopped.append(True)
            # Stop this thread itself. A signal to the process may reach another thread first, and
            # this one would run on for a while, past the probe.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    return stop


def _exit() -> None:
    os._exit(0)


def _act_from(pass_number: int, action: Callable[[], None]) -> Callable[[], None]:
    passes: list[None] = []

    def act() -> None:
        passes.append(None)
        if len(passes) >= pass_number:
            action()

    return act


def arm(plan: str) -> None:
    """Arm the probes in `plan`, for instance `"after_insert=stop,after_handler=kill"`."""
    for item in filter(None, plan.split(",")):
        name, _, action = item.partition("=")
        action, _, pass_number = action.partition("@")
        actions = {"kill": _kill, "stop": _stop_once(), "exit": _exit}
        if action not in actions or not (pass_number or "1").isdigit():
            raise ValueError(
                f"{item!r}: write probe=kill, probe=stop or probe=exit, and @2 for its second time"
            )
        probes.arm(name, _act_from(int(pass_number or 1), actions[action]))


def arm_from_environment() -> None:
    """Arm what the parent process asked for, if it did."""
    arm(os.environ.get(VARIABLE, ""))
