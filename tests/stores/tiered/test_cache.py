"""Cache entries: they decode to what was encoded, for the right id, epoch and time alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.record import Answer, Record, State
from oncekey.stores.tiered.cache import EPOCH_BYTES, MARGIN_S, decode_entry, encode_entry, ttl_s
from oncekey.testing.contract.subject import timeless

SECRET, EPOCH, NOW = b"s" * 32, b"e" * EPOCH_BYTES, 1_700_000_000.0
ANSWER = Answer(201, ((b"content-type", b"text/plain"),), b"created")
_FIELDS: tuple[Any, ...] = (
    *(b"i" * 32, b"t" * 16, "acct_1", "POST /orders", "order-17", b"f" * 32, 1, 30.0, 600.0),
    *("rerun", 0, {}, State.COMPLETED, 7, 1, 0, 1, False, ANSWER, "order_1", 2.0, 0.0, 600.0),
)
RECORD = Record(*_FIELDS)

_texts = st.text(st.characters(exclude_categories=()), max_size=20)
_counts = st.integers(0, 2**62)
_answers = st.builds(
    Answer,
    st.integers(100, 999),
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=3).map(tuple),
    st.none() | st.binary(max_size=50),
)
_records = st.builds(
    replace,
    st.just(RECORD),
    token=st.binary(max_size=20),
    tenant=_texts,
    operation=_texts,
    key=_texts.filter(bool),
    fingerprint=st.binary(max_size=40),
    field_digests=st.dictionaries(_texts, _texts, max_size=2),
    fence=_counts,
    beat=_counts,
    replays=_counts,
    answer=_answers,
    resource_id=st.none() | _texts,
    retention_s=st.floats(1, 1e9),
)


@given(_records, st.floats(0, 500))
def test_what_goes_in_comes_out_and_has_aged(record: Record, passed_s: float) -> None:
    assert record.answer is not None
    entry = encode_entry(SECRET, record, record.answer, EPOCH, NOW)
    found = decode_entry(SECRET, record.id, EPOCH, entry, NOW + passed_s)
    assert found is not None
    assert found.expires_in_s == pytest.approx(record.expires_in_s - passed_s, abs=0.001)
    assert found.age_s == pytest.approx(record.age_s + passed_s, abs=0.001)
    assert timeless(found) == timeless(record)


@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(1, 255))
def test_whatever_is_changed_is_not_believed(junk: bytes, at: int, change: int) -> None:
    entry = encode_entry(SECRET, RECORD, ANSWER, EPOCH, NOW)
    at %= len(entry)
    forged = entry[:at] + bytes([entry[at] ^ change]) + entry[at + 1 :]
    for wrong in (junk, forged, entry + junk + b"x", entry[:at]):
        assert decode_entry(SECRET, RECORD.id, EPOCH, wrong, NOW) is None


def test_an_entry_counts_for_its_own_id_epoch_and_secret_alone() -> None:
    entry = encode_entry(SECRET, RECORD, ANSWER, EPOCH, NOW)
    assert decode_entry(SECRET, b"j" * 32, EPOCH, entry, NOW) is None
    assert decode_entry(SECRET, RECORD.id, b"d" * EPOCH_BYTES, entry, NOW) is None
    assert decode_entry(b"other" * 8, RECORD.id, EPOCH, entry, NOW) is None


def test_bytes_do_not_slide_between_epoch_and_id() -> None:
    entry = encode_entry(SECRET, RECORD, ANSWER, EPOCH, NOW)
    assert decode_entry(SECRET, RECORD.id[1:], EPOCH + RECORD.id[:1], entry, NOW) is None
    assert decode_entry(SECRET, EPOCH[-1:] + RECORD.id, EPOCH[:-1], entry, NOW) is None


def test_an_entry_ends_before_its_record() -> None:
    entry = encode_entry(SECRET, RECORD, ANSWER, EPOCH, NOW)
    last = NOW + RECORD.expires_in_s - MARGIN_S
    assert decode_entry(SECRET, RECORD.id, EPOCH, entry, last - 0.1) is not None
    assert decode_entry(SECRET, RECORD.id, EPOCH, entry, last) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"state": State.RUNNING},
        {"answer": None},
        {"key": ""},
        {"expires_in_s": MARGIN_S},
        {"expires_in_s": -1.0},
    ],
)
def test_what_is_not_done_or_was_blanked_or_is_about_to_end_has_none(
    changes: dict[str, object],
) -> None:
    assert ttl_s(replace(RECORD, **changes)) <= 0  # type: ignore[arg-type]
