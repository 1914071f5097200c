"""`doctor`: look at a store, report what is unsafe and what to do. It changes nothing."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import cast

from oncekey._core.op import run
from oncekey._core.printable import printable
from oncekey._core.record import Record, State
from oncekey._core.values import value
from oncekey._core.verbs import Due, Find
from oncekey._system.clock import SystemClock
from oncekey.cli.output import duration, print_json
from oncekey.cli.store_options import open_named
from oncekey.errors import Misuse, StoreUnfit
from oncekey.stores.base import Connection, Store
from oncekey.stores.checks import (
    Examinable,
    Examination,
    Finding,
    Level,
    Size,
    accept_risks,
    advice,
)
from oncekey.stores.urls import open_store, redact
from oncekey.stores.wrapper import innermost

UNSAFE = 1
"""The exit code if an application would refuse to start on this store."""

SAMPLE_RECORDS = 10_000
OVERDUE_RECORDS = 20
SKEW_S_MAX = 60.0
DRIFT_S_MAX = 1.0
LINE_CHARS_MAX = 110


def doctor(url: str, args: argparse.Namespace) -> int:
    store = _open(url)
    about, findings = examine(_examinable(innermost(store)))
    if hasattr(store, "examine_cache"):
        findings.append(store.examine_cache())
    findings.sort(key=lambda found: list(Level).index(found.level))
    counts = Counter(found.level for found in findings)
    if args.json:
        counted = {str(level): counts[level] for level in Level}
        shown = [asdict(found) for found in findings]
        print_json({"store": redact(url), "about": about, **counted, "findings": shown})
    else:
        print(f"{about}, {printable(redact(url), 200)}\n")
        print("\n".join(lines(findings)))
        print("\n" + ", ".join(f"{counts[level]} {level}" for level in Level if counts[level]))
    return UNSAFE if counts[Level.UNSAFE] else 0


def _open(url: str) -> Store:
    if url.lower().startswith("memory:"):
        return open_store(url)
    return open_named(url, may_create=False)


def _examinable(store: Store) -> Examinable:
    if not hasattr(store, "examine"):
        raise Misuse(f"{store.name} is a store that doctor cannot examine: it has no `examine`")
    return cast(Examinable, store)


def examine(store: Examinable) -> tuple[str, list[Finding]]:
    """Return what the store is, and all findings."""
    with closing(store.connect()) as connection:
        first = _read_clocks(store, connection)
        examination = run(store.examine(), connection.ask)
        findings = accept_risks(examination.findings, getattr(store, "allowed", ()))
        if examination.readable:
            findings += _records(store, connection, examination)
        findings.append(compare_clocks(first, _read_clocks(store, connection)))
    return examination.about, findings


def _records(
    store: Examinable, connection: Connection, examination: Examination
) -> Iterable[Finding]:
    try:
        return list(_survey(store, connection, examination).findings())
    except StoreUnfit as refused:  # a verb may check a node first
        return [Finding("records", f"not looked at: {refused}")]


def _survey(store: Examinable, connection: Connection, examination: Examination) -> Survey:
    sample = run(store.sample(SAMPLE_RECORDS), connection.ask)
    overdue: list[Record] = []
    if not sample.whole:
        [ids] = run(store.perform([Due(OVERDUE_RECORDS)]), connection.ask)
        overdue = [found for each in ids for found in _find(store, connection, each)]
    return Survey(sample.records, sample.whole, overdue, examination.size)


def _find(store: Store, connection: Connection, record_id: bytes) -> list[Record]:
    return [found for found in run(store.perform([Find(record_id)]), connection.ask) if found]


# -------------------------------------------------------------------------------------------- clock


@value
class ClockReading:
    """The store's clock, and this host's before and after it was read."""

    store_s: float | None
    wall_s: float
    monotonic_s: float
    took_s: float


def _read_clocks(store: Examinable, connection: Connection) -> ClockReading:
    wall_s, monotonic_s = SystemClock.wall(), SystemClock.monotonic()
    store_s = run(store.now(), connection.ask)
    return ClockReading(store_s, wall_s, monotonic_s, SystemClock.monotonic() - monotonic_s)


def compare_clocks(first: ClockReading, last: ClockReading) -> Finding:
    """Report how far the store's clock is from this host's, and whether it ran evenly."""
    if first.store_s is None or last.store_s is None:
        return Finding("clock", "this host's own")
    unsure_s = (first.took_s + last.took_s) / 2
    elapsed_s = (last.monotonic_s + last.took_s / 2) - (first.monotonic_s + first.took_s / 2)
    drift_s = (last.store_s - first.store_s) - elapsed_s
    if abs(drift_s) > DRIFT_S_MAX + unsure_s:
        return advice(
            "clock",
            f"the store's clock jumped by {drift_s:+.1f} s during this examination",
            "leases end that much earlier or later",
            "Synchronize the store's clock by NTP, which slews instead of stepping",
        )
    skew_s = last.store_s - (last.wall_s + last.took_s / 2)
    direction = "ahead of" if skew_s > 0 else "behind"
    seen = f"{duration(skew_s)} {direction} this host's, give or take {duration(unsure_s)}"
    if abs(skew_s) > SKEW_S_MAX:
        return advice(
            "clock",
            seen,
            "leases and expiry use the store's clock alone, but times in logs and keys differ",
            "Synchronize both clocks by NTP",
        )
    return Finding("clock", seen)


# ------------------------------------------------------------------------------------------- shown


def lines(findings: Sequence[Finding]) -> Iterable[str]:
    """Write each finding, with what to do about it below."""
    width = max(len(found.what) for found in findings)
    indent = " " * (len("accepted") + width + 4)
    for found in findings:
        level = found.level.upper() if found.level is Level.UNSAFE else str(found.level)
        yield from _wrap(found.seen, f"{level:<8}  {found.what:<{width}}  ", indent)
        if found.why:
            yield from _wrap(found.why, indent, indent)
        if found.do and found.level is not Level.ACCEPTED:
            yield from _wrap(found.do, f"{indent}→ ", f"{indent}  ")
        if found.risk and found.level is Level.UNSAFE:
            yield f"{indent}→ or accept it: add allow={found.risk} to the URL"
        if found.level is Level.ACCEPTED:
            yield f"{indent}accepted by allow={found.risk}"


def _wrap(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        printable(text, 2_000),
        LINE_CHARS_MAX,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


# ------------------------------------------------------------------------- a sample of the records


LAG_S_MAX = 600.0
"""Sweepers run every minute: after this long, none is running."""
FUTURE_S_MIN = 1.0
HOUR_S, DAY_S = 3_600.0, 86_400.0
GROWTH_RECORDS_MIN = 10


@value
class Survey:
    """A sample of the records, or all of them; and the few that are overdue for longest."""

    records: Sequence[Record]
    whole: bool
    overdue: Sequence[Record]
    size: Size | None

    @property
    def total(self) -> int | None:
        """About how many there are; None if unknown."""
        if self.whole:
            return len(self.records)
        known = self.size.records if self.size else None
        return None if known is None else max(known, len(self.records))

    def findings(self) -> Iterator[Finding]:
        yield self._count()
        if self.size is not None and self.size.bytes is not None:
            yield Finding("size", self._bytes(self.size.bytes))
        yield self._growth()
        yield self._sweep_lag()
        yield self._recovery_backlog()
        yield self._unknown_outcomes()
        yield self._clock_jumps()

    # ----------------------------------------------------------------------------------- how much

    def _count(self) -> Finding:
        states = Counter(record.state for record in self.records)
        if self.whole:
            seen = ", ".join(f"{states[state]:,} {state}" for state in State)
            return Finding("records", f"{len(self.records):,}: {seen}")
        shares = ", ".join(
            f"{100 * states[state] / len(self.records):.3g} % {state}" for state in State
        )
        total = "many" if self.total is None else f"about {self.total:,}"
        return Finding("records", f"{total}; of a sample of {len(self.records):,}: {shares}")

    def _bytes(self, size: int) -> str:
        note = f" ({self.size.note})" if self.size and self.size.note else ""
        each = f", {size // self.total:,} for each record" if self.total else ""
        return f"{size:,} bytes{each}{note}"

    def _growth(self) -> Finding:
        """Report new records per second in the last hour and in the last day."""
        ages = [record.age_s for record in self.records]
        if self.total is None or len(ages) < GROWTH_RECORDS_MIN:
            return Finding("growth", "too few records to tell" if self.whole else "unknown")
        scale = self.total / len(ages)
        rates = []
        for window_s, name in ((HOUR_S, "hour"), (DAY_S, "day")):
            lasted_s = min(window_s, max(max(ages), 1.0))
            rate = scale * sum(age <= lasted_s for age in ages) / lasted_s
            rates.append(f"{rate:,.3g} new records/s in the last {name}")
        return Finding("growth", ", ".join(rates))

    # ------------------------------------------------------------------------------ what is overdue

    def _all_records(self) -> list[Record]:
        ids = {record.id: record for record in (*self.records, *self.overdue)}
        return list(ids.values())

    def _sweep_lag(self) -> Finding:
        expired = [-record.expires_in_s for record in self._all_records() if record.expired]
        if not expired:
            return Finding("sweep", "nothing is expired")
        seen = f"the longest expired, since {duration(max(expired))}"
        if max(expired) > LAG_S_MAX:
            return advice(
                "sweep",
                f"not swept: {seen}",
                "expired records take space, and slow down looking for the oldest",
                "Run `oncekey sweep --watch`, or check whether applications that sweep are running",
            )
        return Finding("sweep", seen)

    def _recovery_backlog(self) -> Finding:
        """Report lapsed records. Those with `rerun` wait for a retry, not for a recoverer."""
        lapsed = [record for record in self._all_records() if record.lapsed and not record.expired]
        waiting = [-record.lease_left_s for record in lapsed if record.recovery != "rerun"]
        seen = f"{len(lapsed):,} lapsed, {len(waiting):,} waiting for a recoverer"
        if waiting and max(waiting) > LAG_S_MAX:
            return advice(
                "abandoned",
                f"{seen}, the longest since {duration(max(waiting))}",
                "requests that were begun stay unfinished",
                "Run `oncekey recover MODULE:APP`",
            )
        return Finding("abandoned", seen if self.whole else f"{seen}, in the sample")

    def _unknown_outcomes(self) -> Finding:
        unknown = sum(record.state is State.UNKNOWN for record in self._all_records())
        if unknown:
            return advice(
                "unknown",
                f"{unknown:,}{'' if self.whole else ' in the sample'}",
                "nobody knows how they ended, and their retries are refused",
                "Run `oncekey list --unknown`, find out what happened, then `oncekey resolve`",
            )
        where = "none" if self.whole else "none in the sample; `oncekey count` counts all"
        return Finding("unknown", where)

    def _clock_jumps(self) -> Finding:
        ahead = [-record.age_s for record in self._all_records() if record.age_s < -FUTURE_S_MIN]
        overlong = sum(
            record.state is State.RUNNING and record.lease_left_s > 1.001 * record.lease_s + 1
            for record in self._all_records()
        )
        if ahead or overlong:
            most = f", by up to {duration(max(ahead))}" if ahead else ""
            return advice(
                "clock jumps",
                f"records dated ahead of the store's clock: {len(ahead) + overlong:,}{most}",
                "the clock was set back; leases are cut to their length, but records expire later",
                "Synchronize the store's clock by NTP, which slews instead of stepping",
            )
        return Finding("clock jumps", "no record is dated ahead of the store's clock")
