"""What the simulator shows: progress, tables, timelines."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import TextIO

from oncekey._core import lifecycle
from oncekey._core.endings import RECOVERIES, End
from oncekey._core.fingerprint import Comparison
from oncekey._system.clock import SystemClock
from simulator.campaign import Campaign
from simulator.coverage import ATOMIC, LEARNED, Marks

_BAR_CHARS = 30


class Progress:
    """A bar on a terminal; elsewhere a line for every tenth."""

    def __init__(self, schedules: int, stream: TextIO | None = None) -> None:
        self._schedules = schedules
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._clock = SystemClock()
        self._started = self._clock.monotonic()
        self._tenths = 0

    def __call__(self, campaign: Campaign) -> None:
        done = campaign.schedules / self._schedules
        tenths = int(done * 10)
        if not self._live and tenths == self._tenths:
            return
        self._tenths = tenths
        seconds = max(self._clock.monotonic() - self._started, 1e-9)
        rate = campaign.schedules / seconds
        left_s = (self._schedules - campaign.schedules) / rate
        text = f"{done:4.0%}  {campaign.schedules:,} schedules, {rate:,.0f}/s, {left_s:.0f} s left"
        if campaign.failures:
            text += f", {len(campaign.failures)} BROKEN"
        if self._live:
            filled = int(done * _BAR_CHARS)
            bar = "#" * filled + "." * (_BAR_CHARS - filled)
            end = "\n" if campaign.schedules >= self._schedules else ""
            print(f"\r[{bar}] {text}\x1b[K", end=end, file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)


def summary(campaign: Campaign, wall_s: float) -> str:
    """What was run, how fast, and how it ended."""
    faulty = campaign.faulty / max(campaign.schedules, 1)
    rate = campaign.schedules / max(campaign.cpu_s, 1e-9)
    verdict = (
        f"{len(campaign.failures)} schedules broke a promise:"
        if campaign.failures
        else ("Every promise was kept.")
    )
    lines = [
        f"{campaign.schedules:,} schedules, {campaign.distinct:,} of them distinct, "
        f"{faulty:.0%} with a fault",
        f"{campaign.events:,} events in {campaign.simulated_s / 86_400:,.1f} simulated days",
        f"{wall_s:.1f} s, {campaign.cpu_s:.1f} CPU-s: {rate:,.0f} schedules per CPU-second",
        verdict,
    ]
    lines += [f"  seed {seed}: {violation}" for seed, violation in campaign.failures]
    return "\n".join(lines)


def coverage(marks: Marks) -> str:
    """How often each row of the tables was reached."""
    comparisons = tuple(Comparison)
    situations = dict.fromkeys(situation for situation, _ in lifecycle.DECISIONS)
    width = max(len(situation.value) for situation in situations)
    head = "".join(f"{comparison.value:>18}" for comparison in comparisons)
    lines = [f"{'a request met':<{width}}{head}"]
    for situation in situations:
        counts = "".join(f"{marks.decisions[situation, c]:>18,}" for c in comparisons)
        lines.append(f"{situation.value:<{width}}{counts}")
    lines += ["", *_ends(marks)]
    transitions = {name: marks.transitions[name] for name in lifecycle.TRANSITIONS}
    lines += ["", _columns("transition", transitions)]
    lines += ["", _columns("fault", marks.faults)]
    lines += ["", _columns("atomic", {name: marks.atomic[name] for name in ATOMIC})]
    lines += ["", _columns("`ask` finds out", {name: marks.learned[name] for name in LEARNED})]
    lines += ["", _columns("told", marks.told)]
    lines += ["", f"round trips that several verbs shared: {marks.batches:,}"]
    if missing := marks.missing():
        lines += ["", "NEVER REACHED:", *(f"  {name}" for name in missing)]
    return "\n".join(lines)


def _ends(marks: Marks) -> list[str]:
    """How attempts ended, by recovery."""
    width = max(len(end.name) for end in End)
    head = "".join(f"{recovery:>18}" for recovery in RECOVERIES)
    rows = [
        f"{end.name.lower().replace('_', ' '):<{width}}"
        + "".join(f"{marks.ends[end, recovery]:>18,}" for recovery in RECOVERIES)
        for end in End
    ]
    return [f"{'ended':<{width}}{head}", *rows]


def _columns(title: str, counts: Mapping[str, int] | Counter[str]) -> str:
    width = max([len(title), *(len(name) for name in counts)])
    rows = sorted(counts.items(), key=lambda item: -item[1])
    return "\n".join([title, *(f"  {name:<{width}}{count:>14,}" for name, count in rows)])
