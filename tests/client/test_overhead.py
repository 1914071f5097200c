"""What the transport adds to a request that goes as it should, counted in steps of the interpreter:
unlike time, those are the same on every machine, however busy. `./dev bench --only client` measures
the time.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from oncekey.client import retrying
from tests.client.wire import Scripted, scripted

ORDER = {"item": "tea", "quantity": 2, "note": "to be delivered before noon"}
ADDED_PERCENT_MAX = {"httpx2": 8.0, "httpx": 8.0, "requests": 5.0}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as served:
        yield served


def _steps(work: Callable[[], object]) -> int:
    """How many instructions of Python's this takes, in this thread."""
    steps = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal steps
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("library", ADDED_PERCENT_MAX)
def test_what_goes_well_costs_little(library: str, server: Scripted) -> None:
    module: Any = importlib.import_module(library)
    url = f"{server.url}/orders"
    if library == "requests":
        bare, ours = module.Session(), module.Session()
        ours.mount("http://", retrying(module.adapters.HTTPAdapter()))
    else:
        bare = module.Client(transport=module.HTTPTransport())
        ours = module.Client(transport=retrying(module.HTTPTransport()))
    with bare, ours:
        taken = {}
        for client in (bare, ours):
            for _ in range(3):  # what is only done once
                client.post(url, json=ORDER, timeout=30.0)
            taken[client] = _steps(lambda sent=client: sent.post(url, json=ORDER, timeout=30.0))  # type: ignore[misc]

    added_percent = 100 * (taken[ours] / taken[bare] - 1)
    assert 0 < added_percent <= ADDED_PERCENT_MAX[library], taken
