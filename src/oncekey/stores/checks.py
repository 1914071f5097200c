"""Checks of a store: each finding is a setting, what it can lead to, and what to do about it.

Each engine has one list of findings, in its `checks`. At the start an unsafe finding refuses the
store, unless the URL accepts it by name (`allow=…`); `oncekey doctor` shows all of them.
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
    """The store is refused at the start."""
    ACCEPTED = "accepted"
    """Unsafe, but accepted by name."""
    ADVICE = "advice"
    FINE = "fine"


class Risk(enum.StrEnum):
    """What a URL can accept by name: `?allow=NAME,NAME`."""

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
"""The consequences of accepting a risk, in the words of the documentation."""


@value
class Finding:
    """The result of one check."""

    what: str
    seen: str
    """The value, in the engine's own words."""
    level: Level = Level.FINE
    why: str = ""
    """What it can lead to."""
    do: str = ""
    """The exact command or setting that helps, as a sentence without a full stop."""
    risk: Risk | None = None
    """The name by which it can be accepted, if it can be."""

    def sentence(self) -> str:
        accept = f", or accept that by adding allow={self.risk} to the URL" if self.risk else ""
        return f"{self.seen}: {self.why}. {self.do}{accept}"


def unsafe(what: str, seen: str, why: str, do: str, risk: Risk | None = None) -> Finding:
    return Finding(what, seen, Level.UNSAFE, why, do, risk)


def advice(what: str, seen: str, why: str, do: str) -> Finding:
    return Finding(what, seen, Level.ADVICE, why, do)


CONNECTIONS_MIN = 7
"""One for each group of verbs of a process."""


def connection_limit(found: int | None, setting: str, do: str) -> Finding:
    """Check that the user of the URL may open as many connections as one process needs."""
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


def accept_risks(findings: Iterable[Finding], allowed: Collection[Risk]) -> list[Finding]:
    """Mark unsafe findings whose risk is allowed as accepted."""
    return [
        replace(each, level=Level.ACCEPTED)
        if each.level is Level.UNSAFE and each.risk in allowed
        else each
        for each in findings
    ]


def refuse_unsafe(findings: Iterable[Finding], address: str, allowed: Collection[Risk]) -> None:
    """Raise `StoreUnfit` for the first unsafe one; `address` must not contain a password."""
    for each in accept_risks(findings, allowed):
        if each.level is Level.UNSAFE:
            raise StoreUnfit(f"{address}: {each.sentence()}")


def parse_risks(names: Collection[str], known: Collection[Risk]) -> frozenset[Risk]:
    """Read the names of accepted risks, or raise `Misuse`."""
    if unknown := set(names) - set(known):
        choice = ", ".join(sorted(known))
        raise Misuse(
            f"allow={','.join(sorted(unknown))} is not understood: this store knows {choice}"
        )
    return frozenset(map(Risk, names))


def schema(applied: int | None, oldest_reader: int | None, newest: int, address: str) -> Finding:
    """Check that this code, which knows schemas up to `newest`, can use the existing one."""
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
    """How much is stored, as far as the engine can tell without counting."""

    bytes: int | None
    records: int | None = None
    """An estimate; None if only counting would tell."""
    note: str = ""
    """What the bytes include, if it is not obvious."""


@value
class Examination:
    """All that an engine reports."""

    about: str
    """The product and its version."""
    findings: list[Finding]
    size: Size | None = None
    readable: bool = True
    """Whether this release can read the records."""


@value
class Sample:
    """Some records, chosen by their ids, which are digests. Bodies are left out."""

    records: list[Record]
    whole: bool
    """Whether these are all."""


class Examinable(Store, Protocol):
    """A store that `oncekey doctor` can examine. None of this changes anything."""

    def examine(self) -> Op[Examination]:
        """Return what the store is, and all findings."""

    def now(self) -> Op[float | None]:
        """Return the store's clock in seconds since 1970; None if it is the host's."""

    def sample(self, limit: int) -> Op[Sample]:
        """Return `limit` records, or all."""


def first_by_id(store: Store, limit: int) -> Op[Sample]:
    """Return the sample of a store that can read records by id order without reading all."""
    [records] = yield from store.perform([Scan(limit)])
    return Sample(records, whole=len(records) < limit)
