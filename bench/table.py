"""Results as rows, as a page and as data."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

_HEAD = ("what", "oncekey", "limit", "result", "goal", "met", "others' CPU")
_NOISE_PERCENT = 25
_NOISY = (
    f"**Others used more than {_NOISE_PERCENT} % of this machine meanwhile: do not quote these, "
    "measure again.**"
)
_INTRO = """\
# Benchmarks

Written by `./dev bench`. Every result is the median over rounds in which oncekey and its limit ran
in turn on the same servers: read the ratio, with its lowest and highest round in brackets, and not
the rates, which say more about the machine; and trust a row the less, the more CPU others used
meanwhile (in per cent of all CPUs).
"""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a result should reach."""

    bound: float
    at_least: bool = True
    of_time: bool = False
    """The ratio is one of times, not of rates."""
    aim: float | None = None
    unit: str = "x"

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        aim = f", better {self.aim:g}" if self.aim is not None else ""
        time = " the time" if self.of_time else ""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}{time}{aim}".rstrip()


@dataclass(frozen=True, slots=True)
class Row:
    """One result, or the reason there is none."""

    what: str
    ours: str = ""
    limit: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    goal: Goal | None = None
    unit: str = "x"
    foreign_percent: float | None = None
    steady: bool = False
    """Whether it hardly depends on other load: memory or CPU time, not rates."""
    missing: str = ""

    def cells(self) -> tuple[str, ...]:
        if self.missing or self.value is None:
            return (self.what, "", "", "not measured", str(self.goal or ""), "", "")
        result = f"{self.value:.3g} {self.unit}".rstrip()
        if self.low is not None and self.high is not None:
            result += f" ({self.low:.3g} to {self.high:.3g})"
        others = "" if self.foreign_percent is None else f"{self.foreign_percent:.0f} %"
        return (
            self.what,
            self.ours,
            self.limit,
            result,
            str(self.goal or ""),
            self.is_met(),
            others,
        )

    def is_met(self) -> str:
        """Say whether the goal is met; "unsure" on a busy machine, unless the value is steady."""
        if self.goal is None or self.value is None:
            return ""
        if not self.steady and (self.foreign_percent or 0) > _NOISE_PERCENT:
            return "unsure"
        return "yes" if self.goal.is_met(self.value) else "no"


@dataclass(frozen=True, slots=True)
class Section:
    """The results of one subject."""

    title: str
    how: str
    """What is compared with what, in a sentence or two."""
    rows: tuple[Row, ...]
    date: str = ""
    machine: str = ""

    def noisy(self) -> bool:
        """Whether other processes used the machine during most of it."""
        seen = [row.foreign_percent for row in self.rows if row.foreign_percent is not None]
        return bool(seen) and median(seen) > _NOISE_PERCENT

    def text(self) -> str:
        """Render Markdown whose columns also line up in a terminal."""
        head = [f"## {self.title}", "", _wrap(self.how), ""]
        if self.date:
            head += [_wrap(f"{self.date}, {self.machine}"), ""]
        if self.noisy():
            head += [_NOISY, ""]
        drawn = _table([_HEAD, *(row.cells() for row in self.rows)])
        missing = [f"Not measured: {row.what}: {row.missing}" for row in self.rows if row.missing]
        return "\n".join([*head, *drawn, *(f"\n{_wrap(line)}" for line in missing)])


def page(sections: Sequence[Section]) -> str:
    return "\n\n".join([_INTRO.rstrip(), *(section.text() for section in sections)]) + "\n"


def dump(sections: Sequence[Section]) -> str:
    return json.dumps([asdict(section) for section in sections], indent=1, ensure_ascii=False)


def load(text: str) -> list[Section]:
    return [
        Section(**{**section, "rows": tuple(map(_row, section["rows"]))})
        for section in json.loads(text)
    ]


def _wrap(text: str) -> str:
    return textwrap.fill(text, width=100, break_long_words=False, break_on_hyphens=False)


def _row(data: dict[str, Any]) -> Row:
    goal = data["goal"]
    return Row(**{**data, "goal": None if goal is None else Goal(**goal)})


def _table(lines: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    drawn = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in escaped
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [drawn[0], rule, *drawn[1:]]
