"""What broke a promise: found in the ledger, in what callers saw and in the rows, without I/O.

One thing no library can prevent, and it is set aside: a process that stands still between the
guard's last look at its lease and the handler's first line. Such a run is `belated`: it was claimed
in time, and its lease was over when it began.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product
from math import inf
from typing import TypeVar

from oncekey._core.problems import Kind
from soak.handler import BRIEF_S
from soak.ledger import Entry, Id

ANSWER, FAILED = "answer", "failed"  # by the handler
NO_ANSWER, CUT = "no answer in time", "cut off"
GAVE_UP, ODD = "gave up", "not documented"  # which must not be
ALWAYS = {Kind.MISMATCH, Kind.STORE_UNAVAILABLE, Kind.UNSETTLED, NO_ANSWER, CUT, GAVE_UP, ODD}
"""What a caller may be told at any time, or what another rule objects to."""
DOCUMENTED = {ANSWER, FAILED, NO_ANSWER, CUT, *Kind}
_SLACK_S = 0.005
"""Stores measure leases by clocks of their own, which run a little faster or slower."""
DOUBTFUL = ("block", "ask", "careful")
"""Routes whose outcome may be unknown."""
WITH_ROWS = ("atomic", "joined")
RESOLVED = ("settled", "released")  # by an operator
OF_NO_RUN = ("published", *RESOLVED)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, and what its caller was told: a refusal's kind, or one of the words above."""

    id: Id
    asked: str
    """The name of the order that was sent."""
    sent: float
    got: float
    kind: str
    digest: str = ""
    """Of the answer's bytes."""
    told: str = ""
    """The name of the order that the answer is about."""
    run: str = ""
    stored: bool = True
    marked: bool = False
    """It failed, and said that a retry does not run it again."""


T = TypeVar("T", Seen, Entry)
Part = tuple[str, str]
"""A run, and which of its rows."""


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    id: Id
    what: str


@dataclass(slots=True)
class Run:
    """All that the ledger has of one run."""

    name: str
    began: Entry
    lease_until: float = 0.0
    """The latest end of its lease that it was told of: it lives until then, at least."""
    failed_at: float | None = None
    ended_at: float | None = None
    effects: list[str] = field(default_factory=list)
    effect_at: float = inf
    """The first of them."""
    kept: list[str] = field(default_factory=list)

    @property
    def belated(self) -> bool:
        return self.began.claimed_at < self.began.lease_until <= self.began.at

    def failed_before(self, other: Run) -> bool:
        return self.failed_at is not None and self.failed_at <= other.began.at


def runs_of(entries: Iterable[Entry]) -> dict[Id, list[Run]]:
    """The runs of each operation, in the order in which they began."""
    runs: dict[str, Run] = {}
    of_runs = (entry for entry in entries if entry.what not in OF_NO_RUN)
    for entry in sorted(of_runs, key=lambda entry: entry.at):
        run = runs.setdefault(entry.run, Run(entry.run, entry))
        run.lease_until = max(run.lease_until, entry.lease_until)
        match entry.what:
            case "failed":
                run.failed_at = entry.at
            case "end":
                run.ended_at = entry.at
            case "effect":
                run.effects.append(entry.step)
                run.effect_at = min(run.effect_at, entry.at)
            case "kept":
                run.kept.append(entry.step)
    found: dict[Id, list[Run]] = defaultdict(list)
    for run in runs.values():
        found[run.began.id].append(run)
    return found


def judge(
    entries: Sequence[Entry], seen: Iterable[Seen], rows: Iterable[Sequence[str]] = ()
) -> list[Violation]:
    """Every violation, by operation. `rows` are account, route, key, run and part of what was
    committed.
    """
    runs = runs_of(entries)
    told = _by_id(sorted(seen, key=lambda one: one.got))
    resolved = _by_id(entry for entry in entries if entry.what in RESOLVED)
    published = _by_id(entry for entry in entries if entry.what == "published")
    committed: dict[Id, list[Part]] = defaultdict(list)
    for account, route, key, run, part in rows:
        committed[Id(account, route, key)].append((run, part))
    violations = []
    for id_ in sorted({*runs, *told, *committed, *published}):
        messages = [(entry.run, entry.step) for entry in published[id_]]
        case = Case(id_, runs.get(id_, []), told[id_], resolved[id_], committed[id_], messages)
        violations += [Violation(promise, id_, what) for promise, what in case.objections()]
    return violations


