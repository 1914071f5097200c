"""What was never sent is not reported as unknown, and what may have been sent always is."""

from __future__ import annotations

import importlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from oncekey._core.key import short_hash
from oncekey.client import Client, Journal, Retries, outcome_of
from tests.client.libraries import LIBRARIES, library, sender, server
from tests.client.scripted_server import ScriptedServer

__all__ = ["library", "server"]

TWICE = Retries(attempts_max=2, backoff_s=0.001)
NOT_SENT = "oncekey: not sent: in 2 attempts no connection was made"
UNKNOWN = "nobody knows whether it was carried out"


@contextmanager
def listening() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        yield listener, listener.getsockname()[1]


@contextmanager
def served(serve: Callable[[socket.socket], None], times: int = 9) -> Iterator[int]:
    """A server that takes this many connections, and then nobody's."""
    with listening() as (listener, port):

        def run() -> None:
            for _ in range(times):
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                with line:
                    serve(line)
            listener.close()

        thread = threading.Thread(target=run)
        thread.start()
        yield port
        listener.close()
        with socket.socket() as last:  # whoever waits in accept is woken up
            last.connect_ex(("127.0.0.1", port))
        thread.join(10)


def said(line: socket.socket, text: bytes) -> None:
    line.recv(65_536)
    line.sendall(text)


def heard(line: socket.socket) -> None:
    line.recv(65_536)


@contextmanager
def nobody() -> Iterator[str]:
    with listening() as (_, port):
        pass
    yield f"http://127.0.0.1:{port}/orders"


@contextmanager
def no_such_name() -> Iterator[str]:
    yield "http://nobody.invalid/orders"


