"""What callers do with requests, sessions and adapters besides sending them: they copy them, change
them, give them keys by hooks, and have retries of their own.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import io
import logging
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
import requests
import urllib3

from oncekey._system.clock import FakeClock
from oncekey.client import AsyncClient, Client, Retries, forward, outcome_of, retrying
from oncekey.client._sender import RequestSender
from oncekey.client._transport import RetryingTransport
from oncekey.errors import Misuse
from tests.client.scripted_server import ScriptedServer, scripted_server

QUICK = Retries(backoff_s=0.001, backoff_s_max=0.002)
HTTPX = pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as served:
        yield served


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        opened.mount("http://", retrying(requests.adapters.HTTPAdapter(), retries=QUICK))
        yield opened


def _prepared(session: requests.Session, url: str, **body: Any) -> requests.PreparedRequest:
    return session.prepare_request(requests.Request("POST", url, **body))


# --------------------------------------------------------------------------- one key, one request


@HTTPX
def test_a_stream_that_is_used_up_is_not_sent_as_an_empty_body(
    library: Any, server: ScriptedServer
) -> None:
    """Under the key of what it was: elsewhere, behind a redirect, an empty order would be taken."""
    server.script = [(308, {"Location": "/moved"}), 201]
    transport = retrying(library.HTTPTransport(), retries=QUICK)
    with library.Client(transport=transport, follow_redirects=True) as client:
        request = client.build_request("POST", f"{server.url}/orders", content=iter([b"tea"]))
        for _ in range(2):
            with pytest.raises(library.StreamConsumed):
                client.send(request)

    assert len(server.seen) == 1


def test_with_requests_an_iterator_that_is_used_up_is_not_sent_as_an_empty_body(
    server: ScriptedServer, session: requests.Session
) -> None:
    server.script = [(308, {"Location": "/moved"}), 201]
    request = _prepared(session, f"{server.url}/orders", data=iter([b"tea"]))
    for _ in range(2):
        with pytest.raises(requests.exceptions.UnrewindableBodyError, match="used up"):
            session.send(request)

    assert len(server.seen) == 1


def test_with_requests_a_body_that_can_be_read_again_follows_a_redirect(
    server: ScriptedServer, session: requests.Session
) -> None:
    class Parts:
        def __iter__(self) -> Iterator[bytes]:
            yield from (b"tea", b"pot")

    server.script = [(308, {"Location": "/moved"}), 201]
    session.post(f"{server.url}/orders", data=Parts())

    assert [seen.body for seen in server.seen] == [b"teapot", b"teapot"]
    assert len(set(server.keys)) == 1


def test_copies_of_a_template_are_requests_of_their_own(
    server: ScriptedServer, session: requests.Session
) -> None:
    """A copy shares its hooks with what it was copied from, and our mark is among them."""
    template = _prepared(session, f"{server.url}/orders")
    for number in range(3):
        each = template.copy()
        each.prepare_body(data=None, files=None, json={"number": number})
        session.send(each)

    assert len(set(server.keys)) == 3


def test_what_is_changed_after_it_was_sent_is_warned_of(
    server: ScriptedServer, session: requests.Session, caplog: pytest.LogCaptureFixture
) -> None:
    request = _prepared(session, f"{server.url}/orders", json={"amount": 1})
    for _ in range(2):
        session.send(request)
    assert not caplog.records

    request.prepare_body(data=None, files=None, json={"amount": 2})
    session.send(request)

    assert len(set(server.keys)) == 1
    assert "sent before with another request" in caplog.text


@HTTPX
def test_what_is_sent_elsewhere_after_it_was_sent_is_warned_of(
    library: Any, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with library.Client(transport=retrying(library.HTTPTransport())) as client:
        request = client.build_request("POST", f"{server.url}/orders")
        for _ in range(2):
            client.send(request)
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
        request.url = library.URL(f"{server.url}/others")
        client.send(request)

    assert "sent before with another request" in caplog.text


@HTTPX
def test_a_request_that_is_sent_to_another_origin_is_another(
    library: Any, server: ScriptedServer
) -> None:
    with (
        scripted_server() as other,
        library.Client(transport=retrying(library.HTTPTransport())) as client,
    ):
        request = client.build_request("POST", f"{server.url}/orders")
        client.send(request)
        request.url = library.URL(f"{other.url}/orders")
        client.send(request)
        assert len({None, *server.keys, *other.keys}) == 3


@HTTPX
def test_a_request_that_is_given_another_key_has_that_one(
    library: Any, server: ScriptedServer
) -> None:
    with library.Client(transport=retrying(library.HTTPTransport())) as client:
        request = client.build_request("POST", f"{server.url}/orders")
        told = [outcome_of(client.send(request))]
        request.headers["Idempotency-Key"] = "order-17"
        told.append(outcome_of(client.send(request)))

    assert server.keys[1] == "order-17"
    assert [each.key for each in told if each] == server.keys


@HTTPX
def test_a_hook_that_gives_each_request_a_key_does_not_change_it_over_a_redirect(
    library: Any, server: ScriptedServer
) -> None:
    server.script = [(307, {"location": "/moved"})]
    names = iter("abc")

    def give(request: Any) -> None:
        request.headers["Idempotency-Key"] = f"key-{next(names)}"

    hooks = {"request": [give]}
    with library.Client(
        transport=retrying(library.HTTPTransport()), event_hooks=hooks, follow_redirects=True
    ) as client:
        told = outcome_of(client.post(f"{server.url}/orders"))

    assert server.keys == ["key-a", "key-a"]
    assert told is not None
    assert told.key == "key-a"


@HTTPX
def test_two_keys_in_two_lines_are_refused(library: Any, server: ScriptedServer) -> None:
    lines = [("Idempotency-Key", "a"), ("idempotency-key", "b")]
    with (
        library.Client(transport=retrying(library.HTTPTransport())) as client,
        pytest.raises(Misuse, match="exactly one key"),
    ):
        client.post(f"{server.url}/orders", headers=lines)

    assert not server.seen


# --------------------------------------------------------------------------------- bodies, answers


def test_a_file_is_sent_again_by_whoever_follows_a_redirect(
    server: ScriptedServer, session: requests.Session
) -> None:
    server.script = ["drop", (307, {"location": "/moved"}), "drop"]
    file = io.BytesIO(b"not this: contents")
    file.seek(len(b"not this: "))

    assert session.post(f"{server.url}/files", data=file).status_code == 201

    assert [seen.body for seen in server.seen] == [b"contents"] * 4
    assert len(set(server.keys)) == 1


class Pipe:
    """A stream of a known length that nobody can go back in."""

    def __init__(self, contents: bytes) -> None:
        self._left = io.BytesIO(contents)
        self.len = len(contents)

    def read(self, size: int = -1) -> bytes:
        return self._left.read(size)


@pytest.mark.parametrize("body", [b"tea", io.BytesIO(b"tea")], ids=["bytes", "file"])
def test_who_answers_a_challenge_sends_the_same_request_once_more(
    body: Any, server: ScriptedServer, session: requests.Session
) -> None:
    """Digest sends a copy of an answer's request, where that answer came from: so it is the
    caller's request, and goes through us.
    """
    challenge = {"WWW-Authenticate": 'Digest realm="shop", nonce="n", qop="auth"'}
    server.script = [(401, challenge), 503, 201]
    digest = requests.auth.HTTPDigestAuth("ann", "secret")
    answer = session.post(f"{server.url}/orders", data=body, auth=digest)

    told = outcome_of(answer)
    assert told is not None
    assert (answer.status_code, told.attempts) == (201, 2)
    assert [seen.body for seen in server.seen] == [b"tea"] * 3
    assert set(server.keys) == {told.key}
    assert ["authorization" in seen.headers for seen in server.seen] == [False, True, True]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_bytes_of_whatever_kind_are_sent_again(
    kind: Any, server: ScriptedServer, session: requests.Session
) -> None:
    """To requests they are streams."""
    server.script = ["drop"]
    session.post(f"{server.url}/orders", data=kind(b"tea"))

    assert [seen.body for seen in server.seen] == [b"tea", b"tea"]


def test_what_cannot_be_read_twice_is_kept(
    server: ScriptedServer, session: requests.Session
) -> None:
    server.script = ["drop"]
    request = _prepared(session, f"{server.url}/files", data=Pipe(b"contents"))
    for _ in range(2):
        session.send(request)

    assert [seen.body for seen in server.seen] == [b"contents"] * 3


def test_an_answer_that_cannot_be_decoded_is_asked_for_again(
    server: ScriptedServer, session: requests.Session
) -> None:
    server.script = [(201, {"content-encoding": "gzip"}, b"not at all")]

    assert session.post(f"{server.url}/orders").json() == {"n": 1}

    assert len(set(server.keys)) == 1


@HTTPX
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_with_httpx_an_answer_that_cannot_be_decoded_is_asked_for_again(
    library: Any, colour: str, server: ScriptedServer
) -> None:
    coded = {"content-encoding": "gzip"}
    server.script = [(201, coded, b"not at all"), (201, coded, gzip.compress(b'{"n": 2}'))]

    async def post() -> Any:
        transport = retrying(library.AsyncHTTPTransport(), retries=QUICK)
        async with library.AsyncClient(transport=transport) as client:
            return await client.post(f"{server.url}/orders")

    if colour == "async":
        answer = asyncio.run(post())
    else:
        with library.Client(transport=retrying(library.HTTPTransport(), retries=QUICK)) as client:
            answer = client.post(f"{server.url}/orders")

    assert answer.json() == {"n": 2}
    assert len(server.seen) == 2
    assert len(set(server.keys)) == 1


@HTTPX
@pytest.mark.slow
@pytest.mark.parametrize("status", [201, 400])
def test_what_is_large_once_it_is_decoded_is_not_all_held_at_once(
    library: Any, status: int
) -> None:
    """Whoever reads it as a stream has not asked for all of it."""
    raw, large = gzip.compress(bytes(32 * 1024 * 1024)), 16 * 1024 * 1024
    stream = library.ByteStream(raw)

    def answer(request: Any) -> Any:
        return library.Response(status, headers={"content-encoding": "gzip"}, stream=stream)

    transport = retrying(library.MockTransport(answer))
    with library.Client(transport=transport) as client:
        tracemalloc.start()
        try:
            with client.stream("POST", "https://api.test/orders") as response:
                held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert response.status_code == status
    assert held < large


@HTTPX
def test_who_wakes_up_too_late_gets_the_answer_that_there_is(
    library: Any, server: ScriptedServer
) -> None:
    server.script = [503]
    clock = FakeClock()
    transport: Any = RetryingTransport(
        library.HTTPTransport(), RequestSender(clock=clock), sleep=lambda _: clock.advance(3600.0)
    )
    with library.Client(transport=transport) as client:
        answer = client.post(f"{server.url}/orders")

    assert (answer.status_code, answer.json()) == (503, {"n": 1})
    told = outcome_of(answer)
    assert told is not None
    assert told.gave_up == "the time for all attempts is over"


@HTTPX
def test_who_is_cancelled_in_a_pause_gives_the_connection_back(
    library: Any, server: ScriptedServer
) -> None:
    """An answer too large to be kept is not read to its end, and still open then."""
    server.script = [(503, {}, b"x" * 300_000)]

    async def main() -> int:
        paused = asyncio.Event()

        async def pause(_: float) -> None:
            paused.set()
            await asyncio.Event().wait()

        inner = library.AsyncHTTPTransport(limits=library.Limits(max_connections=1))
        sender = RequestSender(answer_bytes_max=1000)
        transport: Any = RetryingTransport(inner, sender, async_sleep=pause)
        async with library.AsyncClient(transport=transport, timeout=30.0) as client:
            sending = asyncio.create_task(client.post(f"{server.url}/orders"))
            await paused.wait()
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled()
            return int((await client.post(f"{server.url}/orders")).status_code)

    assert asyncio.run(main()) == 201


def test_an_interim_answer_is_none(server: ScriptedServer, session: requests.Session) -> None:
    """The library takes it for the answer, and would take the answer for the next request's."""

    def hint(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 201 Created\r\n\r\n")

    server.script = [hint]

    assert session.post(f"{server.url}/orders").status_code == 201
    assert len(server.seen) == 2
    assert len(set(server.keys)) == 1


def test_a_session_s_adapter_can_be_copied(
    server: ScriptedServer, session: requests.Session
) -> None:
    with requests.Session() as other:
        other.mount("http://", copy.copy(session.get_adapter(server.url)))
        other.post(f"{server.url}/orders")

    assert None not in server.keys


# ----------------------------------------------------------------------------- retries of their own


def test_an_adapter_of_somebody_s_own_is_called_as_a_session_calls_it(
    server: ScriptedServer,
) -> None:
    """By names: many take nothing else behind the request."""

    class Own(requests.adapters.HTTPAdapter):
        def send(self, request: Any, **given: Any) -> Any:  # type: ignore[override]
            calls.append(sorted(given))
            return super().send(request, **given)

    calls: list[list[str]] = []
    adapter: Any = retrying(Own(), retries=QUICK)
    with requests.Session() as session:
        session.mount("http://", adapter)
        session.post(f"{server.url}/orders")
        session.get(f"{server.url}/orders")
    adapter.send(_prepared(session, f"{server.url}/orders"), False, 5.0, True, None, {})

    assert calls == [["cert", "proxies", "stream", "timeout", "verify"]] * 3


@pytest.mark.parametrize("own", [3, urllib3.Retry(total=None, connect=2)], ids=["number", "rules"])
def test_an_adapter_that_retries_by_itself_is_refused(own: Any) -> None:
    with pytest.raises(Misuse, match="leave max_retries out"):
        retrying(requests.adapters.HTTPAdapter(max_retries=own))


@HTTPX
@pytest.mark.parametrize("within", [lambda it: it, forward.through], ids=["bare", "with-keys"])
def test_what_retries_already_is_refused(library: Any, within: Any) -> None:
    once = within(retrying(library.HTTPTransport()))
    for wrap in (
        retrying,
        lambda it: Client(transport=it),
        lambda it: AsyncClient(transport=it),
        lambda it: Client(mounts={"https://": it}),
    ):
        with pytest.raises(Misuse, match=r"retrying\(…\)"):
            wrap(once)


@pytest.mark.parametrize("kind", [httpx2.HTTPTransport, requests.adapters.HTTPAdapter])
@pytest.mark.parametrize("wrap", [retrying, forward.through])
def test_a_class_in_place_of_a_transport_is_refused(wrap: Any, kind: type) -> None:
    with pytest.raises(Misuse, match=rf"is a class; make one, {kind.__name__}\(\)"):
        wrap(kind)
