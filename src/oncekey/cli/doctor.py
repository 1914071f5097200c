"""`doctor`: looks at a store, says what is unsafe and what to do. It changes nothing."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import cast

from oncekey._core.op import run
from oncekey._core.printable import printable
from oncekey._core.record import Record
from oncekey._core.values import value
from oncekey._core.verbs import Due, Find
from oncekey._system.clock import SystemClock
from oncekey.cli.output import duration, print_json
from oncekey.cli.store_options import opened
from oncekey.cli.survey import Survey
from oncekey.errors import Misuse, StoreUnfit
from oncekey.stores.base import Connection, Store
from oncekey.stores.checks import Examinable, Examination, Finding, Level, accepting, advice
from oncekey.stores.urls import open_store, redact
from oncekey.stores.wrapper import keeper

UNSAFE = 1
"""The exit code when something would refuse the store at a start."""

SAMPLE_RECORDS = 10_000
OVERDUE_RECORDS = 20
SKEW_S_MAX = 60.0
DRIFT_S_MAX = 1.0
LINE_CHARS_MAX = 110


def doctor(url: str, args: argparse.Namespace) -> int:
    store = _opened(url)
    about, findings = look(_examinable(keeper(store)))
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


def _opened(url: str) -> Store:
    if url.lower().startswith("memory:"):
        return open_store(url)
    return opened(url, may_create=False)


def _examinable(store: Store) -> Examinable:
    if not hasattr(store, "examine"):
        raise Misuse(f"{store.name} is a store that cannot be examined: it has no `examine`")
    return cast(Examinable, store)


def look(store: Examinable) -> tuple[str, list[Finding]]:
    """What the store is, and all that was found."""
    with closing(store.connect()) as connection:
        first = _tick(store, connection)
        examination = run(store.examine(), connection.ask)
        findings = accepting(examination.findings, getattr(store, "allowed", ()))
        if examination.readable:
            findings += _records(store, connection, examination)
        findings.append(clock(first, _tick(store, connection)))
    return examination.about, findings


def _records(
    store: Examinable, connection: Connection, examination: Examination
) -> Iterable[Finding]:
    try:
        return list(_survey(store, connection, examination).findings())
    except StoreUnfit as refused:  # for one of the findings: a verb may ask a node for its fitness
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
class Tick:
    """One look at the clocks: the store's, and this host's before and after it."""

    store_s: float | None
    wall_s: float
    monotonic_s: float
    took_s: float


def _tick(store: Examinable, connection: Connection) -> Tick:
    wall_s, monotonic_s = SystemClock.wall(), SystemClock.monotonic()
    store_s = run(store.now(), connection.ask)
    return Tick(store_s, wall_s, monotonic_s, SystemClock.monotonic() - monotonic_s)


def clock(first: Tick, last: Tick) -> Finding:
    """How far the store's clock is from this host's, and whether it ran evenly in between."""
    if first.store_s is None or last.store_s is None:
        return Finding("clock", "this host's own")
    unsure_s = (first.took_s + last.took_s) / 2
    elapsed_s = (last.monotonic_s + last.took_s / 2) - (first.monotonic_s + first.took_s / 2)
    drift_s = (last.store_s - first.store_s) - elapsed_s
    if abs(drift_s) > DRIFT_S_MAX + unsure_s:
        return advice(
            "clock",
            f"the store's clock was set by {drift_s:+.1f} s while it was looked at",
            "leases end earlier or later by as much",
            "Keep the store's clock by NTP, which slews instead of stepping",
        )
    skew_s = last.store_s - (last.wall_s + last.took_s / 2)
    direction = "ahead of" if skew_s > 0 else "behind"
    seen = f"{duration(skew_s)} {direction} this host's, give or take {duration(unsure_s)}"
    if abs(skew_s) > SKEW_S_MAX:
        return advice(
            "clock",
            seen,
            "leases and expiry go by the store's alone, but times in logs and in keys do not agree",
            "Keep the clocks of both by NTP",
        )
    return Finding("clock", seen)


# ------------------------------------------------------------------------------------------- shown


def lines(findings: Sequence[Finding]) -> Iterable[str]:
    """Each finding with what to do about it below."""
    width = max(len(found.what) for found in findings)
    indent = " " * (len("accepted") + width + 4)
    for found in findings:
        level = found.level.upper() if found.level is Level.UNSAFE else str(found.level)
        yield from _wrapped(found.seen, f"{level:<8}  {found.what:<{width}}  ", indent)
        if found.why:
            yield from _wrapped(found.why, indent, indent)
        if found.do and found.level is not Level.ACCEPTED:
            yield from _wrapped(found.do, f"{indent}→ ", f"{indent}  ")
        if found.risk and found.level is Level.UNSAFE:
            yield f"{indent}→ or accept it: add allow={found.risk} to the URL"
        if found.level is Level.ACCEPTED:
            yield f"{indent}accepted by allow={found.risk}"


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        printable(text, 2_000),
        LINE_CHARS_MAX,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
