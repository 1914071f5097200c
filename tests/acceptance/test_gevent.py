"""Under gevent, as in gunicorn's worker of that name: threads are greenlets that take turns."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.acceptance.gevent_bodies import BODY
from tests.acceptance.gevent_orders import CLIENTS
from tests.acceptance.shop import WAIT_S_MAX
from tests.places import Place

pytestmark = pytest.mark.slow

PATCHED = (sys.executable, "-m", "gevent.monkey")


def run(module: str, url: str) -> Any:
    child = subprocess.run(
        [*PATCHED, "--module", module, url],
        capture_output=True,
        timeout=2 * WAIT_S_MAX,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_p1_greenlets_run_it_once_and_all_get_its_answer(place: Place) -> None:
    answer, replayed = [201, '{"order": 1}', False], [201, '{"order": 1}', True]
    told = [answer, *[replayed] * (CLIENTS - 1)]
    assert run("tests.acceptance.gevent_orders", place.url) == {"runs": 1, "told": told}


def test_p11_greenlets_have_their_turn_while_a_long_body_is_looked_into(place: Place) -> None:
    told = run("tests.acceptance.gevent_bodies", place.url)
    size = str(len(BODY))
    assert told["told"] == [[201, size, False], [201, size, True]]
    assert told["turns"] > 10
