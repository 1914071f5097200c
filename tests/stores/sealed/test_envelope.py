"""Envelopes: they open with their key, in their place and unchanged, and in no other way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.errors import CorruptRecord
from oncekey.stores.sealed.envelope import EnvelopeHead, new_key, open_envelope, read_head, seal

HEAD = EnvelopeHead(b"c", b"abcd")
KEY = new_key()


@given(content=st.binary(max_size=200), place=st.binary(max_size=40))
def test_whoever_has_the_key_opens_it_in_its_place(content: bytes, place: bytes) -> None:
    envelope = seal(KEY, HEAD, content, place)
    assert read_head(envelope) == HEAD
    assert open_envelope(KEY, envelope, place) == content
    assert seal(KEY, HEAD, content, place) != envelope  # equal contents look different


@given(content=st.binary(max_size=50), data=st.data())
def test_whatever_differs_does_not_open(content: bytes, data: st.DataObject) -> None:
    envelope = seal(KEY, HEAD, content, b"place")
    at = data.draw(st.integers(0, len(envelope) - 1))
    changed = bytearray(envelope)
    changed[at] ^= data.draw(st.integers(1, 255))
    for key, found, place in (
        (KEY, bytes(changed), b"place"),
        (KEY, envelope[:at], b"place"),
        (KEY, envelope + b"\x00", b"place"),
        (KEY, envelope, b"other"),
        (new_key(), envelope, b"place"),
    ):
        with pytest.raises(CorruptRecord):
            open_envelope(key, found, place)