@contextmanager
def no_tls() -> Iterator[str]:
    with served(lambda line: said(line, b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        yield f"https://127.0.0.1:{port}/orders"


@contextmanager
def hung_up_on_tls() -> Iterator[str]:
    with served(lambda line: None) as port:
        yield f"https://127.0.0.1:{port}/orders"


@contextmanager
def full() -> Iterator[str]:
    """A server whose queue is full: nobody's connection is taken."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            line = stack.enter_context(socket.socket())
            line.setblocking(False)
            line.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/orders"


def failed(library: str, url: str, options: dict[str, Any] | None = None, **more: Any) -> Any:
    """How it ended for whoever sent it."""
    more = {"timeout": 0.3, "json": {"sku": "mug"}, **more}
    with (
        sender(library, **{"retries": TWICE, **(options or {})}) as send,
        pytest.raises(Exception, match=r".") as raised,
    ):
        send("POST", url, **more)
    return raised.value


def note_of(error: Any) -> str:
    (note,) = error.__notes__
    return str(note)


@pytest.mark.parametrize("there", [nobody, no_such_name, no_tls, hung_up_on_tls, full])
def test_where_no_connection_is_made_nothing_was_sent(library: str, there: Any) -> None:
    with there() as url:
        error = failed(library, url)

    assert note_of(error).startswith(NOT_SENT)
    assert "so it was not carried out" in note_of(error)
    assert UNKNOWN not in note_of(error)
    told = outcome_of(error)
    assert told is not None
    assert (told.sent, told.attempts, told.gave_up) == (False, 2, "2 attempts were made")


REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_proxy_that_refuses_passes_nothing_on(library: str) -> None:
    with served(lambda line: said(line, REFUSED)) as port:
        error = failed_by_proxy(library, f"http://127.0.0.1:{port}")

    assert note_of(error).startswith(NOT_SENT)


def failed_by_proxy(library: str, proxy: str) -> Any:
    url = "https://shop.test/orders"
    if library == "requests":
        return failed(library, url, proxies={"https": proxy})
    module = importlib.import_module(library.removeprefix("async "))
    kind = module.AsyncHTTPTransport if library.startswith("async") else module.HTTPTransport
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, kind.__name__, lambda: kind(proxy=proxy))
        return failed(library, url)


def test_once_an_attempt_may_have_been_sent_it_is_unknown(library: str) -> None:
    """The second finds nobody there any more."""
    with served(heard, times=1) as port:
        error = failed(library, f"http://127.0.0.1:{port}/orders")

    assert "sent 2 times" not in note_of(error)
    assert UNKNOWN in note_of(error)
    told = outcome_of(error)
    assert told is not None
    assert (told.sent, told.attempts) == (True, 2)


def test_what_failed_before_is_not_taken_for_the_cause(
    library: str, server: ScriptedServer
) -> None:
    """Its caller handles a refused connection by asking another server, and that hangs up."""
    server.script = ["drop"] * 2
    try:
        with nobody() as url, sender(library, retries=TWICE) as send:
            send("POST", url)
    except Exception:
        error = failed(library, f"{server.url}/orders")

    assert UNKNOWN in note_of(error)


@pytest.mark.parametrize("library", ["async httpx", "async httpx2"])
def test_time_that_ends_while_a_connection_is_made_ends_before_anything_is_sent(
    library: str,
) -> None:
    with full() as url:
        once = {"retries": Retries(attempts_max=1, budget_s=0.3)}
        error = failed(library, url, once, timeout=None)

    assert note_of(error).startswith("oncekey: not sent: in 1 attempt no connection was made")


def test_an_answer_says_that_it_was_sent(library: str, server: ScriptedServer) -> None:
    with sender(library) as send:
        told = outcome_of(send("POST", f"{server.url}/orders"))

    assert told is not None
    assert told.sent


def test_a_key_that_was_given_may_have_been_sent_before(library: str) -> None:
    """Here nothing was sent. What somebody sent earlier under this key, nobody here knows."""
    with nobody() as url:
        error = failed(library, url, headers={"Idempotency-Key": "of-yesterday"})

    assert note_of(error).startswith("oncekey: not sent this time: in 2 attempts no connection")
    assert "so it was not carried out" not in note_of(error)
    assert f"with the same key (key={short_hash('of-yesterday')};" in note_of(error)


def test_what_has_no_key_was_not_sent_under_one_before() -> None:
    """It has no place for a key, so it is sent once."""
    import httpx2

    from oncekey.client import retrying

    with (
        nobody() as url,
        httpx2.Client(transport=retrying(httpx2.HTTPTransport(), profile="aws")) as client,
        pytest.raises(httpx2.ConnectError) as raised,
    ):
        client.post(url, content=b"no JSON")

    said = note_of(raised.value)
    assert said.startswith("oncekey: not sent: in 1 attempt no connection was made")
    assert said.endswith("To retry, send it again.")


def test_a_request_that_was_sent_before_is_unknown(tmp_path: Any) -> None:
    """Its caller sends it again, and nobody is there: the first may have been carried out."""
    import httpx2

    from oncekey.client import retrying

    with served(heard, times=1) as port:
        transport = retrying(httpx2.HTTPTransport(), retries=Retries(attempts_max=1))
        with httpx2.Client(transport=transport) as client:
            request = client.build_request("POST", f"http://127.0.0.1:{port}/orders")
            with pytest.raises(httpx2.TransportError):
                client.send(request)
            with pytest.raises(httpx2.ConnectError) as raised:
                client.send(request)

    assert note_of(raised.value).startswith("oncekey: not sent this time")


def test_an_intent_of_a_journal_may_have_been_sent_before(tmp_path: Any) -> None:
    with (
        nobody() as url,
        Journal(tmp_path / "intents.db") as journal,
        Client(journal=journal, retries=TWICE) as api,
        pytest.raises(Exception, match=r".") as raised,
    ):
        api.post(url, intent="order-1")

    assert note_of(raised.value).startswith("oncekey: not sent this time")


# ------------------------------------------------------------------------ the key, and who sees it


def key_of(request: Any) -> str:
    return str(request.headers["idempotency-key"])


@pytest.mark.parametrize("script", [[], ["drop", 503], [402], [(303, {"Location": "/there"}), 200]])
def test_the_key_is_on_the_request_that_one_can_inspect(
    library: str, server: ScriptedServer, script: list[Any]
) -> None:
    server.script = script
    with sender(library) as send:
        answer = send("POST", f"{server.url}/orders")

    first = (answer.history or [answer])[0].request
    assert key_of(first) == server.keys[0]
    told = outcome_of((answer.history or [answer])[0])
    assert told is not None
    assert told.key == key_of(first)
    if answer.history:  # a read carries none, and says so
        assert "idempotency-key" not in answer.request.headers
        assert server.keys[-1] is None


def test_the_key_is_on_the_request_of_an_error(library: str, server: ScriptedServer) -> None:
    server.script = ["drop"] * 2
    error = failed(library, f"{server.url}/orders")

    assert key_of(error.request) == server.keys[0]
    told = outcome_of(error)
    assert told is not None
    assert told.key == server.keys[0]


def test_the_key_is_on_the_request_as_it_was_sent(library: str, server: ScriptedServer) -> None:
    """The draft's quotes included; and where it is in the body, there is no header."""
    with sender(library, profile="ietf") as send:
        answer = send("POST", f"{server.url}/orders")
    assert key_of(answer.request) == server.seen[0].headers["idempotency-key"]
    assert key_of(answer.request).startswith('"')

    with sender(library, profile="square") as send:
        answer = send("POST", f"{server.url}/orders", json={"sku": "mug"})
    assert "idempotency-key" not in answer.request.headers


@pytest.mark.parametrize(
    "location", ["//elsewhere.test/", "http://elsewhere.test/", "/\\elsewhere.test", "e"]
)
def test_where_a_redirect_may_lead_elsewhere_the_key_is_taken_back(
    library: str, server: ScriptedServer, location: str
) -> None:
    """Whoever follows it copies these headers, and may do so past our transport."""
    server.script = [(307, {"Location": location})]
    how = {("allow_redirects" if library == "requests" else "follow_redirects"): False}
    with sender(library) as send:
        answer = send("POST", f"{server.url}/orders", **how)

    assert "idempotency-key" not in answer.request.headers
    told = outcome_of(answer)
    assert told is not None
    assert told.key == server.keys[0]


def test_a_redirect_within_its_origin_leaves_the_key_where_it_is(
    library: str, server: ScriptedServer
) -> None:
    server.script = [(307, {"Location": f"{server.url}/there"}), (308, {"Location": "/here"}), 201]
    with sender(library) as send:
        answer = send("POST", f"{server.url}/orders")

    assert len(set(server.keys)) == 1
    assert [key_of(each.request) for each in (*answer.history, answer)] == server.keys


def test_a_request_that_was_sent_gets_another_key_at_another_origin(server: ScriptedServer) -> None:
    """That it stands in its headers now does not make it the caller's own."""
    import requests

    from oncekey.client import retrying

    with requests.Session() as session:
        session.mount("http://", retrying(requests.adapters.HTTPAdapter(), retries=TWICE))
        request = session.prepare_request(requests.Request("POST", f"{server.url}/orders"))
        session.send(request)
        request.url = f"{server.url}/orders".replace("127.0.0.1", "localhost")
        session.send(request)

    assert len(set(server.keys)) == 2


UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7")


def everything_said(error: BaseException | None) -> str:
    """As a logger prints it, and as an error tracker collects it."""
    said = []
    while error is not None:
        said += [str(error), repr(error), repr(error.args), *getattr(error, "__notes__", [])]
        error = error.__cause__ or error.__context__
    return "\n".join(said)


@pytest.mark.parametrize("profile", ["oncekey", "stripe", "gcp", "square"])
def test_p12_no_error_shows_a_key(library: str, profile: str, server: ScriptedServer) -> None:
    """In gcp's the key is in the query, and requests' errors show that."""
    with nobody() as url:
        unsent = failed(library, url, {"profile": profile})
    server.script = ["drop"] * 2
    unknown = failed(library, f"{server.url}/orders", {"profile": profile})

    for error in (unsent, unknown):
        assert not UUID.search(everything_said(error))
        told = outcome_of(error)
        assert told is not None
        assert told.key is not None
        assert UUID.match(told.key)
        assert f"key={short_hash(told.key)}" in note_of(error)
        assert not UUID.search(repr(told))
        assert short_hash(told.key) in repr(told)


@pytest.mark.parametrize("profile", ["oncekey", "gcp"])
def test_p12_a_status_that_is_raised_shows_no_key(
    library: str, profile: str, server: ScriptedServer
) -> None:
    """All libraries show the address, and requests the one that was asked."""
    server.script = [402]
    with sender(library, profile=profile) as send:
        answer = send("POST", f"{server.url}/orders", json={"sku": "mug"})
    with pytest.raises(Exception, match=r"402 .*/orders") as raised:
        answer.raise_for_status()

    assert not UUID.search(everything_said(raised.value))
    told = outcome_of(answer)
    assert told is not None
    assert told.key is not None


def test_p12_what_a_server_says_of_a_key_is_not_passed_on(
    library: str, server: ScriptedServer
) -> None:
    """Stripe's message names it."""
    said = {"error": {"type": "idempotency_error", "message": "Try a key other than 'k-4711'."}}
    server.script = [(400, {}, said)]
    headers = {"Idempotency-Key": "k-4711"}
    error = failed(library, f"{server.url}/orders", {"profile": "stripe"}, headers=headers)

    assert "k-4711" not in everything_said(error)
    assert f"'{short_hash('k-4711')}'" in str(error)
    told = outcome_of(error)
    assert told is not None
    assert (told.key, told.sent) == ("k-4711", True)


def test_p12_what_is_kept_beside_a_request_shows_no_key(
    library: str, server: ScriptedServer
) -> None:
    with sender(library) as send:
        answer = send("POST", f"{server.url}/orders")

    beside = getattr(answer.request, "extensions", None) or answer.request.hooks
    assert not UUID.search(repr(beside))
    assert short_hash(key_of(answer.request)) in repr(beside)


def test_p12_an_intent_shows_no_key(tmp_path: Any) -> None:
    with Journal(tmp_path / "intents.db") as journal:
        intent = journal.begin("order-1")

    assert intent.key not in repr(intent)
    assert f"key={short_hash(intent.key)}" in repr(intent)
