"""Records: what is derived from time, and the encoding of kept headers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncekey._core.record import TOMBSTONE, Record, State, decode_headers, encode_headers
from oncekey.errors import CorruptRecord

HEADERS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), max_size=20)


def record(state: State = State.RUNNING, **changes: object) -> Record:
    values: dict[str, object] = {
        "id": b"i" * 32,
        "token": b"t" * 16,
        "tenant": "acct_1",
        "operation": "POST /orders",
        "key": "order-17",
        "fingerprint": b"f" * 32,
        "fingerprint_version": 1,
        "lease_s": 30.0,
        "retention_s": 600.0,
        "recovery": "rerun",
        "schema_version": 0,
        "field_digests": {},
        "state": state,
        "fence": 1,
        "attempt": 1,
        "lapses": 0,
        "beat": 0,
        "no_effect": False,
        "answer": None,
        "resource_id": None,
        "age_s": 0.0,
        "lease_left_s": 30.0,
        "expires_in_s": 630.0,
    }
    return Record(**(values | changes))  # type: ignore[arg-type]


# ------------------------------------------------------------------- derived from time


@pytest.mark.parametrize(("left_s", "lapsed"), [(0.001, False), (0.0, True), (-5.0, True)])
def test_a_lease_is_over_when_nothing_is_left_of_it(left_s: float, lapsed: bool) -> None:
    assert record(lease_left_s=left_s).lapsed is lapsed


@pytest.mark.parametrize("state", [State.COMPLETED, State.RELEASED, State.UNKNOWN])
def test_only_what_runs_lapses_or_is_overlong(state: State) -> None:
    assert not record(state, lease_left_s=-1.0).lapsed
    assert not record(state, lease_left_s=9999.0).overlong


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(("left_s", "expired"), [(0.001, False), (0.0, True), (-5.0, True)])
def test_every_state_expires(state: State, left_s: float, expired: bool) -> None:
    assert record(state, expires_in_s=left_s).expired is expired


@pytest.mark.parametrize(("left_s", "overlong"), [(30.0, False), (30.02, False), (30.04, True)])
def test_p8_a_deadline_further_away_than_one_lease_is_overlong(
    left_s: float, overlong: bool
) -> None:
    """With room for the rounding of clocks."""
    assert record(lease_left_s=left_s).overlong is overlong


def test_states_have_the_names_that_stores_keep() -> None:
    assert [str(state) for state in State] == ["running", "completed", "released", "unknown"]


# ------------------------------------------------------------------------------ headers


@given(HEADERS)
@example([])
@example([(b"", b"")])
@example([(b"x", bytes(range(256)))])
@example([(b"link", b"1"), (b"x", b""), (b"link", b"2"), (b"link", b"1")])
def test_headers_come_back_as_they_were(lines: list[tuple[bytes, bytes]]) -> None:
    headers = tuple(lines)
    assert decode_headers(encode_headers(headers)) == headers


@given(HEADERS, HEADERS)
def test_different_headers_are_encoded_differently(
    one: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]]
) -> None:
    same = encode_headers(tuple(one)) == encode_headers(tuple(other))
    assert same == (one == other)


@given(HEADERS, st.data())
def test_headers_cut_short_are_corrupt_or_fewer_lines(
    lines: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    """At the end of a line a cut cannot be told; anywhere else it is."""
    whole = encode_headers(tuple(lines))
    cut = data.draw(st.integers(0, len(whole) - 1))
    ends = {len(encode_headers(tuple(lines[:kept]))) for kept in range(len(lines) + 1)}
    if cut in ends:
        assert decode_headers(whole[:cut]) == tuple(lines)[: len(decode_headers(whole[:cut]))]
    else:
        with pytest.raises(CorruptRecord):
            decode_headers(whole[:cut])


@given(st.binary(max_size=400))
def test_garbage_is_corrupt_and_nothing_worse(garbage: bytes) -> None:
    for data in (garbage, b"\x01" + garbage, b"\x02" + garbage):
        try:
            headers = decode_headers(data)
        except CorruptRecord:
            continue
        assert encode_headers(headers) == data


def test_a_length_beyond_the_end_is_not_followed() -> None:
    with pytest.raises(CorruptRecord, match="within a line, at byte 7"):
        decode_headers(b"\x01" + b"\xff\xff" + b"\xff\xff\xff\xff" + b"x")


def test_a_length_that_is_cut_off_is_named() -> None:
    with pytest.raises(CorruptRecord, match="within a length, at byte 1"):
        decode_headers(b"\x01\x00\x01")


@pytest.mark.parametrize(("data", "shown"), [(b"", "none"), (b"\x03", "03"), (b"\x00\x01", "00")])
def test_a_version_that_is_not_known_is_refused_with_advice(data: bytes, shown: str) -> None:
    with pytest.raises(CorruptRecord, match=f"version {shown}.*finish its deployment"):
        decode_headers(data)


def test_the_encoding_does_not_change_by_accident() -> None:
    """Records outlive releases: these bytes stand in somebody's database."""
    encoded = encode_headers(((b"a", b"bc"), (b"", b"")))
    assert encoded == b"\x01" + b"\x00\x01\x00\x00\x00\x02abc" + b"\x00\x00\x00\x00\x00\x00"


def test_headers_with_a_tombstone_have_a_version_that_older_releases_refuse() -> None:
    """They would send its line as a header."""
    lines = ((TOMBSTONE, b"60.0"), (b"etag", b"7"))
    assert (encode_headers(lines)[0], encode_headers(lines[1:])[0]) == (2, 1)
    assert decode_headers(encode_headers(lines)) == lines
