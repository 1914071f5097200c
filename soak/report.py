"""What a soak tells: a summary of what happened, and the timelines of what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from soak.faults import OF_WORKERS, Befell
from soak.judge import OF_NO_RUN, Seen, Violation
from soak.ledger import Entry, Id

_TIMELINES_MAX = 3
_AROUND_S = 3.0
"""Faults are shown that were near."""
_RUN_CHARS = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is known when a soak is over."""

    began: float
    entries: Sequence[Entry]
    seen: Sequence[Seen]
    faults: Sequence[Befell]
    violations: Sequence[Violation]

    @property
    def runs(self) -> Counter[str]:
        """How many of each route."""
        return Counter(entry.id.route for entry in self.entries if entry.what == "begin")


def summary(outcome: Outcome) -> str:
    counts = {
        "requests": Counter(one.kind for one in outcome.seen),
        "keys": Counter(route for _, route, _ in {one.id for one in outcome.seen}),
        "runs": outcome.runs,
        "failed": Counter(entry.id.route for entry in outcome.entries if entry.what == "failed"),
        "faults": Counter(one.fault.what for one in outcome.faults),
        "violations": Counter(violation.promise for violation in outcome.violations),
    }
    return "\n".join(row(name, counted) for name, counted in counts.items())


def row(name: str, counted: Counter[str]) -> str:
    parts = ", ".join(f"{number:,} {what}" for what, number in counted.most_common())
    return f"  {name:<10} {counted.total():>7,}   {parts}".rstrip()


def complaints(outcome: Outcome) -> str:
    """Every violation; and of the first operations that had one, all that happened to it."""
    lines = [f"{one.promise} {' '.join(one.id)}: {one.what}" for one in outcome.violations]
    concerned = list(dict.fromkeys(one.id for one in outcome.violations))[:_TIMELINES_MAX]
    for id_ in concerned:
        lines += ["", f"{' '.join(id_)}, in seconds since the beginning:"]
        lines += [f"  {at - outcome.began:9.3f}  {what}" for at, what in timeline(outcome, id_)]
    return "\n".join(lines)


def timeline(outcome: Outcome, id_: Id) -> list[tuple[float, str]]:
    """What happened to one operation, and around it, in order."""
    moments = [*_runs(outcome, id_), *_calls(one for one in outcome.seen if one.id == id_)]
    if not moments:
        return []
    first, last = min(moments)[0] - _AROUND_S, max(moments)[0] + _AROUND_S
    moments += [(one.at, _fault(one)) for one in outcome.faults if first < one.at < last]
    return sorted(moments)


def _runs(outcome: Outcome, id_: Id) -> Iterator[tuple[float, str]]:
    for entry in outcome.entries:
        if entry.id != id_ or entry.what == "beat":
            continue
        what = f"run {entry.run[:_RUN_CHARS]}: {entry.what} {entry.step}".rstrip()
        if entry.what in OF_NO_RUN:
            yield entry.at, what
            continue
        lease = f"its lease until {entry.lease_until - outcome.began:.3f}"
        if entry.what == "begin":
            what += f", claimed at {entry.claimed_at - outcome.began:.3f}"
        yield entry.at, f"{what}; {lease}, fence {entry.fence}, worker {entry.pid}"


def _fault(one: Befell) -> str:
    whose = f" ({one.pid})" if one.fault.what in OF_WORKERS else ""
    return f"    {one.fault.what}{whose}, {one.fault.seconds:g} s"


def _calls(seen: Iterable[Seen]) -> Iterator[tuple[float, str]]:
    for one in seen:
        run = f" of run {one.run[:_RUN_CHARS]}" if one.run else ""
        mark = "" if one.stored else ", not stored"
        mark += ", and that no retry runs" if one.marked else ""
        waited = f"who asked {one.got - one.sent:.3f} s ago for {one.asked!r}"
        yield one.got, f"  {waited} is told: {one.kind}{run}{mark}"
