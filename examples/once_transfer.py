"""A function that moves money once, however often it is called, and resumes where it stopped.

    python examples/once_transfer.py

The bank fails the first credit. The second call of `transfer` does not debit again: the first
step's result is stored. The third call runs nothing at all.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oncekey


@dataclass(frozen=True)
class Transfer:
    id: str
    source: str
    target: str
    cents: int


class Bank:
    """Stands for a service that takes an idempotency key with every booking."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.failures = 1
        with closing(sqlite3.connect(file)) as books, books:
            books.execute("CREATE TABLE IF NOT EXISTS bookings (key TEXT UNIQUE, account, cents)")

    def book(self, key: str, account: str, cents: int) -> str:
        if cents > 0 and self.failures:
            self.failures -= 1
            raise ConnectionError("the bank does not answer")
        with closing(sqlite3.connect(self.file)) as books, books:
            row = (key, account, cents)
            books.execute("INSERT INTO bookings VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row)
        return f"booking_{key[:8]}"

    def bookings(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self.file)) as books:
            return books.execute("SELECT account, cents FROM bookings").fetchall()


def build(runtime: oncekey.Runtime, bank: Bank) -> Any:
    """The guarded function."""

    @oncekey.once(runtime, key="{order.id}", policy=oncekey.Policy(recovery="resume"))
    def transfer(order: Transfer) -> dict[str, str]:
        op = oncekey.current()
        # Each step's result is stored before the next begins. A step that died between its booking
        # and its record repeats the call with the same key, and the bank recognises it.
        debit = op.step_sync("debit", bank.book, op.child_key("debit"), order.source, -order.cents)
        credit = op.step_sync(
            "credit", bank.book, op.child_key("credit"), order.target, order.cents
        )
        return {"debit": debit, "credit": credit}

    return transfer


def main() -> None:
    parser = argparse.ArgumentParser(description="Move money once.")
    parser.add_argument("--data", type=Path, default=None, help="where to keep its files")
    data = parser.parse_args().data or Path(tempfile.mkdtemp(prefix="oncekey-transfer-"))
    bank = Bank(data / "bank.db")
    with oncekey.Runtime(f"sqlite:///{data / 'keys.db'}") as runtime:
        transfer = build(runtime, bank)
        order = Transfer("t-17", source="anna", target="ben", cents=500)
        try:
            transfer(order)
        except ConnectionError as error:
            print(f"first call:  {error}")
        print(f"second call: {transfer(order)}")
        print(f"third call:  {transfer(order)}")
        try:
            transfer(Transfer("t-17", source="anna", target="ben", cents=900))
        except oncekey.Mismatch as error:
            print(f"other call:  {error}")
    print(f"booked:      {bank.bookings()}")


if __name__ == "__main__":
    main()
