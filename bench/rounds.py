"""Rounds: every contender runs in each round, and ratios are taken within a round."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.machine import ForeignCpu
from bench.table import Goal, Row

WARM_UP = 0.25
"""How much of a round each contender first runs uncounted."""
WARMED_UP = 1
"""The number of uncounted warm-ups, to be left out of a contender's own notes too."""

Contender = Callable[[float], float]
"""Works for about that many seconds and returns its operations per second."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure."""

    rounds: int = 7
    seconds: float = 2.0
    """How long each contender works in each round."""
    quick: bool = False
    full: bool = False
    """As large as the goals say, which takes hours, instead of a size that shows nearly as much."""

    def estimate_s(self, contenders: int, share: float = 1.0) -> float:
        """Estimate how long a contest of that many contenders takes."""
        return contenders * self.seconds * share * (self.rounds + WARM_UP) * 1.1


@dataclass(frozen=True, slots=True)
class Contest:
    """The result: one rate for each contender and round."""

    rates: dict[str, list[float]]
    foreign_percent: list[float]

    def row(self, what: str, ours: str, limit: str, goal: Goal | None) -> Row:
        """Return the median of the rounds' ratios, beside the median rates.

        For a goal of time the ratio is inverted: how many times as long ours takes.
        """
        pairs = list(zip(self.rates[ours], self.rates[limit], strict=True))
        ratios = [
            theirs / ours if goal and goal.of_time else ours / theirs for ours, theirs in pairs
        ]
        return Row(
            what=what,
            ours=f"{_short(median(self.rates[ours]))}/s",
            limit=f"{_short(median(self.rates[limit]))}/s",
            value=median(ratios),
            low=min(ratios),
            high=max(ratios),
            goal=goal,
            foreign_percent=median(self.foreign_percent),
        )


def contest(
    title: str,
    contenders: Mapping[str, Contender],
    settings: Settings,
    *,
    share: float = 1.0,
    turns: int = 1,
    before_round: Callable[[], None] = lambda: None,
) -> Contest:
    """Run all contenders in turn, round by round, in changing order.

    Each gets `share` of a contender's time, in `turns` turns of which the median counts: the
    shorter a turn, the less the machine changes between contenders.
    """
    before_round()
    for run in contenders.values():
        run(settings.seconds * share * WARM_UP)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    foreign_percent: list[float] = []
    for number in range(settings.rounds):
        before_round()
        foreign = ForeignCpu()
        seen: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(number, number + turns):
            for name in sorted(contenders, reverse=bool(turn % 2)):
                seen[name].append(contenders[name](settings.seconds * share / turns))
        for name, values in seen.items():
            rates[name].append(median(values))
        foreign_percent.append(foreign.percent())
        rates_now = ", ".join(f"{name} {_short(values[-1])}/s" for name, values in rates.items())
        others = f"others' CPU {foreign_percent[-1]:.0f} %"
        say(f"{title} {number + 1}/{settings.rounds}: {rates_now}; {others}")
    return Contest(rates, foreign_percent)


def cpu_row(what: str, ours_us: Sequence[float], limit_us: Sequence[float]) -> Row:
    """Compare CPU time, which unlike rates hardly depends on what else the machine does."""
    ratios = [ours / limit for ours, limit in zip(ours_us, limit_us, strict=True)]
    return Row(
        what,
        ours=f"{median(ours_us):.0f} µs",
        limit=f"{median(limit_us):.0f} µs",
        value=median(ratios),
        low=min(ratios),
        high=max(ratios),
        steady=True,
    )


def say(line: str) -> None:
    """Print progress to stderr, apart from the results."""
    print(f"  {line}", file=sys.stderr, flush=True)


def _short(rate: float) -> str:
    if rate >= 10_000:
        return f"{rate / 1000:.1f} k"
    return f"{rate:.0f} " if rate >= 100 else f"{rate:.1f} "
