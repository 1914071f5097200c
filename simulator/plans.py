"""Plans: what a handler is going to do, and how it ends.

A handler says `no_effect()`, `transient()`, or raises what is named in `no_effect_on`, only where
it had no effect. After everything else it may have had one, also where nobody is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple

from oncekey._core.policy import Verdict, keep_definitive, keep_errors_too, keep_success
from simulator.scenario import RUN_S_MAX, Declined


class Broke(Exception):
    """What a handler raises, or a step of it: it proves nothing."""


Raises = Literal["", "error", "proof", "cut off"]
ERRORS: dict[str, type[BaseException]] = {
    "error": Broke,
    "proof": Declined,
    "cut off": asyncio.CancelledError,
}


class Plan(NamedTuple):
    """What a handler is going to do."""

    seconds: float
    status: int
    said: Verdict | None = None
    raises: Raises = ""
    """Instead of an answer; `cut off` is what a time limit or a cancellation does."""
    step: Literal["", "raises", "caught"] = ""
    """What the step does that must not be repeated, where there is one. One that is caught is the
    last; then the handler answers.
    """
    breaks_after: bool = False
    """It raises once it has answered."""
    leaves_s: float = 0.0
    """A thread of it goes on for so long after it was cut off."""
    large: bool = False
    careful: bool = False
    """It asks whether it still owns its record before it does anything."""
    effect: bool = True
    effect_first: bool = True


GOOD = Plan(0.0, 201)
_IDLE = GOOD._replace(effect=False)
_PLANS = (
    *(GOOD,) * 18,
    GOOD._replace(careful=True),
    GOOD._replace(large=True),
    _IDLE._replace(status=422),
    _IDLE._replace(status=403),
    _IDLE._replace(status=200, said=Verdict.NO_EFFECT),
    _IDLE._replace(status=202, said=Verdict.FAILED),
    GOOD._replace(status=200, said=Verdict.UNKNOWN),
    GOOD._replace(status=500),
    GOOD._replace(status=504),
    GOOD._replace(status=500, said=Verdict.KEEP),
    GOOD._replace(raises="error"),
    GOOD._replace(raises="cut off"),
    GOOD._replace(raises="cut off", leaves_s=8.0),
    GOOD._replace(breaks_after=True),
    GOOD._replace(raises="error", said=Verdict.UNKNOWN),
    GOOD._replace(raises="error", said=Verdict.KEEP),
    _IDLE._replace(raises="error", said=Verdict.NO_EFFECT),
    _IDLE._replace(raises="cut off", said=Verdict.FAILED),
    _IDLE._replace(raises="proof"),
    GOOD._replace(step="raises"),
    GOOD._replace(step="caught"),
    GOOD._replace(step="caught", status=500),
)


def keep_doubtful(status: int) -> Verdict:
    """504 says that somebody else did not answer in time: nobody can tell what was done."""
    return Verdict.UNKNOWN if status == 504 else keep_definitive(status)


KEEPS: tuple[Callable[[int], Verdict], ...] = (
    *(keep_definitive,) * 5,
    keep_success,
    keep_errors_too,
    keep_doubtful,
)


def draw(chance: Callable[[], float], slow: float, *, calm: bool) -> Plan:
    """What a handler that starts now is going to do. Once it is calm, all goes well."""
    if calm:
        return GOOD._replace(seconds=0.1)
    chosen = _PLANS[int(chance() * len(_PLANS))]
    seconds = 1.2 * chance()
    if chance() < slow:
        seconds = 4.0 + 20.0 * chance() if chance() < 0.8 else RUN_S_MAX * (1.1 + chance())
    return chosen._replace(seconds=seconds, effect_first=chance() < 0.5)
