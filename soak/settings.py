"""What one soak is about. The command line says it, and every worker is told."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from random import Random

from soak import drivers, engines

KINDS = ("asgi", "wsgi", "once", "once-sync", "inbox", "inbox-sync")
"""The edges that orders come in by: the middlewares, guarded functions, and an inbox."""
BLOCKING = ("wsgi", "once-sync", "inbox-sync")
BROKERS = ("rabbitmq", "nats", "kafka", "redis")


@dataclass(frozen=True, slots=True)
class Settings:
    engine: str
    kind: str
    driver: str
    """By which handlers write rows of their own; none where the engine has no rows."""
    sealed: bool
    seconds: float
    seed: int
    broker: str = ""
    """Where messages go through one, from an outbox to an inbox, instead of orders."""

    @property
    def command(self) -> str:
        """That does the same again, as far as chance can be planned."""
        what = f"--engine {self.engine} "
        what += f"--broker {self.broker}" if self.broker else f"--kind {self.kind}"
        what += f" --driver {self.driver}" if self.driver else ""
        what += " --sealed" if self.sealed else ""
        return f"./dev soak {what} --seconds {self.seconds:g} --seed {self.seed}"

    @property
    def routes(self) -> tuple[str, ...]:
        """The application's routes, each named after how its runs are made safe."""
        leased = ("rerun", "block", "resume", "careful", "ask", "brief")
        if not self.driver:
            return leased
        by_caller = {"once": ("joined",), "inbox": ("atomic",)}
        return (*leased, *by_caller.get(self.kind.partition("-")[0], ("atomic", "joined")))

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Settings:
        return cls(**json.loads(text))


def read(words: Sequence[str] | None, description: str | None) -> Settings:
    """From the command line. What is not said is chosen by the seed."""
    parser = argparse.ArgumentParser(prog="./dev soak", description=description)
    parser.add_argument("--engine", choices=engines.ENGINES, default="sqlite")
    parser.add_argument("--kind", choices=KINDS, default="asgi")
    parser.add_argument("--broker", choices=BROKERS, default="", help="from outbox to inbox")
    parser.add_argument("--driver", choices=sorted(drivers.KINDS), help="of the handlers' rows")
    parser.add_argument("--sealed", action="store_true", help="records are encrypted")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long there are faults")
    parser.add_argument("--seed", type=int, help="of orders and faults (default: a new one)")
    given = parser.parse_args(words)
    if not 0 < given.seconds < inf:
        parser.error("--seconds: give a time to soak for, such as 60")
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    blocking = given.kind in BLOCKING or bool(given.broker)
    fitting = drivers.fitting(given.engine, blocking=blocking)
    if given.broker and not fitting:
        parser.error(f"--broker: an outbox is in one of {', '.join(engines.ROWS)}")
    if given.driver and given.driver not in fitting:
        parser.error(f"--driver here: {', '.join(fitting) or 'there are no rows'}")
    driver = given.driver or Random(seed).choice(fitting or [""])
    what = given.engine, given.kind, driver, given.sealed
    return Settings(*what, given.seconds, seed, given.broker)
