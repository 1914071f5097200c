"""A client that the crash tests kill: it takes orders into its database, and charges them at a
payments API. Its journal is in that database: an intent exists if and only if its order does.

python -m tests.crash.shopkeeper SERVER_URL SECRET DATABASE ORDER...
"""

from __future__ import annotations

import json
import sqlite3
import sys

from oncekey.client import Client, Retries, SqlJournal
from oncekey.testing.crash import arm_from_environment

ORDERS = "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, charge TEXT)"


def main(url: str, secret: str, database: str, *orders: str) -> None:
    shop, journal = sqlite3.connect(database), SqlJournal()
    shop.execute(ORDERS)
    journal.create(within=shop)
    shop.commit()
    retries = Retries(backoff_s=0.01, backoff_s_max=0.1)
    headers = {"authorization": f"Bearer {secret}"}
    with Client(
        base_url=url, profile="stripe", retries=retries, headers=headers, timeout=20.0
    ) as api:

        def charge(order: str, key: str, said: dict[str, str]) -> None:
            answer = api.post("/v1/charges", data=said, key=key)
            assert answer.status_code == 200, answer.text
            with shop:
                made = answer.json()["id"]
                shop.execute("UPDATE orders SET charge = ? WHERE id = ?", (made, order))
                journal.settle(order, within=shop, answer=answer)

        for intent in journal.unsettled(within=shop):
            charge(intent.name, intent.key, json.loads(intent.note))
        for order in orders:
            said = {"amount": "2000", "currency": "eur", "source": "tok_visa", "description": order}
            with shop:
                new = "INSERT INTO orders (id) VALUES (?) ON CONFLICT DO NOTHING"
                if not shop.execute(new, (order,)).rowcount:
                    continue
                key = journal.key(order, within=shop, origin=url, note=json.dumps(said))
            charge(order, key, said)
    shop.close()


if __name__ == "__main__":
    arm_from_environment()
    main(*sys.argv[1:])
