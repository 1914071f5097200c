"""What sealing costs, in CPU time: an answer of 2 KB, a claim, and both opened for a replay."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from statistics import median
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bench.machine import ForeignCpu
from bench.rounds import Settings, say
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from bench.work import claim as new_claim
from oncekey._core import lifecycle
from oncekey._core.op import run
from oncekey._core.record import TOKEN_BYTES, Answer
from oncekey._core.verbs import Insert
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed.store import SealedStore

BODY_BYTES = 2_048
CALLS = 2_000
SECRET = "of the benchmark and long enough"  # noqa: S105
GOAL = Goal(50.0, at_least=False, unit="µs")
HOW = """\
CPU time that a sealed store adds to a memory store, for verbs of one record each that it has never
seen: nothing derived is remembered. The limit is AES-256-GCM alone, over an answer of 2 KB, with a
key that is ready. An answer has five header lines."""
_HEADERS = tuple((b"x-header-%d" % number, b"value-%d" % number) for number in range(5))


def section(settings: Settings) -> Section:
    pairs = 5 if settings.quick else 15
    return Section("Sealed records", HOW, tuple(try_rows("sealing", lambda: _rows(pairs))))


def estimate_s(settings: Settings) -> float:
    return 15


def _rows(pairs: int) -> list[Row]:
    foreign = ForeignCpu()
    plain, sealed, alone = [], [], []
    for number in range(pairs):
        stores: list[Any] = [MemoryStore(), SealedStore(MemoryStore(), [SECRET])]
        costs = {store: _life(store) for store in (stores if number % 2 else reversed(stores))}
        plain.append(costs[stores[0]])
        sealed.append(costs[stores[1]])
        alone.append(_us(_cipher(), CALLS))
    percent = foreign.percent()
    return [
        _row(what, [run[at] for run in plain], [run[at] for run in sealed], alone, percent, goal)
        for at, (what, goal) in enumerate(
            [
                ("a claim, sealed", None),
                ("an answer of 2 KB, sealed", GOAL),
                ("both opened, for a replay", None),
            ]
        )
    ]


def _row(
    what: str,
    plain: list[float],
    sealed: list[float],
    alone: list[float],
    foreign_percent: float,
    goal: Goal | None,
) -> Row:
    added = [with_ - without for with_, without in zip(sealed, plain, strict=True)]
    say(f"{what}: {median(added):.1f} µs")
    return Row(
        f"{what}, added CPU",
        ours=f"{median(sealed):.1f} µs",
        limit=f"{median(alone):.2f} µs",
        value=median(added),
        low=min(added),
        high=max(added),
        goal=goal,
        unit="µs",
        foreign_percent=foreign_percent,
        steady=True,
    )


def _life(store: Any) -> tuple[float, float, float]:
    """Return the CPU time of a claim, of a completion and of a replay."""
    claims = [new_claim() for _ in range(CALLS)]
    answer = Answer(201, _HEADERS, os.urandom(BODY_BYTES))
    swaps = [
        lifecycle.complete(
            lifecycle.Held(claim.id, 1, claim.token), answer, retention_s=60.0, resource_id="o_1"
        )
        for claim in claims
    ]
    retries = [replace(claim, token=os.urandom(TOKEN_BYTES)) for claim in claims]
    with closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)
        verbs: list[list[Any]] = [list(map(Insert, claims)), swaps, list(map(Insert, retries))]
        first, second, third = (_cost_us(store, connection.ask, each) for each in verbs)
    return first, second, third


def _cost_us(store: Any, ask: Callable[[Any], Any], verbs: list[Any]) -> float:
    _forget(store)
    waiting = iter(verbs)
    return _us(lambda: run(store.perform([next(waiting)]), ask), len(verbs))


def _forget(store: Any) -> None:
    """Clear cached ids and keys, so that each verb is the first for its record."""
    seal = getattr(store, "_seal", None)
    if seal is not None:
        seal.hashed_id.cache_clear()
        seal._key.cache_clear()


def _us(call: Callable[[], object], times: int) -> float:
    started = time.process_time_ns()
    for _ in range(times):
        call()
    return (time.process_time_ns() - started) / 1000 / times


def _cipher() -> Callable[[], bytes]:
    cipher, body, nonce = AESGCM(AESGCM.generate_key(256)), os.urandom(BODY_BYTES), os.urandom(12)
    return lambda: cipher.encrypt(nonce, body, b"place")
