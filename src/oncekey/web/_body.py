"""Request bodies, from when they are read until the handler has them.

A body of up to `MEMORY_BYTES_MAX` stays in memory, a longer one is in the spool. The body of a
request that waits for another one to end moves to the spool too, so that many of them take no
memory. The policy limits how many bytes of bodies a process holds. Short ones are not counted: they
take no more than the rest of their requests.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator
from typing import Any

from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem
from oncekey.web._spool import BLOCK_BYTES, Spooled, read, spool

MEMORY_BYTES_MAX = 1_048_576
COUNTED_BYTES_MIN = 65_536
AWAY_BYTES_MIN = 4_096
"""A shorter body stays in memory while its request waits."""
RETRY_AFTER_S = 2.0
_CLOSED = "this body is closed"


class Room:
    """Counts how many bytes of bodies this process holds."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._mutex = threading.Lock()
        self.bytes_held = 0

    def take(self, size: int, bytes_max: int) -> bool:
        """Take room for this many bytes; False if there is none."""
        with self._mutex:
            if self.bytes_held + size > bytes_max:
                return False
            self.bytes_held += size
            return True

    def give_back(self, size: int) -> None:
        with self._mutex:
            self.bytes_held -= size


room = Room()


class Body:
    """One body: add to it until it is whole, then read it, then close it. It closes itself when it
    is garbage.
    """

    __slots__ = ("_counted", "_pid", "_pieces", "_spooled", "is_closed", "is_spooled", "size")

    def __init__(self, content: bytes = b"") -> None:
        self.size = len(content)
        self.is_closed = self.is_spooled = False
        self._pieces = [content]
        """In memory: all of it, or what follows the part in the spool."""
        self._spooled: Spooled | None = None
        self._counted = 0
        self._pid = 0

    # ------------------------------------------------------------------------------- writing

    def add(self, chunk: bytes, policy: Policy) -> Problem | None:
        """Add the next part; return why it is refused."""
        self.size += len(chunk)
        if self.size > policy.request_bytes_max:
            return too_large(policy.request_bytes_max)
        if self.size > COUNTED_BYTES_MIN:
            if not room.take(self.size - self._counted, policy.bodies_bytes_max):
                return _no_room(f"bodies_bytes_max={policy.bodies_bytes_max}")
            self._counted, self._pid = self.size, os.getpid()
        self._pieces.append(chunk)
        return None

    def overflows_at(self, *, whole: bool) -> bool:
        """Return whether to spool it now: too much is in memory, or it is `whole` and its beginning
        is spooled.
        """
        if self._spooled is None:
            return self.size > MEMORY_BYTES_MAX
        return whole or self.size - self._spooled.size > MEMORY_BYTES_MAX

    def spill(self, *, whole: bool = False) -> Problem | None:
        """Write to the spool what is in memory: all of it, or as much as fills blocks. Blocking."""
        content = b"".join(self._pieces)
        size = len(content) if whole else len(content) - len(content) % BLOCK_BYTES
        try:
            written = spool.write(memoryview(content)[:size])
        except OSError as error:
            return _no_room(f"its temporary file, in TMPDIR: {error.strerror}")
        if self._spooled is not None:
            before = self._spooled
            written = Spooled(before.file, before.blocks + written.blocks, before.size + size)
        self._spooled, self._pieces = written, [content[size:]]
        self.is_spooled = True
        return None

    def put_away(self) -> None:
        """Move it out of memory while its request waits. Blocking."""
        if self._spooled is None and not self.is_closed:
            self.spill(whole=True)  # where there is no room it stays where it is

    # ------------------------------------------------------------------------------- reading

    def content(self) -> bytes:
        """Return all of it. Blocking if it is spooled."""
        if self._spooled is not None:
            return b"".join(self.chunks())
        if self.is_closed:
            raise ValueError(_CLOSED)
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def chunks(self) -> Iterator[bytes]:
        """Yield all of it in parts. Blocking if it is spooled."""
        if self._spooled is None:
            yield self.content()
            return
        for at in range(0, self.size, BLOCK_BYTES):
            yield self.part(at)

    def part(self, at: int, size: int = BLOCK_BYTES) -> bytes:
        """Return up to `size` bytes from `at`; none at its end. Blocking if it is spooled."""
        if self.is_closed:
            raise ValueError(_CLOSED)
        if self._spooled is None:
            return self.content()[at : at + size]
        return read(self._spooled, at, size) if at < self.size else b""

    def open(self) -> io.BufferedIOBase:
        """Open it as a file."""
        if self._spooled is None:
            return io.BytesIO(self.content())
        return io.BufferedReader(_File(self), BLOCK_BYTES)

    def close(self) -> None:
        """Free its memory, room and spool."""
        if self.is_closed:
            return
        self.is_closed, self._pieces = True, [b""]
        if self._spooled is not None:
            spool.free(self._spooled)
        if self._counted and self._pid == os.getpid():
            room.give_back(self._counted)

    def __del__(self) -> None:
        if not self.is_closed:
            with contextlib.suppress(Exception):  # at the very end of the interpreter
                self.close()


class _File(io.RawIOBase):
    """A body that is spooled, as a file."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._body.size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, into: Any) -> int:
        part = self._body.part(self._at, len(into))
        into[: len(part)] = part
        self._at += len(part)
        return len(part)


def too_large(bytes_max: int) -> Problem:
    """Make the refusal of a body that is larger than this."""
    return Problem(
        Kind.TOO_LARGE,
        f"The request's body is larger than {bytes_max} bytes, the most that is taken with a key "
        "here (request_bytes_max).",
    )


def _no_room(limit: str) -> Problem:
    return Problem(
        Kind.NO_ROOM,
        f"This server holds as many bodies of requests as it may ({limit}), so the request was not "
        "run. Retry with the same key.",
        retryable=True,
        retry_after_s=RETRY_AFTER_S,
    )
