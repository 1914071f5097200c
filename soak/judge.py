"""Find broken promises in the ledger, in what callers observed and in the rows, without I/O.

One thing no library can prevent is left out: a process that is frozen between the guard's last
check of its lease and the handler's first line. Such a run is belated: it was claimed in time, but
its lease was over when it began.
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
"""What a caller may get at any time, or what another rule checks."""
DOCUMENTED = {ANSWER, FAILED, NO_ANSWER, CUT, *Kind}
_SLACK_S = 0.005
"""Stores measure leases by their own clocks, which run a little faster or slower."""
DOUBTFUL = ("block", "ask", "careful")
"""Routes whose outcome may be unknown."""
WITH_ROWS = ("atomic", "joined")
RESOLVED = ("settled", "released")  # by an operator
WITHOUT_RUN = ("published", *RESOLVED)


@dataclass(frozen=True, slots=True)
class Observation:
    """One request and its result: a refusal's kind, or one of the words above."""

    id: Id
    asked: str
    """The name of the order that was sent."""
    sent: float
    got: float
    kind: str
    digest: str = ""
    """Of the response's bytes."""
    received: str = ""
    """The name of the order in the response."""
    run: str = ""
    stored: bool = True
    marked: bool = False
    """It failed and said that a retry will not run it again."""


T = TypeVar("T", Observation, Entry)
Part = tuple[str, str]
"""A run and one of its rows."""


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    id: Id
    what: str


@dataclass(slots=True)
class Run:
    """What the ledger has about one run."""

    name: str
    began: Entry
    lease_until: float = 0.0
    """The latest end of its lease that the handler saw."""
    failed_at: float | None = None
    ended_at: float | None = None
    effects: list[str] = field(default_factory=list)
    effect_at: float = inf
    """The time of the first effect."""
    kept: list[str] = field(default_factory=list)

    @property
    def is_belated(self) -> bool:
        return self.began.claimed_at < self.began.lease_until <= self.began.at

    def failed_before(self, other: Run) -> bool:
        return self.failed_at is not None and self.failed_at <= other.began.at


def runs_of(entries: Iterable[Entry]) -> dict[Id, list[Run]]:
    """Group runs by operation, in the order they began."""
    runs: dict[str, Run] = {}
    of_runs = (entry for entry in entries if entry.what not in WITHOUT_RUN)
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
    entries: Sequence[Entry], seen: Iterable[Observation], rows: Iterable[Sequence[str]] = ()
) -> list[Violation]:
    """List all violations, by operation. `rows` are the committed rows: account, route, key, …"""
    runs = runs_of(entries)
    received = _by_id(sorted(seen, key=lambda one: one.got))
    resolved = _by_id(entry for entry in entries if entry.what in RESOLVED)
    published = _by_id(entry for entry in entries if entry.what == "published")
    committed: dict[Id, list[Part]] = defaultdict(list)
    for account, route, key, run, part in rows:
        committed[Id(account, route, key)].append((run, part))
    violations = []
    for id_ in sorted({*runs, *received, *committed, *published}):
        messages = [(entry.run, entry.step) for entry in published[id_]]
        case = OperationHistory(
            id_, runs.get(id_, []), received[id_], resolved[id_], committed[id_], messages
        )
        violations += [Violation(promise, id_, what) for promise, what in case.find_violations()]
    return violations


def _by_id(found: Iterable[T]) -> dict[Id, list[T]]:
    sorted_: dict[Id, list[T]] = defaultdict(list)
    for one in found:
        sorted_[one.id].append(one)
    return sorted_


