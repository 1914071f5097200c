"""A proxy in front of the store that loses requests and replies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Self

_CHUNK_BYTES = 65_536
_RESET = struct.pack("ii", 1, 0)  # linger on, for no time: closing sends a reset


ConnectionPair = tuple[asyncio.StreamWriter, asyncio.StreamWriter]
"""The connections to the client and to the store."""


class Proxy:
    """Forwards bytes from its own port to the store's, both on loopback."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._connections: dict[asyncio.Task[None] | None, ConnectionPair] = {}
        self.flowing = asyncio.Event()
        """While it is cleared nothing is forwarded, but nothing is lost."""
        self.replies_lost = 0
        """How many of the next replies to drop, after the store has executed the request."""
        self.requests_lost = 0
        """How many of the next requests to drop."""

    async def start(self) -> Self:
        self.flowing.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def reset(self) -> None:
        """Reset every connection, whatever is in transit."""
        for line in self._connections.values():
            _cut(line)

    async def close(self) -> None:
        self._server.close()
        self.flowing.set()
        self.reset()
        await asyncio.gather(*(task for task in self._connections if task is not None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:  # the server is down: refuse, too
            _reset(writer)
            return
        line = (writer, far_writer)
        self._connections[asyncio.current_task()] = line
        carried = {
            asyncio.create_task(self._carry(reader, far_writer, self._loses_request)),
            asyncio.create_task(self._carry(far_reader, writer, self._loses_reply)),
        }
        await asyncio.wait(carried, return_when=asyncio.FIRST_COMPLETED)
        _cut(line)  # which also ends the other direction
        await asyncio.wait(carried)
        del self._connections[asyncio.current_task()]

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
                    return  # and close the connection with it
                target.write(data)
                await target.drain()

    def _loses_reply(self) -> bool:
        lost, self.replies_lost = self.replies_lost > 0, max(self.replies_lost - 1, 0)
        return lost

    def _loses_request(self) -> bool:
        lost, self.requests_lost = self.requests_lost > 0, max(self.requests_lost - 1, 0)
        return lost


def _cut(line: ConnectionPair) -> None:
    for writer in line:
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
