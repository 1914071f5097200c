"""A process died over a sealed record: the recoverer finishes it, by a key of its own, and what lay
in the store meanwhile told nobody anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.downstream import Downstream, running
from tests.crash.server import SECRETS
from tests.crash.test_recover import LEASE_S, OPERATION, abandon, done, finish
from tests.places import PLACES, SEALED, Place, met_at
from tests.stores.sealed.kit import SECOND, SECRET

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Downstream]:
    with running(tmp_path_factory.mktemp("downstream")) as double:
        yield double


_USUAL = ("sqlite", "redis")


@pytest.fixture(
    params=[*_USUAL, *(pytest.param(n, marks=pytest.mark.long) for n in PLACES if n not in _USUAL)]
)
def sealed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    with met_at(SEALED + request.param, request, tmp_path) as place:
        monkeypatch.setenv(SECRETS, SECRET)
        yield place


def test_p6_a_sealed_orphan_is_finished_by_another_process(
    sealed: Place, tmp_path: Path, double: Downstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the second step's effect and its record; the recoverer has a newer secret."""
    key = abandon(sealed, tmp_path / "ledger", double, "before_step=kill@2", LEASE_S)
    if sealed.url.startswith("sqlite"):
        files = b"".join(path.read_bytes() for path in tmp_path.glob("keys.db*"))
        assert OPERATION.encode() in files
        for hidden in (key.encode(), b'"downstream"', b"reserve"):
            assert hidden not in files

    monkeypatch.setenv(SECRETS, f"{SECOND},{SECRET}")
    assert finish(sealed, tmp_path / "ledger", key) == ["finished"]

    rotated = replace(sealed, secrets=f"{SECOND},{SECRET}")
    assert len(set(json.loads(done(rotated, key))["made"])) == 3
    # The child key did not change with the secret: the second effect happened once.
    assert double.counts(key) == {"reserve": (1, 1), "charge": (2, 1), "mail": (1, 1)}
    record = rotated.look(key, OPERATION)
    assert record is not None
    assert (record.attempt, record.lapses) == (2, 1)
