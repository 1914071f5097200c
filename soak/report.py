"""The report of a soak: a summary, and timelines of what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from soak.faults import WORKER_FAULTS, InflictedFault
from soak.judge import WITHOUT_RUN, Observation, Violation
from soak.ledger import Entry, Id

_TIMELINES_MAX = 3
_AROUND_S = 3.0
"""How near a fault must be to be shown."""
_RUN_CHARS = 8


@dataclass(frozen=True, slots=True)
class SoakResult:
    """The result of a soak."""

    began: float
    entries: Sequence[Entry]
    seen: Sequence[Observation]
    faults: Sequence[InflictedFault]
    violations: Sequence[Violation]

    @property
    def runs(self) -> Counter[str]:
        """The number of runs by route."""
        return Counter(entry.id.route for entry in self.entries if entry.what == "begin")


def summary(outcome: SoakResult) -> str:
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


def complaints(outcome: SoakResult) -> str:
    """List all violations, and the timelines of the first operations that have one."""
    lines = [f"{one.promise} {' '.join(one.id)}: {one.what}" for one in outcome.violations]
    concerned = list(dict.fromkeys(one.id for one in outcome.violations))[:_TIMELINES_MAX]
    for id_ in concerned:
        lines += ["", f"{' '.join(id_)}, in seconds since the beginning:"]
        lines += [f"  {at - outcome.began:9.3f}  {what}" for at, what in timeline(outcome, id_)]
    return "\n".join(lines)


def timeline(outcome: SoakResult, id_: Id) -> list[tuple[float, str]]:
    """List what happened to an operation and around it, in order."""
    moments = [*_runs(outcome, id_), *_calls(one for one in outcome.seen if one.id == id_)]
    if not moments:
        return []
    first, last = min(moments)[0] - _AROUND_S, max(moments)[0] + _AROUND_S
    moments += [(one.at, _fault(one)) for one in outcome.faults if first < one.at < last]
    return sorted(moments)


def _runs(outcome: SoakResult, id_: Id) -> Iterator[tuple[float, str]]:
    for entry in outcome.entries:
        if entry.id != id_ or entry.what == "beat":
            continue
        what = f"run {entry.run[:_RUN_CHARS]}: {entry.what} {entry.step}".rstrip()
        if entry.what in WITHOUT_RUN:
            yield entry.at, what
            continue
        lease = f"its lease until {entry.lease_until - outcome.began:.3f}"
        if entry.what == "begin":
            what += f", claimed at {entry.claimed_at - outcome.began:.3f}"
        yield entry.at, f"{what}; {lease}, fence {entry.fence}, worker {entry.pid}"


def _fault(one: InflictedFault) -> str:
    whose = f" ({one.pid})" if one.fault.what in WORKER_FAULTS else ""
    return f"    {one.fault.what}{whose}, {one.fault.seconds:g} s"


def _calls(seen: Iterable[Observation]) -> Iterator[tuple[float, str]]:
    for one in seen:
        run = f" of run {one.run[:_RUN_CHARS]}" if one.run else ""
        mark = "" if one.stored else ", not stored"
        mark += ", and that no retry runs" if one.marked else ""
        waited = f"a caller who sent {one.asked!r} {one.got - one.sent:.3f} s ago"
        yield one.got, f"  {waited} gets: {one.kind}{run}{mark}"
