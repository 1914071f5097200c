"""What the SQL stores share: the order of columns, rows as records, and numbered migrations.

Migrations
    `<engine>/NNNN_name.sql`, applied in order, each in one transaction, and recorded in the table
    `oncekey_schema`. A migration may only add what older code ignores, or remove what no supported
    release uses, so that old and new code run side by side during a deployment. Its first line says
    which releases can still use it: `-- oldest reader: N`, the lowest schema number that code must
    know.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from oncekey._core.record import Answer, Record, State, decode_headers
from oncekey.errors import CorruptRecord, Misuse
from oncekey.stores.checks import refuse_unsafe, schema

COLUMNS = (
    *("id", "token", "tenant", "operation", "key", "fingerprint", "fingerprint_version"),
    *("lease_s", "retention_s", "recovery", "schema_version", "field_digests", "state", "fence"),
    *("attempt", "lapses", "beat", "no_effect", "status", "headers", "body", "resource_id"),
    *("age_s", "lease_left_s", "expires_in_s", "replays", "conflicts"),
)
"""The columns in the order of a store's SELECT: that of a record's fields, with three columns for
the answer.
"""

STATES: dict[str, State] = {state.value: state for state in State}


def record(row: Sequence[Any]) -> Record:
    """Convert a row, in the order of `COLUMNS`, to a record. `status` is null if and only if no
    answer is stored.
    """
    digests, state, no_effect = row[11], row[12], row[17]
    status, headers, body = row[18:21]
    try:
        answer = None if status is None else Answer(status, decode_headers(headers), body)
        fields = (
            *(*row[:11], decode_digests(digests), STATES[state]),
            *(*row[13:17], bool(no_effect), answer),
            *row[21:],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(
            f"the record {bytes(row[0]).hex()} cannot be read ({error!r}): something other than "
            "oncekey wrote to its row"
        ) from error
    return Record(*fields)


def encode_digests(digests: Mapping[str, str]) -> str | None:
    """Encode field digests as text; none, the common case, are null."""
    return json.dumps(dict(digests), separators=(",", ":")) if digests else None


def decode_digests(text: str | None) -> Mapping[str, str]:
    """Decode the text of `encode_digests`."""
    digests: dict[str, str] = json.loads(text) if text else {}
    return digests


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    oldest_reader: int
    sql: str


_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_OLDEST_READER = re.compile(r"-- oldest reader: (\d+)\n")


def migrations(engine: str) -> list[Migration]:
    """Return all migrations of an engine, in order."""
    found = []
    for entry in resources.files(f"oncekey.stores.{engine}").iterdir():
        named = _FILE.fullmatch(entry.name)
        if named is None:
            continue
        sql = entry.read_text(encoding="utf-8")
        reader = _OLDEST_READER.match(sql)
        if reader is None:
            raise ValueError(f"{entry.name}: the first line must be '-- oldest reader: N'")
        found.append(Migration(int(named[1]), named[2], int(reader[1]), sql))
    return sorted(found, key=lambda migration: migration.number)


def check_waits(**waits_s: float) -> None:
    """Raise `Misuse` for a wait that is not positive and finite, with the name of its option."""
    for name, seconds in waits_s.items():
        if not 0 < seconds < math.inf:
            raise Misuse(f"{name}={seconds} is no time to wait: give seconds, more than 0")


def check_schema(engine: str, applied: int | None, oldest_reader: int | None, url: str) -> None:
    """Raise `StoreUnfit` for a schema that this code cannot use; `url` has no password."""
    newest = migrations(engine)[-1].number
    refuse_unsafe([schema(applied, oldest_reader, newest, url)], url, ())
