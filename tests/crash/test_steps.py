"""A process is killed at every probe of an operation of three steps, on every store.

Each step calls another process, which has a file of its own and dedupes by the step's key: in the
end each effect has happened once, and every client has heard the same answer.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.child import Child, Reply, serving
from tests.crash.downstream import Downstream, running
from tests.places import Place

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("colour")]

LEASE_S = 30.0
POLICY: dict[str, Any] = {"lease_s": LEASE_S, "recovery": "resume"}
STEPS = ("reserve", "charge", "mail")


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Downstream]:
    with running(tmp_path_factory.mktemp("downstream")) as double:
        yield double


def settle(child: Child, place: Place, key: str, **order: object) -> Reply:
    reply = child.post("/book", key, **order)
    if reply.status == 409 and b"in-flight" in reply.body:
        place.elapse(LEASE_S)
        reply = child.post("/book", key, **order)
    return reply


# Where the process dies, and which steps' effects are asked for a second time.
KILLED = [
    ("before_insert=kill", ()),
    ("after_insert=kill", ()),
    ("before_step=kill@1", ("reserve",)),
    ("after_step=kill@1", ()),
    ("before_step=kill@2", ("charge",)),
    ("after_step=kill@2", ()),
    ("before_step=kill@3", ("mail",)),
    ("after_step=kill@3", ()),
    ("after_handler=kill", ()),
    ("before_complete=kill", ()),
    ("after_complete=kill", ()),
    ("after_send=kill", ()),
]


@pytest.mark.parametrize(("at", "repeated"), KILLED)
def test_p6_an_operation_continues_after_its_last_kept_step(
    place: Place, tmp_path: Path, double: Downstream, at: str, repeated: tuple[str, ...]
) -> None:
    key = str(uuid.uuid4())
    with serving(place.url, tmp_path / "ledger", at=at, **POLICY) as first:
        lost = first.post("/book", key, downstream=double.port)
        assert first.process.wait() == -9
    with serving(place.url, tmp_path / "ledger", **POLICY) as second:
        reply = settle(second, place, key, downstream=double.port)
        again = second.post("/book", key, downstream=double.port)
    assert reply.status == 201, reply.body
    assert (again.status, again.body) == (reply.status, reply.body)
    if lost.status:
        assert lost.body == reply.body
    counts = double.counts(key)
    assert counts == {step: (1 + (step in repeated), 1) for step in STEPS}
    assert len(set(json.loads(reply.body)["made"])) == len(STEPS)


@pytest.mark.parametrize("at", ["before_step=kill@2", "after_step=kill@1"])
def test_at_most_once_is_never_asked_for_twice(
    place: Place, tmp_path: Path, double: Downstream, at: str
) -> None:
    """Killed between its effect and its record it becomes unknown; before it began it just runs."""
    key, order = str(uuid.uuid4()), {"downstream": double.port, "at_most_once": "charge"}
    with serving(place.url, tmp_path / "ledger", at=at, **POLICY) as first:
        assert first.post("/book", key, **order).status == 0
    with serving(place.url, tmp_path / "ledger", **POLICY) as second:
        reply = settle(second, place, key, **order)
        again = second.post("/book", key, **order)
    begun = at == "before_step=kill@2"
    assert reply.status == again.status == (409 if begun else 201)
    assert (b"outcome-unknown" in reply.body) == begun
    assert double.counts(key)["charge"] == (1, 1)
