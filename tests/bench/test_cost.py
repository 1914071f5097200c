"""How an item of DynamoDB is weighed. Nothing is measured here."""

import pytest

from bench.cost_engines import _size_of, _weigh


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        ({"S": "é"}, 2),
        ({"B": b"12345"}, 5),
        ({"N": "0"}, 1),
        ({"N": "12345"}, 4),
        ({"BOOL": True}, 1),
        ({"L": [{"S": "ab"}, {"B": b"c"}]}, 3 + 3 + 2),
        ({"M": {"ab": {"S": "c"}}}, 3 + 1 + 2 + 1),
    ],
)
def test_amazons_rule(value: dict[str, object], weight: int) -> None:
    assert _size_of(value) == weight


def test_a_record_weighs_its_items_and_its_entry_in_the_index() -> None:
    record = {"id": {"B": b"i" * 32}, "part": {"B": b"r"}, "owner": {"B": b"o" * 8}}
    body = {"id": {"B": b"i" * 32}, "part": {"B": b"b"}, "body": {"B": b"x" * 3_000}}
    point = _weigh(3_000, [record, body], client_us=1.0)
    keys = 2 + 32 + 4 + 1
    entry = 100 + keys + 5 + 8
    assert point.index_bytes == entry
    assert point.stored_bytes == (keys + 13 + 100) + (keys + 3_004 + 100) + entry
    assert point.write_units == 2 + 1 + 3
