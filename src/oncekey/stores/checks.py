"""What is found when a store is looked at: a setting, what it can lead to, and what to do about it.

Each engine has one list of findings, in its `*_fitness`. At the start whatever is unsafe refuses
the store, unless the URL accepts it by name (`allow=…`); `oncekey doctor` shows all of them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Protocol

from oncekey._core.op import Op
from oncekey._core.record import Record
from oncekey._core.values import value
from oncekey._core.verbs import Scan
from oncekey.errors import Misuse, StoreUnfit
from oncekey.stores.base import Store


class Level(enum.StrEnum):
    UNSAFE = "unsafe"
    """Refused at the start."""
    ACCEPTED = "accepted"
    """Unsafe, and accepted by name."""
    ADVICE = "advice"
    FINE = "fine"


class Risk(enum.StrEnum):
    """What can be accepted, by the name that stands in a URL: `?allow=NAME,NAME`."""

    CONNECTIONS = "few-connections"
    DURABILITY = "unsafe-durability"
    EVICTION = "eviction"
    GLOBAL_TABLE = "global-table"
    NETWORK_FILES = "network-file-system"
    PACKETS = "small-packets"


ACCEPTS = {
    Risk.CONNECTIONS: "a request may run whose answer then cannot be recorded, and run again",
    Risk.DURABILITY: "a crash of the store, or a loss of power, may forget what was acknowledged",
    Risk.EVICTION: "a full memory may forget records at any time",
    Risk.GLOBAL_TABLE: "regions do not wait for each other: safe only if one of them alone writes",
    Risk.NETWORK_FILES: "the share may neither lock nor sync as SQLite needs it",
    Risk.PACKETS: "an answer that does not fit is kept without its body, and no retry gets it: "
    "lower `Policy(answer_bytes_max=…)` to half a packet",
}
"""What somebody takes upon themselves, in the words of the documentation."""


@value
class Finding:
    """One thing that was looked at."""

    what: str
    seen: str
    """The value, as the engine itself calls it."""
    level: Level = Level.FINE
    why: str = ""
    """What it can lead to."""
    do: str = ""
    """The very command or setting that helps, as a sentence without its full stop."""
    risk: Risk | None = None
    """The name under which it can be accepted, if it can be."""

    def sentence(self) -> str:
        accept = f", or accept that by adding allow={self.risk} to the URL" if self.risk else ""
        return f"{self.seen}: {self.why}. {self.do}{accept}"


def unsafe(what: str, seen: str, why: str, do: str, risk: Risk | None = None) -> Finding:
    return Finding(what, seen, Level.UNSAFE, why, do, risk)


def advice(what: str, seen: str, why: str, do: str) -> Finding:
    return Finding(what, seen, Level.ADVICE, why, do)


CONNECTIONS_MIN = 7
"""One for each kind of question that a process asks."""


def connection_limit(found: int | None, setting: str, do: str) -> Finding:
    """Whether the user of the URL may have as many as one process takes."""
    if found is None or found >= CONNECTIONS_MIN:
        return Finding("connection limit", "none" if found is None else f"{setting} {found}")
    return unsafe(
        "connection limit",
        f"{setting} {found}",
        f"a process takes up to {CONNECTIONS_MIN}; where a claim gets one and its completion none, "
        "the request runs, its client is refused, and a retry runs it again",
        do,
        Risk.CONNECTIONS,
    )


def accepting(findings: Iterable[Finding], allowed: Collection[Risk]) -> list[Finding]:
    """The same, where what is allowed does not count as unsafe any more."""
    return [
        replace(each, level=Level.ACCEPTED)
        if each.level is Level.UNSAFE and each.risk in allowed
        else each
        for each in findings
    ]


def insist(findings: Iterable[Finding], address: str, allowed: Collection[Risk]) -> None:
    """Raise `StoreUnfit` for the first that is unsafe; `address` must not hold a password."""
    for each in accepting(findings, allowed):
        if each.level is Level.UNSAFE:
            raise StoreUnfit(f"{address}: {each.sentence()}")


def allowed(names: Collection[str], known: Collection[Risk]) -> frozenset[Risk]:
    """What a URL, or whoever made the store, accepts."""
    if unknown := set(names) - set(known):
        choice = ", ".join(sorted(known))
        raise Misuse(
            f"allow={','.join(sorted(unknown))} is not understood: this store knows {choice}"
        )
    return frozenset(map(Risk, names))


def schema(applied: int | None, oldest_reader: int | None, newest: int, address: str) -> Finding:
    """Whether this code, which knows the schemas up to `newest`, can work with what is there."""
    if applied is None or applied < newest:
        seen = "no oncekey tables" if applied is None else f"schema {applied}"
        do = f"Run `oncekey migrate {address}`"
        return unsafe("schema", seen, f"this release needs schema {newest}", do)
    if oldest_reader is not None and oldest_reader > newest:
        return unsafe(
            "schema",
            f"schema {applied}",
            f"only releases that know schema {oldest_reader} can use it, this one knows {newest}",
            "Upgrade oncekey here, or finish rolling the newer release back",
        )
    return Finding("schema", f"schema {applied}")


UNREAD_SCHEMA = Finding("schema", "not looked at: this user may not read oncekey_schema")


# ------------------------------------------------------------------------------- a thorough look


@value
class Size:
    """How much is kept, as far as the engine can tell without counting."""

    bytes: int | None
    records: int | None = None
    """About so many; None where only counting tells."""
    note: str = ""
    """What the bytes are, if it is not obvious."""


@value
class Examination:
    """All that an engine tells of itself."""

    about: str
    """The product and its version."""
    findings: list[Finding]
    size: Size | None = None
    readable: bool = True
    """Whether this release can read the records."""


@value
class Sample:
    """Some records, chosen by nothing but their ids, which are digests. Bodies are left out."""

    records: list[Record]
    whole: bool
    """Whether these are all."""


class Examinable(Store, Protocol):
    """A store that `oncekey doctor` can look at. Nothing of this changes anything."""

    def examine(self) -> Op[Examination]:
        """What the store is, and what is found about it."""

    def now(self) -> Op[float | None]:
        """The store's clock in seconds since 1970; None if it is the host's."""

    def sample(self, limit: int) -> Op[Sample]:
        """So many records, or all."""


def first_by_id(store: Store, limit: int) -> Op[Sample]:
    """The sample of a store that finds records in the order of their ids without reading all."""
    [records] = yield from store.perform([Scan(limit)])
    return Sample(records, whole=len(records) < limit)
