"""The notice, as it is read. How it is heeded: `tests/engine/test_notices.py`."""

from __future__ import annotations

import hashlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.key import record_id
from oncekey._core.notice import (
    FORGETS_ALL,
    NOTICE_ID,
    Amnesia,
    decode_amnesia,
    encode_amnesia,
    read_notice,
)
from oncekey.errors import CorruptRecord

TIMES = st.floats(0, 4e9)


@given(until=TIMES, skew_s=st.floats(0, 86_400))
def test_what_is_written_is_read(until: float, skew_s: float) -> None:
    guard = Amnesia(until, skew_s)
    assert decode_amnesia(encode_amnesia(guard)) == guard
    assert decode_amnesia(encode_amnesia(None)) is None


@pytest.mark.parametrize(
    "body", [None, b"", b"{}", b"[]", b'{"version":2}', b'{"version":1,"guard":{"until":"x"}}']
)
def test_what_cannot_be_read_is_not_taken_for_no_guard(body: bytes | None) -> None:
    with pytest.raises(CorruptRecord):
        decode_amnesia(body)


@given(until=TIMES, skew_s=st.floats(0, 3600), made=TIMES, now=TIMES)
def test_only_what_is_surely_newer_than_the_loss_is_not_covered(
    until: float, skew_s: float, made: float, now: float
) -> None:
    guard = Amnesia(until, skew_s)
    assert guard.covers(None, now)
    assert guard.covers(made, now) == (made <= until + skew_s or made > now + skew_s)
    assert FORGETS_ALL.covers(made, now)
    assert math.isinf(FORGETS_ALL.until)


def test_nothing_there_is_nothing_to_heed() -> None:
    assert read_notice(None) is None


@given(tenant=st.text(max_size=20), operation=st.none() | st.text(max_size=20), key=st.text())
def test_no_request_has_its_id(tenant: str, operation: str | None, key: str) -> None:
    assert record_id(tenant, operation, key) != NOTICE_ID


def test_the_notice_stays_where_it_is() -> None:
    """Another release has put it there: looked for elsewhere, it would bar nothing."""
    assert hashlib.sha256(b"oncekey/notice/1").digest() == NOTICE_ID
