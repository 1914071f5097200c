"""A TCP connection that can be cut, in a thread: for sync and async callers alike."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Self


class Wire:
    """Passes everything on to a port of this machine, until told otherwise.

    Or to several ports, each by one of its own: what it is told then counts for all of them.
    """

    def __init__(self, *targets: int) -> None:
        self._listeners = {socket.create_server(("127.0.0.1", 0)): target for target in targets}
        self.ports: list[int] = [each.getsockname()[1] for each in self._listeners]
        self._mode = "pass"
        self._skipped = 0
        self.cuts = 0
        """How often it did break a connection because it was told to."""
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)

    @property
    def port(self) -> int:
        return self.ports[0]

    def cut_at_next_reply(self, *, skipped: int = 0) -> None:
        """When the server has answered, break the connection instead of passing the answer on. So
        many answers, or parts of one, get through before.
        """
        self._skipped = skipped
        self._mode = "cut"

    def cut_at_next_question(self, *, skipped: int = 0) -> None:
        """Break the connection instead of passing the next question on."""
        self._skipped = skipped
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

    def __exit__(self, *_: object) -> None:
        self._end.close()
        self._thread.join()
        for listener in (*self._listeners, self._ended):
            listener.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for listener in (*self._listeners, self._ended):
                selector.register(listener, selectors.EVENT_READ)
            while self._turn(selector):
                pass
            for key in list(selector.get_map().values()):
                if key.data is not None:
                    key.data[0].close()

    def _turn(self, selector: selectors.BaseSelector) -> bool:
        """Pass on what has come; False at the end."""
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            if key.fileobj is self._ended:
                return False
            if key.data is None:
                self._accept(selector, key.fileobj)
            else:
                self._pass(selector, *key.data)
        return True

    def _accept(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._listeners[listener]))
        except OSError:  # nobody is there: the caller is to notice
            near.close()
            return
        for end in (near, far):
            # Else what follows the first part of a message waits 40 ms for that to be acknowledged.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        if data and not self._cuts(reply):
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

    def _cuts(self, reply: bool) -> bool:
        """Whether it is time to."""
        if self._mode != ("cut" if reply else "cut question"):
            return False
        self._skipped -= 1
        return self._skipped < 0
