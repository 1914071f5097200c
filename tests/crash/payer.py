"""A client that the crash tests kill: it pays for orders, and writes down those that are paid.

python -m tests.crash.payer SERVER_URL JOURNAL PAID ORDER...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from oncekey.client import Client, Journal, Retries
from oncekey.testing.crash import arm_from_environment


def main(url: str, journal_file: str, paid_file: str, *orders: str) -> None:
    paid = os.open(paid_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    journal = Journal(journal_file)
    retries = Retries(backoff_s=0.01, backoff_s_max=0.1)
    with Client(base_url=url, journal=journal, retries=retries, timeout=10.0) as api:

        def pay(order: str) -> None:
            answer = api.post("/orders", json={"order": order}, intent=order)
            assert answer.status_code == 201, answer.text
            os.write(paid, f"{order} {answer.json()['run']}\n".encode())
            journal.settle(order)

        begun = [intent.name for intent in journal.unsettled()]
        done = {line.split()[0] for line in Path(paid_file).read_text().splitlines()}
        for order in [*begun, *(order for order in orders if order not in {*begun, *done})]:
            pay(order)
    journal.close()


if __name__ == "__main__":
    arm_from_environment()
    main(*sys.argv[1:])
