"""Compressed bodies: what they say."""

from __future__ import annotations

import gzip
import zlib

import pytest

from oncekey._core.content_coding import decode

BODY = b'{"item": "tea"}'


@pytest.mark.parametrize(
    ("coded", "coding"),
    [
        (gzip.compress(BODY, mtime=1), "gzip"),
        (gzip.compress(BODY, mtime=2), " X-GZIP "),
        (zlib.compress(BODY), "deflate"),
        (BODY, "identity"),
        (BODY, ""),
    ],
)
def test_e20_a_body_says_the_same_however_it_is_coded(coded: bytes, coding: str) -> None:
    assert decode(coded, coding, len(BODY)) == BODY


@pytest.mark.parametrize(
    ("coded", "coding"),
    [
        (BODY, "br"),
        (BODY, "gzip"),
        (gzip.compress(BODY), "gzip, gzip"),
        (gzip.compress(BODY)[:-1], "gzip"),
        (gzip.compress(BODY) + b"more", "gzip"),
        (gzip.compress(BODY + b" "), "gzip"),
        (b"", "gzip"),
    ],
    ids=["unknown", "not coded", "twice", "cut short", "followed", "too long", "empty"],
)
def test_what_cannot_be_read_whole_is_not_read(coded: bytes, coding: str) -> None:
    assert decode(coded, coding, len(BODY)) is None


def test_a_small_body_that_becomes_huge_is_not_read() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert decode(bomb, "gzip", 1_000_000) is None
