"""Planted bugs: proof that the simulator can fail.

Each is a small change to the real parts, named after the mistake that it stands for; most of them
were made by somebody. A simulator that does not find every one of them within its budget of seeds
is broken, and its silence about the real parts is worth nothing.

The docstring of each tells what goes wrong for the user of a library that has it.
"""

from simulator.bugs import (
    answers,
    atomic,
    bounds,
    endings,
    expiry,
    owners,
    sessions,
    steps,
    versions,
)
from simulator.bugs.planting import BUGS, Bug

__all__ = [
    "BUGS",
    "Bug",
    "answers",
    "atomic",
    "bounds",
    "endings",
    "expiry",
    "owners",
    "sessions",
    "steps",
    "versions",
]
