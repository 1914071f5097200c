from pathlib import Path

import pytest

from tests.payments.api import serving
from tests.payments.test_races import Together

pytestmark = pytest.mark.slow

CHARGE = {"amount": 900, "currency": "eur", "source": "tok_visa"}


def test_who_looks_is_answered_while_charges_wait_for_the_network(tmp_path: Path) -> None:
    with serving(tmp_path, threads_max=4) as api:
        together = Together()
        with api.network.held_up():
            for number in range(8):
                together.start(api.post, "charges", CHARGE, f"key-{number}")
            api.network.until_asked(3)  # all that may; the others wait without a thread
            [newest, *_] = api.get("charges").json()["data"]
            assert newest["status"] == "pending"
        assert together.statuses() == [200] * 8
        assert len(api.network.rows("capture")) == 8