def _by_id(found: Iterable[T]) -> dict[Id, list[T]]:
    sorted_: dict[Id, list[T]] = defaultdict(list)
    for one in found:
        sorted_[one.id].append(one)
    return sorted_


Objections = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Case:
    """One operation: how it ran, in order, and what its callers were told, in order."""

    id: Id
    runs: list[Run]
    seen: list[Seen]
    resolved: list[Entry]
    committed: list[Part]
    published: list[Part]

    def objections(self) -> Objections:
        """Each as the promise that was broken, and how."""
        if self.id.route != "atomic":  # what died or lost is rolled back: its runs are no effects
            yield from self._owners()
            yield from self._late()
        if self.id.route == "brief":
            yield from self._brief()
        else:
            yield from self._lasting()
        if self.id.route in WITH_ROWS:
            yield from self._rows()
            yield from self._messages()
        match self.id.route:
            case "block":
                yield from self._blocked()
            case "ask":
                yield from self._asked()
            case "careful":
                yield from self._careful()
        yield from self._steps()
        yield from self._answers()
        yield from self._endings()

    @property
    def answers(self) -> list[Seen]:
        return [one for one in self.seen if one.kind == ANSWER]

    def resolved_before(self, moment: float) -> bool:
        return any(entry.at <= moment for entry in self.resolved)

    # ------------------------------------------------------------------------ of the ledger alone

    def _owners(self) -> Objections:
        for first, second in pairwise(run for run in self.runs if not run.belated):
            if second.began.fence <= first.began.fence:
                fences = f"{first.began.fence} was followed by {second.began.fence}"
                yield "P2", f"fences only rise, but {fences}"
            left_s = first.lease_until - second.began.at
            if left_s > _SLACK_S and not first.failed_before(second):
                yield "P1", f"a second run began while the first had {left_s:.3f} s of its lease"

    def _late(self) -> Objections:
        for run in self.runs:
            late_s = run.began.claimed_at - run.began.lease_until
            if late_s >= 0:
                yield "P1", f"run {run.name} began, though its claim came {late_s:.3f} s too late"

    def _released_before(self, run: Run) -> bool:
        """Whether an operator had said by then that it was not done."""
        released = (entry.at for entry in self.resolved if entry.what == "released")
        return any(at <= run.began.at for at in released)

    def _releases_before(self, moment: float) -> int:
        """How often an operator had said by then that it was not done."""
        return sum(entry.what == "released" and entry.at <= moment for entry in self.resolved)

    def _blocked(self) -> Objections:
        """It ran once, and once more for each time that an operator let it; however a run ended."""
        for earlier, run in enumerate(self.runs):
            if earlier > self._releases_before(run.began.at):
                before = self.runs[earlier - 1]
                yield "P6", f"it ran again, though nobody knew how run {before.name} ended"
        effects = sorted(run.effect_at for run in self.runs for _ in run.effects)
        for earlier, moment in enumerate(effects):
            if earlier > self._releases_before(moment):
                yield "P6", f"it had {earlier + 1} effects"
        if any(one.kind == FAILED and not one.marked for one in self.seen):
            yield "P6", "a caller was told that it failed, and not that no retry runs it again"

    def _asked(self) -> Objections:
        """Whoever takes over asks first, and is told of every effect that is there by then."""
        for first, second in combinations(self.runs, 2):
            known = first.effect_at < second.began.claimed_at
            if known and not self._released_before(second):
                yield "P6", f"run {second.name} began, though run {first.name} was known"

    def _careful(self) -> Objections:
        for first, second in combinations(self.runs, 2):
            if not self._released_before(second):
                for step in sorted({*first.effects} & {*second.effects}):
                    yield "P6", f"step {step!r} was taken again by run {second.name}"

    def _steps(self) -> Objections:
        for run in self.runs:
            earlier = (other for other in self.runs if other.began.fence < run.began.fence)
            for step in sorted({step for other in earlier for step in other.kept}):
                if step in run.effects:
                    yield "P6", f"step {step!r} was kept, and taken again by run {run.name}"

    # ----------------------------------------------------------------------------- of the answers

    def _answers(self) -> Objections:
        for name in sorted({one.run for one in self.answers} - self._ended()):
            yield "P4", f"the answer is of run {name}, which did not end"
        for one in self.answers:
            if one.told != one.asked:
                yield "P5", f"who asked for {one.asked!r} was answered about {one.told!r}"

    def _ended(self) -> set[str]:
        """The names of what an answer may be of."""
        ended = {entry.run for entry in self.resolved if entry.what == "settled"}
        if self.id.route in WITH_ROWS:
            return ended | {run for run, part in self.committed if part == "answer"}
        asked = self.id.route == "ask"
        done = (r for r in self.runs if r.ended_at is not None or (asked and r.effects))
        return ended | {run.name for run in done}

    def _lasting(self) -> Objections:
        """There is one answer, and for as long as we look."""
        # What was said not to be recorded gives way to what an operator found out.
        compared = [one for one in self.answers if one.stored or not self.resolved]
        if len({one.digest for one in compared}) > 1:
            yield "P3", f"different answers, of the runs {sorted({o.run for o in compared})}"
        if self.id.route != "atomic":
            yield from self._again()
        yield from self._settled()

    def _brief(self) -> Objections:
        """An answer is kept for a while; then another may replace it, and that for good."""
        told: dict[str, float] = {}
        for one in self.answers:
            told.setdefault(one.run, one.got)
        if len({(one.run, one.digest) for one in self.answers}) > len(told):
            yield "P3", "different answers of one run"
        answered = [run for run in self.runs if run.name in told]
        for first, second in product(answered, self.runs):
            until = (first.ended_at or inf) + BRIEF_S - _SLACK_S
            if told[first.name] < second.began.at < until and not second.belated:
                early_s = until - second.began.at
                yield "P3", f"run {second.name} began {early_s:.3f} s before an answer expired"
        for first, second in combinations(answered, 2):
            if any(o.run == first.name and o.sent > told[second.name] for o in self.answers):
                yield "P3", f"after the answer of run {second.name} that of {first.name} came back"

    def _again(self) -> Objections:
        """Nothing begins once an answer was given."""
        recorded = [one.got for one in self.answers if one.stored]
        for run in self.runs:
            if recorded and run.began.at > recorded[0] and not run.belated:
                late_s = run.began.at - recorded[0]
                yield "P3", f"run {run.name} began {late_s:.3f} s after an answer was given"

    def _settled(self) -> Objections:
        """After the last word nobody is told anything else, unless an operator had another."""
        for word in (ANSWER, Kind.OUTCOME_UNKNOWN):
            said = [one.got for one in self.seen if one.kind == word and one.stored]
            for one in self.seen:
                if not said or one.sent <= said[0] or one.kind in {word, *ALWAYS}:
                    continue
                if one.stored and (word == ANSWER or not self.resolved_before(one.got)):
                    yield "P3", f"after {word!s} a retry was told {one.kind!s}"

    def _endings(self) -> Objections:
        for one in self.seen:
            if one.kind == GAVE_UP:
                yield "P6", "a caller had no answer, long after nothing failed any more"
            elif one.kind == Kind.OUTCOME_UNKNOWN and self.id.route not in DOUBTFUL:
                yield "P6", "its outcome was said to be unknown, though it may run again"
            elif one.kind not in DOCUMENTED:
                yield "P6", "a caller was told what is not documented"

    # -------------------------------------------------------------------------------- of the rows

    def _rows(self) -> Objections:
        for part, count in Counter(part for _, part in self.committed).items():
            if count > 1:
                runs = [run for run, other in self.committed if other == part]
                yield "P2", f"rows of several runs were committed: {runs}"

    def _messages(self) -> Objections:
        """Published if and only if it was committed; more than once if somebody died."""
        for run, part in sorted({*self.committed} - {*self.published}):
            yield "outbox", f"the message of run {run} ({part}) was not published"
        for run, part in sorted({*self.published} - {*self.committed}):
            yield "outbox", f"the message of run {run} ({part}) was published and not committed"
