"""WSGI servers of every make, each of which hands requests over in a way of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.simple_server import make_server as make_plain_server

from tests.acceptance.client import Client
from tests.acceptance.serve import STOP_S_MAX, serving_wsgi

ROOT = Path(__file__).parents[2]


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@contextmanager
def _in_a_thread(serve: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(STOP_S_MAX)
        assert not thread.is_alive(), "the server did not end in time"


@contextmanager
def _wsgiref(app: Any) -> Iterator[Client]:
    server = make_plain_server("127.0.0.1", 0, app, handler_class=_Silent)
    with server, _in_a_thread(lambda: server.serve_forever(0.02), server.shutdown):
        yield Client(server.server_port)


@contextmanager
def _waitress(app: Any) -> Iterator[Client]:
    import waitress

    server: Any = waitress.create_server(app, host="127.0.0.1", port=0, threads=2)
    told = threading.Event()

    def serve() -> None:
        while not told.is_set():
            server.asyncore.loop(timeout=0.05, map=server._map, count=1)
        server.task_dispatcher.shutdown()
        for channel in list(server._map.values()):
            channel.close()
        server.close()

    with _in_a_thread(serve, told.set):
        yield Client(server.effective_port)


@contextmanager
def _cheroot(app: Any) -> Iterator[Client]:
    from cheroot.wsgi import Server

    server = Server(("127.0.0.1", 0), app, numthreads=2)
    server.prepare()
    with _in_a_thread(server.serve, server.stop):
        yield Client(server.bind_addr[1])


@contextmanager
def _gevent(app: Any) -> Iterator[Client]:
    """In a thread it has a loop of its own, and nothing is patched."""
    from gevent.pywsgi import WSGIServer

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, loop, made = listener.getsockname()[1], [], threading.Event()
        listener.setblocking(False)

        def serve() -> None:
            import gevent

            server, told = WSGIServer(_with_gevent(listener), app, log=None), gevent.event.Event()
            server.start()
            loop.extend([gevent.get_hub().loop.async_(), told])
            loop[0].start(told.set)
            made.set()
            told.wait()
            server.stop()
            loop[0].close()

        with _in_a_thread(serve, lambda: made.wait(STOP_S_MAX) and loop[0].send()):
            yield Client(port)


def _with_gevent(listener: socket.socket) -> Any:
    from gevent.socket import socket as cooperative

    return cooperative(fileno=listener.dup().detach())


SERVERS: dict[str, Callable[[Any], AbstractContextManager[Client]]] = {
    "werkzeug": serving_wsgi,
    "wsgiref": _wsgiref,
    "waitress": _waitress,
    "cheroot": _cheroot,
    "gevent": _gevent,
}


@contextmanager
def serving_by_gunicorn(factory: str) -> Iterator[Client]:
    """What a call such as "module:build('flask')" makes, in a process of gunicorn's. It is given
    its socket: whoever connects early waits.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "gunicorn", "--bind", f"fd://{listener.fileno()}"]
        process = subprocess.Popen(
            [*command, "--workers", "1", "--no-control-socket", factory],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Client(listener.getsockname()[1])
        finally:
            process.terminate()
            process.wait(STOP_S_MAX)
