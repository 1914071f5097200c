"""Settings of a soak, from the command line, passed on to every worker."""

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
"""How orders come in: by a middleware, a guarded function or an inbox."""
BLOCKING = ("wsgi", "once-sync", "inbox-sync")
BROKERS = ("rabbitmq", "nats", "kafka", "redis")


@dataclass(frozen=True, slots=True)
class Settings:
    engine: str
    kind: str
    driver: str
    """The driver that handlers write rows with; empty if the engine has no rows."""
    sealed: bool
    seconds: float
    seed: int
    broker: str = ""
    """If set, messages go from an outbox through it to an inbox, instead of orders."""

    @property
    def command(self) -> str:
        """The command that repeats this soak, as far as the seed determines it."""
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
    """Read the command line. The seed chooses what is not given."""
    parser = argparse.ArgumentParser(prog="./dev soak", description=description)
    parser.add_argument("--engine", choices=engines.ENGINES, default="sqlite")
    parser.add_argument("--kind", choices=KINDS, default="asgi")
    parser.add_argument("--broker", choices=BROKERS, default="", help="from outbox to inbox")
    parser.add_argument("--driver", choices=sorted(drivers.KINDS), help="for the handlers' rows")
    parser.add_argument("--sealed", action="store_true", help="records are encrypted")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to inject faults")
    parser.add_argument("--seed", type=int, help="of orders and faults (default: a new one)")
    args = parser.parse_args(words)
    if not 0 < args.seconds < inf:
        parser.error("--seconds: give a duration, such as 60")
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    blocking = args.kind in BLOCKING or bool(args.broker)
    possible = drivers.matching_drivers(args.engine, blocking=blocking)
    if args.broker and not possible:
        parser.error(f"--broker: an outbox needs one of {', '.join(engines.ROWS)}")
    if args.driver and args.driver not in possible:
        parser.error(f"--driver here: {', '.join(possible) or 'there are no rows'}")
    driver = args.driver or Random(seed).choice(possible or [""])
    what = args.engine, args.kind, driver, args.sealed
    return Settings(*what, args.seconds, seed, args.broker)
