"""A TCP connection that can be cut, in a thread: for sync and async callers alike."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self


class Wire:
    """Passes everything on to a port of this machine, until told otherwise."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._mode = "pass"
        self.cuts = 0
        """How often it did break a connection because it was told to."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def cut_at_next_reply(self) -> None:
        """When the server has answered, break the connection instead of passing the answer on."""
        self._mode = "cut"

    def cut_at_next_question(self) -> None:
        """Break the connection instead of passing the next question on."""
        self._mode = "cut question"

    def hold_replies(self) -> None:
        """Let questions through, but no answers."""
        self._mode = "hold"

    def hold_questions(self) -> None:
        """Let nothing through to the server; to its clients it seems to think."""
        self._mode = "hold question"

    def pass_all(self) -> None:
        """As in the beginning. What was held is lost."""
        self._mode = "pass"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(timeout=0.05):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    else:
                        self._pass(selector, *key.data)
            for key in list(selector.get_map().values()):
                if key.fileobj is not self._listener:
                    key.data[0].close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # nobody is there: the caller is to notice
            near.close()
            return
        selector.register(near, selectors.EVENT_READ, (near, far, False))
        selector.register(far, selectors.EVENT_READ, (far, near, True))

    def _pass(
        self,
        selector: selectors.BaseSelector,
        source: socket.socket,
        sink: socket.socket,
        reply: bool,
    ) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(65536)
        if data and self._mode == ("hold" if reply else "hold question"):
            return
        if data and self._mode != ("cut" if reply else "cut question"):
            with contextlib.suppress(OSError):
                sink.sendall(data)
            return
        if data:
            self._mode = "pass"
            self.cuts += 1
        for end in (source, sink):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(end)
            end.close()
