"""Blocking attempts cannot be cancelled, so their timeouts together must fit the budget."""

from __future__ import annotations

import importlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import pytest
import requests
import urllib3

from oncekey._system.clock import FakeClock
from oncekey.client import Retries, retrying

BUDGET_S = 90.0
LEFT_S = 0.05
WAIT_S_MAX = 25.0
ONCE = Retries(budget_s=BUDGET_S, attempts_max=1)
LARGE = b"x" * (16 * 1024 * 1024)
"""More than lies between two sockets: it is sent only as far as somebody reads."""


class Slow:
    """Takes its time to take a request, and never answers."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/orders"
        self.was_left = threading.Event()

    def run(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            connection.settimeout(WAIT_S_MAX)
            read = 0
            while read < len(LARGE) // 8:  # the body is on its way, and not all of it
                read += len(connection.recv(65_536))
            self._clock.advance(BUDGET_S - LEFT_S)
            while connection.recv(1 << 20):
                """Until it hangs up."""
            self.was_left.set()

    def close(self) -> None:
        self._socket.close()


@contextmanager
def slow(clock: FakeClock) -> Iterator[Slow]:
    server = Slow(clock)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    thread.join()
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["httpx", "httpx2", "requests"])
def test_what_sending_took_is_not_there_for_waiting(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, module = FakeClock(), importlib.import_module(library)
    options: Any = {"retries": ONCE, "clock": clock}
    monkeypatch.setattr("urllib3.util.timeout.time", SimpleNamespace(monotonic=clock.monotonic))
    with slow(clock) as server:
        if library == "requests":
            client, body = module.Session(), "data"
            client.mount("http://", retrying(module.adapters.HTTPAdapter(), **options))
        else:
            client, body = (
                module.Client(transport=retrying(module.HTTPTransport(), **options)),
                "content",
            )
        with client, pytest.raises(module.ReadTimeout):
            client.post(server.url, timeout=2 * WAIT_S_MAX, **{body: LARGE})

    assert server.was_left.is_set(), "it was waited for longer than there was time"


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
@pytest.mark.parametrize("timeout", [None, 30.0, 1000.0])
def test_the_phases_of_an_attempt_share_its_time(library: Any, timeout: float | None) -> None:
    clock = FakeClock()
    started = clock.monotonic()

    def slowly(request: Any) -> Any:
        """Every phase takes as long as it may."""
        for phase in ("pool", "connect", "write", "read"):
            clock.advance(request.extensions["timeout"].get(phase))
        raise library.ReadTimeout("too slow")

    transport = retrying(library.MockTransport(slowly), clock=clock, retries=ONCE)
    with (
        library.Client(transport=transport, timeout=timeout) as client,
        pytest.raises(library.ReadTimeout),
    ):
        client.post("https://api.test/orders")

    assert clock.monotonic() - started <= BUDGET_S + 0.01


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_timeouts_that_fit_are_left_as_they_are(library: Any) -> None:
    seen = []

    def answer(request: Any) -> Any:
        seen.append(request.extensions["timeout"])
        return library.Response(201)

    transport = retrying(library.MockTransport(answer), retries=ONCE)
    with library.Client(transport=transport, timeout=5.0) as client:
        client.post("https://api.test/orders")

    assert seen == [dict.fromkeys(("connect", "read", "write", "pool"), 5.0)]


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
@pytest.mark.parametrize("given", [{"connect": 1.0}, {"read": None}], ids=str)
def test_a_phase_of_which_nothing_is_said_is_limited_too(library: Any, given: Any) -> None:
    seen = {}

    def answer(request: Any) -> Any:
        seen.update(request.extensions["timeout"])  # a copy, as some transports make it
        return library.Response(201)

    transport = retrying(library.MockTransport(answer), retries=ONCE, clock=FakeClock())
    with library.Client(transport=transport) as client:
        client.post("https://api.test/orders", extensions={"timeout": given})

    limits = dict.fromkeys(("connect", "read", "write", "pool"), BUDGET_S)
    assert seen == limits | {name: s for name, s in given.items() if s is not None}


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain"])
@pytest.mark.parametrize("timeout", [None, 1000.0])
def test_who_reads_an_answer_that_is_handed_over_has_its_own_time(
    library: Any, kind: str, timeout: float | None
) -> None:
    """Some transports (HTTP/2) ask for the limit at every read: also long after the delivery."""
    clock, seen = FakeClock(), []

    class Parts(library.SyncByteStream):  # type: ignore[misc]
        def __init__(self, limits: Any) -> None:
            self._limits = limits

        def __iter__(self) -> Iterator[bytes]:
            for _ in range(3):
                yield b"data: 12345678\n\n"
                clock.advance(BUDGET_S)
                seen.append(self._limits.get("read"))

    def answer(request: Any) -> Any:
        parts = Parts(request.extensions["timeout"])
        return library.Response(200, headers={"content-type": kind}, stream=parts)

    inner = library.MockTransport(answer)
    transport = retrying(inner, retries=ONCE, clock=clock, answer_bytes_max=4)
    with library.Client(transport=transport, timeout=timeout) as client:
        client.post("https://api.test/orders")

    assert seen == [timeout] * 3


class Noted(requests.adapters.HTTPAdapter):
    """Sends nothing; knows what it was given to do so."""

    limits: Any = None

    def send(
        self, request: Any, stream: Any = False, timeout: Any = None, *_: Any, **__: Any
    ) -> Any:
        self.limits = timeout
        raise requests.ConnectionError("nobody is there")


@pytest.mark.parametrize(
    ("timeout", "connect_s", "total_s"),
    [
        (None, BUDGET_S, BUDGET_S),
        (5, 5, BUDGET_S),
        ((3.0, None), 3.0, BUDGET_S),
        (1000.0, BUDGET_S, BUDGET_S),
        (urllib3.Timeout(connect=2), 2, BUDGET_S),
        (urllib3.Timeout(total=7), 7, 7),
        (urllib3.Timeout(total=1000), BUDGET_S, BUDGET_S),
    ],
    ids=str,
)
def test_with_requests_all_of_it_has_one_limit(
    timeout: Any, connect_s: float, total_s: float
) -> None:
    adapter = Noted()
    with requests.Session() as session:
        session.mount("https://", retrying(adapter, retries=ONCE, clock=FakeClock()))
        with pytest.raises(requests.ConnectionError):
            session.post("https://api.test/orders", timeout=timeout)

    assert (adapter.limits.connect_timeout, adapter.limits.total) == (connect_s, total_s)
    if isinstance(timeout, urllib3.Timeout):
        assert adapter.limits is not timeout, "the caller's own is not changed"


class Pausing:
    """Answers with one part, and with the other when it is told to."""

    def __init__(self, closes: bool) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._closes = closes
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/orders"
        self.go_on = threading.Event()

    def run(self) -> None:
        line = b"connection: close" if self._closes else b"content-length: 8"
        with self._socket, self._socket.accept()[0] as connection:
            asked = b""
            while not asked.endswith(b"{}"):
                asked += connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\npart")
            self.go_on.wait(WAIT_S_MAX)
            connection.sendall(b"rest")


@pytest.mark.slow
@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("timeout", [None, (5.0, WAIT_S_MAX), urllib3.Timeout(connect=5)], ids=str)
def test_with_requests_who_reads_a_stream_has_its_own_time(timeout: Any, closes: bool) -> None:
    server, budget_s = Pausing(closes), 0.3
    thread = threading.Thread(target=server.run)
    thread.start()
    with requests.Session() as session:
        only = Retries(budget_s=budget_s, attempts_max=1)
        session.mount("http://", retrying(requests.adapters.HTTPAdapter(), retries=only))
        with session.post(server.url, data=b"{}", stream=True, timeout=timeout) as answer:
            threading.Timer(2 * budget_s, server.go_on.set).start()
            assert answer.content == b"partrest"
    thread.join()
