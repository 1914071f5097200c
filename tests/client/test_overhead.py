"""What the transport adds to a request that goes as it should, counted in steps of the interpreter:
unlike time, those are the same on every machine, however busy. `./dev bench --only client` measures
the time.

A key has to be sent by whoever may retry. Making one and sending it by hand costs more than a
twentieth of a request by itself, with httpx; so what the transport adds is counted beside that, and
beside a request without a key.
"""

from __future__ import annotations

import importlib
import sys
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from oncekey.client import retrying
from tests.client.scripted_server import ScriptedServer, scripted_server

# The limits are counted in the steps of Python 3.11. Elsewhere this file has no tests rather than
# skipped ones: in CI a skipped test is a failed one, and no run there could pass.
__test__ = sys.version_info < (3, 12)

ORDER = {"item": "tea", "quantity": 2, "note": "to be delivered before noon"}
BESIDE_A_KEY_PERCENT_MAX = 3.0
# httpx copies the headers of a request once more, for its cookies: the key is one of them.
BESIDE_NONE_PERCENT_MAX = {"httpx2": 8.0, "httpx": 9.0, "requests": 5.0}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as served:
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


@pytest.mark.parametrize("library", BESIDE_NONE_PERCENT_MAX)
def test_what_goes_well_costs_little(library: str, server: ScriptedServer) -> None:
    module: Any = importlib.import_module(library)
    url = f"{server.url}/orders"
    if library == "requests":
        bare, ours = module.Session(), module.Session()
        ours.mount("http://", retrying(module.adapters.HTTPAdapter()))
    else:
        bare = module.Client(transport=module.HTTPTransport())
        ours = module.Client(transport=retrying(module.HTTPTransport()))
    with bare, ours:
        none = _steps_of(lambda: bare.post(url, json=ORDER, timeout=30.0))
        by_hand = _steps_of(lambda: bare.post(url, json=ORDER, timeout=30.0, headers=_key()))
        taken = _steps_of(lambda: ours.post(url, json=ORDER, timeout=30.0))

    assert 100 * (taken / by_hand - 1) <= BESIDE_A_KEY_PERCENT_MAX, (none, by_hand, taken)
    assert 0 < 100 * (taken / none - 1) <= BESIDE_NONE_PERCENT_MAX[library], (none, by_hand, taken)


def _key() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid.uuid4())}


def _steps_of(post: Callable[[], object]) -> int:
    """The least of several: an answer that arrives in two pieces is read in more steps."""
    for _ in range(3):  # what is only done once
        post()
    return min(_steps(post) for _ in range(8))
