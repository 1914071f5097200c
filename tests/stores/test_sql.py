"""What the SQL stores share: rows as records."""

from typing import Any

import pytest

from oncekey._core.record import Answer, State, encode_headers
from oncekey.errors import CorruptRecord
from oncekey.stores.sql import COLUMNS, record

ROW: dict[str, Any] = {
    **dict.fromkeys(COLUMNS, 0),
    "id": bytes(32),
    "token": bytes(16),
    "tenant": "acme",
    "operation": "POST /orders",
    "key": "k1",
    "fingerprint": bytes(32),
    "fingerprint_version": 1,
    "recovery": "rerun",
    "field_digests": '{"amount":"a1"}',
    "state": "completed",
    "resource_id": None,
    "status": 201,
    "headers": encode_headers(((b"etag", b"1"),)),
    "body": b"{}",
}


def test_a_row_is_a_record() -> None:
    read = record(list(ROW.values()))
    assert (read.state, read.field_digests) == (State.COMPLETED, {"amount": "a1"})
    assert read.answer == Answer(201, ((b"etag", b"1"),), b"{}")


@pytest.mark.parametrize(
    "change",
    [{"state": "bogus"}, {"state": None}, {"field_digests": "x"}, {"headers": None}],
    ids=["state", "no state", "digests", "no headers"],
)
def test_a_row_that_something_else_wrote_is_told_as_such(change: dict[str, Any]) -> None:
    """As of every store: its request is refused, and nothing else is."""
    with pytest.raises(CorruptRecord, match=f"record {bytes(32).hex()} cannot be read"):
        record(list((ROW | change).values()))