Violations = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class OperationHistory:
    """One operation: its runs and what its callers observed, both in order."""

    id: Id
    runs: list[Run]
    seen: list[Observation]
    resolved: list[Entry]
    committed: list[Part]
    published: list[Part]

    def find_violations(self) -> Violations:
        """Yield each broken promise, and how."""
        if self.id.route != "atomic":  # rolled-back runs have no effects
            yield from self._check_owners()
            yield from self._check_late_claims()
        if self.id.route == "brief":
            yield from self._check_brief()
        else:
            yield from self._check_lasting()
        if self.id.route in WITH_ROWS:
            yield from self._check_rows()
            yield from self._check_messages()
        match self.id.route:
            case "block":
                yield from self._check_block()
            case "ask":
                yield from self._check_ask()
            case "careful":
                yield from self._check_careful()
        yield from self._check_steps()
        yield from self._check_answers()
        yield from self._check_refusals()

    @property
    def answers(self) -> list[Observation]:
        return [one for one in self.seen if one.kind == ANSWER]

    def resolved_before(self, moment: float) -> bool:
        return any(entry.at <= moment for entry in self.resolved)

    # ------------------------------------------------------------------------ of the ledger alone

    def _check_owners(self) -> Violations:
        for first, second in pairwise(run for run in self.runs if not run.is_belated):
            if second.began.fence <= first.began.fence:
                fences = f"{first.began.fence} was followed by {second.began.fence}"
                yield "P2", f"fences only rise, but {fences}"
            left_s = first.lease_until - second.began.at
            if left_s > _SLACK_S and not first.failed_before(second):
                yield "P1", f"a second run began while the first had {left_s:.3f} s of its lease"

    def _check_late_claims(self) -> Violations:
        for run in self.runs:
            late_s = run.began.claimed_at - run.began.lease_until
            if late_s >= 0:
                yield "P1", f"run {run.name} began, though its claim came {late_s:.3f} s too late"

    def _released_before(self, run: Run) -> bool:
        """Whether an operator had released the operation before this run."""
        released = (entry.at for entry in self.resolved if entry.what == "released")
        return any(at <= run.began.at for at in released)

    def _releases_before(self, moment: float) -> int:
        """How often an operator had released the operation by then."""
        return sum(entry.what == "released" and entry.at <= moment for entry in self.resolved)

    def _check_block(self) -> Violations:
        """It may run once, and once more for each release by an operator."""
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

    def _check_ask(self) -> Violations:
        """A takeover asks first, and must learn of every earlier effect."""
        for first, second in combinations(self.runs, 2):
            known = first.effect_at < second.began.claimed_at
            if known and not self._released_before(second):
                yield "P6", f"run {second.name} began, though run {first.name} was known"

    def _check_careful(self) -> Violations:
        for first, second in combinations(self.runs, 2):
            if not self._released_before(second):
                for step in sorted({*first.effects} & {*second.effects}):
                    yield "P6", f"step {step!r} was taken again by run {second.name}"

    def _check_steps(self) -> Violations:
        for run in self.runs:
            earlier = (other for other in self.runs if other.began.fence < run.began.fence)
            for step in sorted({step for other in earlier for step in other.kept}):
                if step in run.effects:
                    yield "P6", f"step {step!r} was kept, and taken again by run {run.name}"

    # ----------------------------------------------------------------------------- of the answers

    def _check_answers(self) -> Violations:
        for name in sorted({one.run for one in self.answers} - self._answerable_runs()):
            yield "P4", f"the answer is of run {name}, which did not end"
        for one in self.answers:
            if one.received != one.asked:
                yield "P5", f"who asked for {one.asked!r} was answered about {one.received!r}"

    def _answerable_runs(self) -> set[str]:
        """Return the names of the runs a response may come from."""
        ended = {entry.run for entry in self.resolved if entry.what == "settled"}
        if self.id.route in WITH_ROWS:
            return ended | {run for run, part in self.committed if part == "answer"}
        asked = self.id.route == "ask"
        done = (r for r in self.runs if r.ended_at is not None or (asked and r.effects))
        return ended | {run.name for run in done}

    def _check_lasting(self) -> Violations:
        """There is one response, for the whole soak."""
        # A response that was not stored may be replaced by what an operator found out.
        compared = [one for one in self.answers if one.stored or not self.resolved]
        if len({one.digest for one in compared}) > 1:
            yield "P3", f"different answers, of the runs {sorted({o.run for o in compared})}"
        if self.id.route != "atomic":
            yield from self._check_no_run_after_answer()
        yield from self._check_final_words()

    def _check_brief(self) -> Violations:
        """A response is stored for a while; then another may replace it, for good."""
        received: dict[str, float] = {}
        for one in self.answers:
            received.setdefault(one.run, one.got)
        if len({(one.run, one.digest) for one in self.answers}) > len(received):
            yield "P3", "different answers of one run"
        answered = [run for run in self.runs if run.name in received]
        for first, second in product(answered, self.runs):
            until = (first.ended_at or inf) + BRIEF_S - _SLACK_S
            if received[first.name] < second.began.at < until and not second.is_belated:
                early_s = until - second.began.at
                yield "P3", f"run {second.name} began {early_s:.3f} s before an answer expired"
        for first, second in combinations(answered, 2):
            if any(o.run == first.name and o.sent > received[second.name] for o in self.answers):
                yield "P3", f"after the answer of run {second.name} that of {first.name} came back"

    def _check_no_run_after_answer(self) -> Violations:
        """No run begins after a response was given."""
        recorded = [one.got for one in self.answers if one.stored]
        for run in self.runs:
            if recorded and run.began.at > recorded[0] and not run.is_belated:
                late_s = run.began.at - recorded[0]
                yield "P3", f"run {run.name} began {late_s:.3f} s after an answer was given"

    def _check_final_words(self) -> Violations:
        """After a final response nothing else follows, unless an operator decided otherwise."""
        for word in (ANSWER, Kind.OUTCOME_UNKNOWN):
            said = [one.got for one in self.seen if one.kind == word and one.stored]
            for one in self.seen:
                if not said or one.sent <= said[0] or one.kind in {word, *ALWAYS}:
                    continue
                if one.stored and (word == ANSWER or not self.resolved_before(one.got)):
                    yield "P3", f"after {word!s} a retry was told {one.kind!s}"

    def _check_refusals(self) -> Violations:
        for one in self.seen:
            if one.kind == GAVE_UP:
                yield "P6", "a caller had no answer, long after nothing failed any more"
            elif one.kind == Kind.OUTCOME_UNKNOWN and self.id.route not in DOUBTFUL:
                yield "P6", "its outcome was said to be unknown, though it may run again"
            elif one.kind not in DOCUMENTED:
                yield "P6", "a caller was told what is not documented"

    # -------------------------------------------------------------------------------- of the rows

    def _check_rows(self) -> Violations:
        for part, count in Counter(part for _, part in self.committed).items():
            if count > 1:
                runs = [run for run, other in self.committed if other == part]
                yield "P2", f"rows of several runs were committed: {runs}"

    def _check_messages(self) -> Violations:
        """A message is published if and only if it was committed; maybe more than once."""
        for run, part in sorted({*self.committed} - {*self.published}):
            yield "outbox", f"the message of run {run} ({part}) was not published"
        for run, part in sorted({*self.published} - {*self.committed}):
            yield "outbox", f"the message of run {run} ({part}) was published and not committed"
