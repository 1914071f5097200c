"""The network's book: every transaction, and every key with its answer.

Both are written in one SQLite transaction, which is on disk before the client gets the answer. A
network needs nothing more to be safe to retry, and this project expects nothing more.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from payments.network import issuer

AMOUNT_MAX = 99_999_999
KEY_CHARS_MAX = 255
TEXT_CHARS_MAX = 255

SCHEMA = """
CREATE TABLE IF NOT EXISTS transactions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE DEFAULT ('ntx_' || lower(hex(randomblob(10)))),
    kind TEXT NOT NULL CHECK (kind IN ('authorisation', 'capture', 'void', 'refund')),
    authorisation TEXT REFERENCES transactions (id),
    reference TEXT NOT NULL,
    card TEXT NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0),
    currency TEXT NOT NULL,
    declined TEXT,
    created INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER))
) STRICT;
CREATE INDEX IF NOT EXISTS transactions_by_authorisation ON transactions (authorisation);
CREATE INDEX IF NOT EXISTS transactions_by_reference ON transactions (reference);
CREATE TABLE IF NOT EXISTS keys (
    key TEXT PRIMARY KEY,
    request TEXT NOT NULL,
    answer TEXT NOT NULL
) STRICT, WITHOUT ROWID;
"""

FIELDS: dict[str, dict[str, type]] = {
    "authorisation": {
        "card": str,
        "amount": int,
        "currency": str,
        "reference": str,
        "capture": bool,
    },
    "capture": {"authorisation": str, "amount": int, "reference": str},
    "void": {"authorisation": str, "reference": str},
    "refund": {"authorisation": str, "amount": int, "reference": str},
}
"""The exact fields of each kind of request."""

Fields = dict[str, Any]


class RequestRefused(Exception):
    """The request is invalid or not allowed; nothing was written."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class BookAnswer:
    """The answer to a request."""

    body: str
    replayed: bool


def open_file(path: Path | str) -> sqlite3.Connection:
    """Open the network's file, for the one thread that writes."""
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = FULL")
    file.execute("PRAGMA foreign_keys = ON")
    file.executescript(SCHEMA)
    return file


def validate_fields(kind: str, body: object) -> Fields:
    """Return the fields of a request; raise RequestRefused if they are invalid."""
    wanted = FIELDS[kind]
    if not isinstance(body, dict) or body.keys() != wanted.keys():
        raise RequestRefused(400, "fields", f"A {kind} says exactly: {', '.join(wanted)}.")
    for name, type_ in wanted.items():
        value = body[name]
        if type(value) is not type_:
            raise RequestRefused(400, name, f"{name} must be {type_.__name__}.")
        if isinstance(value, str) and not (value.isascii() and 1 <= len(value) <= TEXT_CHARS_MAX):
            raise RequestRefused(
                400, name, f"{name} must have 1 to {TEXT_CHARS_MAX} ASCII characters."
            )
    if not 1 <= body.get("amount", 1) <= AMOUNT_MAX:
        raise RequestRefused(400, "amount", f"amount must be 1 to {AMOUNT_MAX}, in minor units.")
    return body


