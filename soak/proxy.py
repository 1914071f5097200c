"""The way to the store, which loses what is said on it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Self

_CHUNK_BYTES = 65_536
_RESET = struct.pack("ii", 1, 0)  # linger on, for no time: closing sends a reset


Line = tuple[asyncio.StreamWriter, asyncio.StreamWriter]
"""To whoever asks, and to the store."""


class Proxy:
    """Carries bytes from a port of its own to the store's, both on the loopback address."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._lines: dict[asyncio.Task[None] | None, Line] = {}
        self.flowing = asyncio.Event()
        """While it is cleared nothing is carried; nothing is lost by that."""
        self.replies_lost = 0
        """How many of the next replies are swallowed: the store has done what it was asked."""
        self.questions_lost = 0
        """How many of the next questions do not arrive."""

    async def start(self) -> Self:
        self.flowing.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def reset(self) -> None:
        """Cut every connection, wherever its bytes are."""
        for line in self._lines.values():
            _cut(line)

    async def close(self) -> None:
        self._server.close()
        self.flowing.set()
        self.reset()
        await asyncio.gather(*(task for task in self._lines if task is not None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:  # the server is down, and says so
            _reset(writer)
            return
        line = (writer, far_writer)
        self._lines[asyncio.current_task()] = line
        carried = {
            asyncio.create_task(self._carry(reader, far_writer, self._loses_question)),
            asyncio.create_task(self._carry(far_reader, writer, self._loses_reply)),
        }
        await asyncio.wait(carried, return_when=asyncio.FIRST_COMPLETED)
        _cut(line)  # which ends the other direction, too
        await asyncio.wait(carried)
        del self._lines[asyncio.current_task()]

    async def _carry(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        loses: Callable[[], bool],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                await self.flowing.wait()
                if loses():
                    return  # and its connection is lost with it
                target.write(data)
                await target.drain()

    def _loses_reply(self) -> bool:
        lost, self.replies_lost = self.replies_lost > 0, max(self.replies_lost - 1, 0)
        return lost

    def _loses_question(self) -> bool:
        lost, self.questions_lost = self.questions_lost > 0, max(self.questions_lost - 1, 0)
        return lost


def _cut(line: Line) -> None:
    for writer in line:
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
