"""The statements of the PostgreSQL store, as text: for one verb and for many. Pure.

They are in `queries.sql`, with the reasons for their form. Parts that several of them share, and
how to read a record from a row, have a name in braces there and are defined here.
"""

from __future__ import annotations

import re
from importlib import resources

from oncekey.stores import sql

CLAIMED_MOST = {
    "fingerprint_version": 1,
    "lease_s": 30,
    "retention_s": 86400,
    "recovery": "rerun",
    "schema_version": 0,
}
_AT_THE_START = {
    **{name: repr(usual) for name, usual in CLAIMED_MOST.items()},
    **dict.fromkeys(("lapses", "replays", "conflicts"), "0"),
    "attempt": "1",
    "beat": "CASE c.state WHEN 'running' THEN 0 ELSE 1 END",
    "no_effect": "false",
}
"""What null stands for in the layout "inline": the values of most records, which take no space.
They belong to the table, whatever a policy's defaults become.
"""
_IS_UUID = (
    "({0} LIKE '________-____-____-____-____________' "
    "AND translate({0}, '0123456789abcdef', '') = '----')"
)
is_uuid = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
"""The same in Python: the server would need a tenth of an insert's time for it."""
AS_UUID = f"CASE WHEN {_IS_UUID} THEN {{0}}::uuid END"
"""Inline, a key of this form is a number, and so `key` is null: 21 bytes less."""
_LEFT_OUT_BEFORE = ("recovery", "schema_version")
"""Those that releases before migration 6 leave out, and so can read."""
CLAIMED = ", ".join(("key", "key_uuid", *CLAIMED_MOST))


def claimed_values(key: str, *others: str) -> str:
    """Return expressions for `CLAIMED`: what a claim brings, as it is stored. `zero` is null if
    inline, and `short` true if migration 6 knows that too. `key_uuid` is null if it does not, or if
    the key has another form.
    """
    kept = [f"CASE WHEN key_uuid IS NULL THEN {key} END", "key_uuid"]
    for name, each in zip(CLAIMED_MOST, others, strict=True):
        stored = "zero = 0" if name in _LEFT_OUT_BEFORE else "NOT short"
        kept.append(f"CASE WHEN {stored} OR {each} <> {_AT_THE_START[name]} THEN {each} END")
    return ", ".join(kept)


_LAYOUT = "coalesce((SELECT layout = '{}' FROM oncekey_schema WHERE number = {}), false)"
INLINE = _LAYOUT.format("inline", 4)
SHORTER = (
    "coalesce((SELECT bool_and(layout = 'inline') FROM oncekey_schema "
    "WHERE number IN (4, 6)), false)"
)
RECORD = ", ".join(
    {
        **{name: f"coalesce(c.{name}, {was})" for name, was in _AT_THE_START.items()},
        "key": "coalesce(c.key, c.key_uuid::text)",
        **{name: f"coalesce(c.{name}, r.{name})" for name in ("status", "headers", "body")},
        "age_s": "date_part('epoch', clock_timestamp() - c.created)",
        "lease_left_s": "coalesce(date_part('epoch', c.lease_until - clock_timestamp()), 0)",
        "expires_in_s": "date_part('epoch', c.expires - clock_timestamp())",
    }.get(column, f"c.{column}")
    for column in sql.COLUMNS
)
_PARTS = {
    "record": RECORD,
    "outline": RECORD.replace("coalesce(c.body, r.body)", "NULL::bytea"),
    "inline": INLINE,
    "shorter": SHORTER,
    "partitioned": _LAYOUT.format("partitioned", 4),
    "by_day": _LAYOUT.format("partitioned", 5),
    "claimed": CLAIMED,
    "asked_most": ", ".join(
        f"coalesce(a.{name}, {_AT_THE_START[name]}) AS {name}" for name in CLAIMED_MOST
    ),
    "given": claimed_values("key", *CLAIMED_MOST),
    "beat": f"coalesce(c.beat, {_AT_THE_START['beat']})",
    "lease_s": f"coalesce(c.lease_s, {_AT_THE_START['lease_s']})",
    "say": ", ".join(
        (
            *(f"{name} = coalesce(c.{name}, {was})" for name, was in _AT_THE_START.items()),
            "key = coalesce(c.key, c.key_uuid::text), key_uuid = NULL",
        )
    ),
    "unsay": ", ".join(
        (
            *(f"{name} = nullif(c.{name}, {was})" for name, was in _AT_THE_START.items()),
            f"key = CASE WHEN NOT {_IS_UUID.format('c.key')} THEN c.key END",
            f"key_uuid = coalesce({AS_UUID.format('c.key')}, c.key_uuid)",
        )
    ),
    "unsaid": " OR ".join(f"c.{name} IS NULL" for name in (*_AT_THE_START, "key")),
}
"""The meaning of the names in braces, all but `{skip}`."""


def _statements() -> dict[str, str]:
    """Return the statements by name, without comments: a pooler gets the whole text each time."""
    text = (resources.files("oncekey.stores.postgres") / "queries.sql").read_text("utf-8")
    text = re.sub(r"^--(?! name:).*\n", "", text, flags=re.MULTILINE)
    for name, meaning in _PARTS.items():
        text = text.replace(f"{{{name}}}", meaning)
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _for_one(text: str) -> str:
    """Take values instead of arrays: a fifth faster for a single verb."""
    text = text.replace("[]", "")
    text = re.sub(r"= ANY \((\$[^)]*)\)", r"= \1", text)
    return re.sub(r"unnest\(([^)]*)\) AS a", r"(SELECT \1) AS a", text)


STATEMENTS = _statements()
STATEMENTS["insert_requests"] = STATEMENTS["insert"].replace(
    "{requests}", STATEMENTS.pop("requests")
)
STATEMENTS["insert"] = STATEMENTS["insert"].replace("{requests}", "")
_TAKES_ROWS = [name for name, text in STATEMENTS.items() if "[]" in text]
BATCH = {name: STATEMENTS[name].replace("{skip}", "SKIP LOCKED") for name in _TAKES_ROWS}
ALONE = {name: _for_one(STATEMENTS[name].replace("{skip}", "")) for name in _TAKES_ROWS}
