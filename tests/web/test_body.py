"""Bodies and the spool: how they are held, limited, read again and given back."""

from __future__ import annotations

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey import Policy
from oncekey._core.policy import DEFAULTS
from oncekey.web._body import COUNTED_BYTES_MIN, MEMORY_BYTES_MAX, Body, room
from oncekey.web._spool import BLOCK_BYTES, Spool, read, spool

POLICY = Policy(bodies_bytes_max=64 * 1_048_576).over(DEFAULTS)


def body_of(*chunks: bytes, policy: Policy = POLICY) -> Body:
    """A body as an edge reads it."""
    body = Body()
    for index, chunk in enumerate(chunks):
        assert body.add(chunk, policy) is None
        whole = index == len(chunks) - 1
        if body.overflows_at(whole=whole):
            assert body.spill(whole=whole) is None
    return body


def content(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


SIZES = st.lists(
    st.sampled_from([0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, MEMORY_BYTES_MAX]),
    max_size=6,
)


@given(SIZES, st.booleans())
def test_a_body_is_what_was_added_however_it_came(sizes: list[int], away: bool) -> None:
    whole = content(sum(sizes))
    chunks, at = [], 0
    for size in sizes:
        chunks.append(whole[at : at + size])
        at += size
    body = body_of(*chunks)
    if away:
        body.put_away()
    assert body.is_spooled == (len(whole) > MEMORY_BYTES_MAX or away)
    assert body.size == len(whole)
    assert b"".join(body.chunks()) == body.content() == whole
    with body.open() as file:
        assert file.read() == whole
        assert file.seek(3) == 3
        assert file.read(5) == whole[3:8]
        assert file.read(-1) == whole[8:]
    body.close()
    assert (room.bytes_held, spool.bytes_used) == (0, 0)


def test_p11_bodies_are_counted_from_a_size_on_and_given_back_once() -> None:
    short, long = body_of(content(COUNTED_BYTES_MIN)), body_of(content(COUNTED_BYTES_MIN + 1))
    assert room.bytes_held == COUNTED_BYTES_MIN + 1
    for each in (short, long, long):
        each.close()
    assert room.bytes_held == 0


def test_one_that_nobody_has_any_more_is_given_back() -> None:
    assert body_of(content(2_000_000)).is_spooled
    assert (room.bytes_held, spool.bytes_used) == (0, 0)


def test_a_closed_body_is_not_read() -> None:
    body = body_of(content(2_000_000))
    body.close()
    for read_it in (body.content, body.open().read, lambda: list(body.chunks())):
        with pytest.raises(ValueError, match="closed"):
            read_it()


def test_p12_nobody_else_can_read_the_spool() -> None:
    body = body_of(content(2_000_000))
    file = spool._file
    assert file is not None
    told = os.fstat(file)
    assert (stat.S_IMODE(told.st_mode), told.st_nlink, told.st_uid) == (0o600, 0, os.getuid())
    assert not os.get_inheritable(file)
    body.close()
    assert os.fstat(file).st_size == 0


def test_blocks_are_used_again() -> None:
    mine = Spool()
    first, second = (mine.write(memoryview(content(size))) for size in (200_000, 70_000))
    mine.free(first)
    third = mine.write(memoryview(content(130_000)))
    assert set(third.blocks) < set(first.blocks)
    assert [read(second, at, BLOCK_BYTES) for at in (0, BLOCK_BYTES)] == [
        content(70_000)[:BLOCK_BYTES],
        content(70_000)[BLOCK_BYTES:],
    ]
    mine.free(second)
    mine.free(third)
    assert mine.bytes_used == 0


def test_a_forked_child_has_a_spool_of_its_own() -> None:
    body = body_of(content(2_000_000))
    child = os.fork()
    if child == 0:  # it must not raise into pytest
        told = 0
        if (room.bytes_held, spool.bytes_used) == (0, 0):
            other = body_of(content(2_000_000)[::-1])
            body.close()
            told = int(other.content() == content(2_000_000)[::-1] and room.bytes_held > 0)
        os._exit(0 if told else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert body.content() == content(2_000_000)
    assert room.bytes_held == 2_000_000
    body.close()
    assert (room.bytes_held, spool.bytes_used) == (0, 0)
