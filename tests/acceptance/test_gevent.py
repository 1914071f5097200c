"""Under gevent, as in gunicorn's worker of that name: threads are greenlets that take turns."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.acceptance.gevent_orders import CLIENTS
from tests.acceptance.shop import WAIT_S_MAX
from tests.places import Place

pytestmark = pytest.mark.slow

PATCHED = (sys.executable, "-m", "gevent.monkey")


def test_p1_greenlets_run_it_once_and_all_get_its_answer(place: Place) -> None:
    child = subprocess.run(
        [*PATCHED, "--module", "tests.acceptance.gevent_orders", place.url],
        capture_output=True,
        timeout=2 * WAIT_S_MAX,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    answer, replayed = [201, '{"order": 1}', False], [201, '{"order": 1}', True]
    told = [answer, *[replayed] * (CLIENTS - 1)]
    assert json.loads(child.stdout) == {"runs": 1, "told": told}
