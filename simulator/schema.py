"""Schema versions in a schedule: a rolling deployment, and what must become of kept answers.

The rule stands here a second time, as the documentation has it, so that the engine's own can be
compared with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from oncekey._core.policy import Policy
from oncekey._core.record import Answer
from oncekey._core.versions import Versions

Stale = Literal["replay", "rerun", "refuse"]
Fate = Literal["same", "upcast", "replay", "rerun", "refuse", "newer"]

OLD, NEW = 0, 2
"""Version 1 is never served: it is only passed through on the way up."""


class Schema(NamedTuple):
    """What a worker's policy says about versions."""

    version: int = OLD
    stale: Stale = "replay"
    ways: Literal["none", "up", "both"] = "none"


PLAIN = Schema()
"""As long as nobody has changed an answer."""


def draw(chance: Callable[[], float], recoveries: Sequence[str]) -> list[Schema]:
    """One per worker; now and then a new release is among them."""
    if chance() < 0.75:
        return [PLAIN] * len(recoveries)
    stale: Stale = ("replay", "rerun", "rerun", "refuse")[int(chance() * 4)]
    ways: Literal["none", "up", "both"] = "none"
    if chance() < 0.3:
        ways = "up" if chance() < 0.5 else "both"
    versions = [OLD] * (len(recoveries) - 1) + [NEW]
    return [
        Schema(version, "refuse" if stale == "rerun" and recovery == "block" else stale, ways)
        for version, recovery in zip(versions, recoveries, strict=True)
    ]


def passed(answer: Answer, old: int, new: int) -> Answer:
    """An answer that went from one version to another says so, once for each time."""
    mark = (b"x-upcast", b"%d>%d" % (old, new))
    return dataclasses.replace(answer, headers=(*answer.headers, mark))


def _versions(*pairs: tuple[int, int]) -> Versions:
    versions = Versions()
    for old, new in pairs:
        versions.upcast(old, new)(lambda answer, old=old, new=new: passed(answer, old, new))
    return versions


_UP, _DOWN = ((OLD, 1), (1, NEW)), ((NEW, OLD),)
UPCASTS = {"none": None, "up": _versions(*_UP), "both": _versions(*_UP, *_DOWN)}


def fate(kept: int, repeatable: bool, policy: Policy) -> Fate:
    """What must become of an answer that was kept under this version, by an attempt that may be
    repeated or not.
    """
    if kept == policy.schema_version:
        return "same"
    up = kept < policy.schema_version
    if policy.upcasts is UPCASTS["both"] or (up and policy.upcasts is UPCASTS["up"]):
        return "upcast"
    match policy.stale:
        case "replay":
            return "replay"
        case "rerun" if up:
            return "rerun" if repeatable else "refuse"
        case "rerun":
            return "replay"
        case _:
            return "refuse" if up else "newer"


def shown(answer: Answer | None, kept: int, fate: Fate) -> Answer | None:
    """A kept answer, as its client must get it."""
    if answer is None or fate != "upcast":
        return answer
    for old, new in _UP if kept == OLD else _DOWN:
        answer = passed(answer, old, new)
    return answer
