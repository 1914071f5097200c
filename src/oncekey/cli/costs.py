"""The measured cost of one record on each engine: costs.json, written by `./dev bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from oncekey._core.values import value


@value
class Cost:
    """The cost of one record, claimed and completed. None: not measured, or not applicable."""

    stored_bytes: float
    index_bytes: float | None
    log_bytes: float | None
    server_cpu_us: float | None
    client_cpu_us: float | None
    write_units: float | None


@value
class EngineCosts:
    """One engine, as it was measured."""

    name: str
    version: str
    settings: str
    records: int
    others_cpu_percent: float
    points: Sequence[tuple[int, Cost]]
    """For answers of these lengths, shortest first."""

    def cost(self, answer_bytes: int) -> Cost:
        """Interpolate between two measured lengths; beyond the last, extrapolate."""
        after = next(
            (at for at, (size, _) in enumerate(self.points) if size >= answer_bytes),
            len(self.points) - 1,
        )
        (low, first), (high, second) = self.points[max(after, 1) - 1 : max(after, 1) + 1]
        share = (answer_bytes - low) / (high - low)
        between = (
            None if one is None or other is None else one + share * (other - one)
            for one, other in zip(_fields(first), _fields(second), strict=True)
        )
        return Cost(*between)  # type: ignore[arg-type]  # the first is measured everywhere

    @property
    def answer_bytes_max(self) -> int:
        return self.points[-1][0]


@value
class Costs:
    measured: str
    """The date."""
    oncekey: str
    machine: str
    written_by: str
    engines: dict[str, EngineCosts]


_NAMES = tuple(Cost.__annotations__)


def _fields(cost: Cost) -> tuple[float | None, ...]:
    return tuple(getattr(cost, name) for name in _NAMES)


@cache
def load_costs() -> Costs:
    data = json.loads(resources.files("oncekey.cli").joinpath("costs.json").read_text("utf-8"))
    engines = {name: _engine(name, each) for name, each in data["engines"].items()}
    about = {name: data[name] for name in ("measured", "oncekey", "machine", "written_by")}
    return Costs(**about, engines=engines)


def _engine(name: str, data: dict[str, Any]) -> EngineCosts:
    points = [
        (each["answer_bytes"], Cost(*(each[name] for name in _NAMES))) for each in data["points"]
    ]
    about = {key: data[key] for key in ("version", "settings", "records", "others_cpu_percent")}
    return EngineCosts(name=name, **about, points=points)
