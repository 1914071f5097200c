"""Records as plain data, for comparing what two releases read. It imports neither of them."""

from __future__ import annotations

from typing import Any

FIELDS = (
    *("id", "token", "tenant", "operation", "key", "fingerprint", "fingerprint_version"),
    *("lease_s", "retention_s", "recovery", "schema_version", "field_digests", "state", "fence"),
    *("attempt", "lapses", "beat", "no_effect", "answer", "resource_id", "replays", "conflicts"),
)
"""What the first release kept of a record, without what changes by itself."""


def plain_record(record: Any) -> dict[str, Any] | None:
    """What JSON can hold of a record, and whether its time is up."""
    if record is None:
        return None
    fields = {name: _plain(getattr(record, name)) for name in FIELDS}
    answer = record.answer
    if answer is not None:
        lines = [[_plain(name), _plain(text)] for name, text in answer.headers]
        fields["answer"] = [answer.status, lines, _plain(answer.body)]
    return fields | {"lapsed": record.lapsed, "expired": record.expired}


def plain_steps(steps: Any) -> list[list[Any]]:
    return [[step.name, _plain(step.digest), _plain(step.result)] for step in steps]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if hasattr(value, "items"):
        return dict(value)
    return str(value) if isinstance(value, str) else value