class Book:
    """Executes requests, each key once."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def execute(
        self, kind: str, key: str, fields: Fields, before_commit: Callable[[], None]
    ) -> BookAnswer:
        """Execute a request, or return the stored answer of its key."""
        if not 1 <= len(key) <= KEY_CHARS_MAX:
            raise RequestRefused(400, "key", "Idempotency-Key must have 1 to 255 characters.")
        request = hashlib.sha256(json.dumps([kind, fields], sort_keys=True).encode()).hexdigest()
        self._file.execute("BEGIN IMMEDIATE")
        try:
            stored = self._stored_answer(key, request)
            if stored is not None:
                self._file.execute("ROLLBACK")
                return BookAnswer(stored, replayed=True)
            answer = json.dumps(_HANDLERS[kind](self, fields))
            self._file.execute("INSERT INTO keys VALUES (?, ?, ?)", (key, request, answer))
            before_commit()
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise
        return BookAnswer(answer, replayed=False)

    def transactions(self, after: int, limit: int, reference: str | None) -> list[dict[str, Any]]:
        """Return the transactions, oldest first."""
        if reference is None:
            rows = self._file.execute(
                "SELECT * FROM transactions WHERE number > ? ORDER BY number LIMIT ?",
                (after, limit),
            )
        else:
            rows = self._file.execute(
                "SELECT * FROM transactions WHERE reference = ? AND number > ? ORDER BY number"
                " LIMIT ?",
                (reference, after, limit),
            )
        names = [column[0] for column in rows.description]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def tally(self) -> dict[str, Any]:
        """Count captures and refunds, and sum the money moved, by currency."""
        charged = self._file.execute(
            "SELECT kind, currency, count(*), sum(amount) FROM transactions"
            " WHERE declined IS NULL GROUP BY kind, currency"
        )
        tally: dict[str, Any] = {"captures": 0, "refunds": 0, "captured": {}, "refunded": {}}
        for kind, currency, count, amount in charged:
            if f"{kind}s" in tally:
                tally[f"{kind}s"] += count
                tally[f"{kind}d" if kind == "capture" else "refunded"][currency] = amount
        return tally

    # ----------------------------------------------------------------------- within a transaction

    def _stored_answer(self, key: str, request: str) -> str | None:
        row = self._file.execute("SELECT request, answer FROM keys WHERE key = ?", (key,))
        found = row.fetchone()
        if found is None:
            return None
        if found[0] != request:
            raise RequestRefused(
                422, "key_reused", "This key was sent before with another request."
            )
        answer: str = found[1]
        return answer

    def _authorise(self, fields: Fields) -> Fields:
        decline = issuer.decide(fields["card"])
        card, reference = fields["card"][-4:], fields["reference"]
        money = fields["amount"], fields["currency"]
        code = decline.decline_code if decline else None
        id_ = self._write("authorisation", None, reference, card, *money, code)
        if decline is not None:
            return {
                "id": id_,
                "approved": False,
                "code": decline.code,
                "decline_code": decline.decline_code,
                "message": decline.message,
            }
        if fields["capture"]:
            self._write("capture", id_, reference, card, *money)
        return {"id": id_, "approved": True}

    def _capture(self, fields: Fields) -> Fields:
        card, authorised, currency, done = self._read_authorisation(fields["authorisation"])
        captured = done.get("capture", 0)
        if "void" in done:
            raise RequestRefused(409, "voided", "This authorisation was voided.")
        if captured + fields["amount"] > authorised:
            raise RequestRefused(
                409, "over_capture", f"Captured {captured} of {authorised} before."
            )
        return self._write_part("capture", fields, card, fields["amount"], currency)

    def _void(self, fields: Fields) -> Fields:
        card, authorised, currency, done = self._read_authorisation(fields["authorisation"])
        if done:
            raise RequestRefused(409, "not_open", f"This authorisation has a {min(done)} already.")
        return self._write_part("void", fields, card, authorised, currency)

    def _refund(self, fields: Fields) -> Fields:
        card, _, currency, done = self._read_authorisation(fields["authorisation"])
        captured, refunded = done.get("capture", 0), done.get("refund", 0)
        if refunded + fields["amount"] > captured:
            raise RequestRefused(409, "over_refund", f"Refunded {refunded} of {captured} before.")
        return self._write_part("refund", fields, card, fields["amount"], currency)

    def _read_authorisation(self, authorisation: str) -> tuple[str, int, str, dict[str, int]]:
        """Return an authorisation's card, amount, currency, and the sums of its parts by kind."""
        found = self._file.execute(
            "SELECT card, amount, currency FROM transactions"
            " WHERE id = ? AND kind = 'authorisation' AND declined IS NULL",
            (authorisation,),
        ).fetchone()
        if found is None:
            raise RequestRefused(
                404, "authorisation", f"There is no authorisation {authorisation!r}."
            )
        done = self._file.execute(
            "SELECT kind, sum(amount) FROM transactions WHERE authorisation = ? GROUP BY kind",
            (authorisation,),
        )
        return (*found, dict(done))

    def _write_part(
        self, kind: str, fields: Fields, card: str, amount: int, currency: str
    ) -> Fields:
        reference = fields["reference"]
        id_ = self._write(kind, fields["authorisation"], reference, card, amount, currency)
        return {"id": id_, "approved": True}

    def _write(
        self,
        kind: str,
        authorisation: str | None,
        reference: str,
        card: str,
        amount: int,
        currency: str,
        declined: str | None = None,
    ) -> str:
        row = self._file.execute(
            "INSERT INTO transactions"
            " (kind, authorisation, reference, card, amount, currency, declined)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (kind, authorisation, reference, card, amount, currency, declined),
        ).fetchone()
        id_: str = row[0]
        return id_


_HANDLERS: dict[str, Callable[[Book, Fields], Fields]] = {
    "authorisation": Book._authorise,
    "capture": Book._capture,
    "void": Book._void,
    "refund": Book._refund,
}
