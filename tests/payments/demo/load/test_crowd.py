"""A crowd of real processes against a real API and network: whatever they do, nothing differs."""

import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from payments.access.accounts import LOCAL, Accounts, digest
from payments.demo.load.crowd import CROWD, rotate_crowd_key
from payments.money import reconcile
from tests.payments.api_client import Api
from tests.payments.run_command import WAIT_S_MAX, RunCommand, children_of, is_gone, until

COUNTS = re.compile(r"(\w+) (\d+)")


def parse_counts(said: str) -> dict[str, int]:
    """The last line that counts."""
    [*_, last] = [line for line in said.splitlines() if line.startswith("differences")] or [""]
    return {name: int(number) for name, number in COUNTS.findall(last)}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_crowd_that_misbehaves_is_charged_once_for_everything(tmp_path: Path) -> None:
    running = RunCommand(tmp_path, "--traffic")
    try:
        until(lambda: "shopper" in children_of(running.process.pid), "shoppers")
        seen = ("purchases", "clicks", "requests", "charges", "replays", "refused", "kills")
        until(
            lambda: all(parse_counts(running.output_text()).get(name) for name in seen),
            "all to be counted",
        )
        family = children_of(running.process.pid)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(2 * WAIT_S_MAX) == 0, running.output_text()
        assert all(map(is_gone, family.values()))
    finally:
        running.close()
    counts = parse_counts(running.output_text())
    assert counts["differences"] == 0, running.output_text()
    assert counts["clicks"] > counts["purchases"], "nobody clicked twice"
    with closing(sqlite3.connect(running.data / "payments.db")) as rows:
        [[charged, wanted]] = rows.execute(
            "SELECT count(*), count(DISTINCT description) FROM charges WHERE status = 'succeeded'"
        )
        whose = rows.execute("SELECT DISTINCT tenant FROM charges").fetchall()
    assert 0 < charged == wanted
    assert whose == [(CROWD.tenant,)], "it is in the way of the checkout page's own orders"
    book = running.data / "network.db"
    assert reconcile.main(["--data", str(running.data), "--network", str(book)]) == 0


def test_the_crowd_has_an_account_of_its_own_and_keeps_it(api: Api) -> None:
    """What its journals hold goes on under it; the next start gives it a new key."""
    accounts = Accounts(api.database)
    keys = [accounts.find_key(digest(rotate_crowd_key(api.database))) for _ in range(2)]
    assert [key.account for key in keys if key] == [CROWD, CROWD]
    assert CROWD.tenant != LOCAL.tenant
    [listed] = [each for each in accounts.all() if each.id == CROWD.id]
    assert [key.expires is None for key in listed.keys] == [False, True]
