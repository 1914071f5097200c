"""What one record costs on each engine, as it was measured: costs.json, by `./dev bench`. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from oncekey._core.values import value


@value
class Cost:
    """Of one record, claimed and completed. None: not measured, or there is no such thing."""

    stored_bytes: float
    index_bytes: float | None
    log_bytes: float | None
    server_cpu_us: float | None
    client_cpu_us: float | None
    write_units: float | None


@value
class Measured:
    """One engine, as it was when it was measured."""

    name: str
    version: str
    settings: str
    records: int
    others_cpu_percent: float
    points: Sequence[tuple[int, Cost]]
    """For answers of these lengths, shortest first."""

    def cost(self, answer_bytes: int) -> Cost:
        """Between two lengths on the line between them, beyond the last on the last line."""
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
    engines: dict[str, Measured]


_NAMES = tuple(Cost.__annotations__)


def _fields(cost: Cost) -> tuple[float | None, ...]:
    return tuple(getattr(cost, name) for name in _NAMES)


@cache
def load() -> Costs:
    told = json.loads(resources.files("oncekey.cli").joinpath("costs.json").read_text("utf-8"))
    engines = {name: _engine(name, each) for name, each in told["engines"].items()}
    about = {name: told[name] for name in ("measured", "oncekey", "machine", "written_by")}
    return Costs(**about, engines=engines)


def _engine(name: str, told: dict[str, Any]) -> Measured:
    points = [
        (each["answer_bytes"], Cost(*(each[name] for name in _NAMES))) for each in told["points"]
    ]
    about = {key: told[key] for key in ("version", "settings", "records", "others_cpu_percent")}
    return Measured(name=name, **about, points=points)
