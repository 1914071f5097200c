"""Releases with other rules for fingerprints: beside each other, and one that replaces another.

The earlier release is 0.1, the current one is this; of the strange one nobody knows the rules. What
the earlier release's engine did is told apart from its fingerprints: it stands in `earlier`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from oncekey._core import fingerprint as fingerprints
from oncekey._core.canonical import FORM, BadBody
from oncekey._core.fingerprint import Fingerprint
from simulator.schema import PLAIN, UPCASTS

if TYPE_CHECKING:
    from simulator.scenario import Scenario

EARLIER, CURRENT, STRANGE = 1, 2, 3
UPGRADED_S = 40.0
"""By then every process is of the current release."""


def reads(worker: int, record: int) -> bool:
    """Whether a worker of one release can compare what another one wrote."""
    return worker == record or (worker, record) == (CURRENT, EARLIER)


def fingerprint(version: int, path: str, form: bytes) -> Fingerprint:
    """A request as a release of this version sees it, by the real rules."""
    earlier = _by_rules(EARLIER, path, form)
    if version == EARLIER:
        return earlier
    made = _by_rules(CURRENT, path, form)
    if version == STRANGE:
        return Fingerprint(STRANGE, made.digest, STRANGE)
    return dataclasses.replace(made, earlier=lambda: (earlier.digest,))


def _by_rules(version: int, path: str, form: bytes) -> Fingerprint:
    made = fingerprints.compute("POST", path, b"", FORM, form, version=version)
    if isinstance(made, BadBody):
        raise AssertionError(made.reason)
    return made


def upgraded(scenario: Scenario, chance: Callable[[], float]) -> Scenario:
    """The same while the current release replaces the earlier one: each worker is stopped
    at some time, and comes back as the current one. Answers keep their shape.
    """
    workers = len(scenario.policies)
    shaped = partial(
        dataclasses.replace,
        schema_version=PLAIN.version,
        stale=PLAIN.stale,
        upcasts=UPCASTS[PLAIN.ways],
    )
    return dataclasses.replace(
        scenario,
        policies=tuple(map(shaped, scenario.policies)),
        versions=(EARLIER,) * workers,
        upgrades_at=tuple(UPGRADED_S * chance() ** 2 for _ in range(workers)),
    )
