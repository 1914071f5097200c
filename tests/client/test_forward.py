"""Forwarded keys, as a real server on the loopback interface receives them from real clients."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import oncekey
from oncekey._engine.steps import child_key
from oncekey.client import Retries, forward, retrying
from oncekey.errors import Misuse
from tests.client.scripted_server import scripted_server
from tests.engine.test_steps import World

HTTPX = ("httpx", "httpx2")
Send = Callable[..., None]


class Downstream:
    """A service that notes the method, path and key of every request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str | None]] = []
        noted = self.seen

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                path = self.path.partition("?")[0]
                key = self.headers.get("idempotency-key") or self.headers.get("x-request-id")
                noted.append((self.command, path, key))
                self.send_response(307 if path == "/moved" else 204)
                self.send_header("location", "/charges")
                self.end_headers()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *args: object) -> None:
                """Nothing on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def keys(self) -> list[str | None]:
        return [key for _, _, key in self.seen]


@pytest.fixture
def downstream() -> Iterator[Downstream]:
    downstream = Downstream()
    thread = threading.Thread(target=downstream.server.serve_forever, args=(0.01,))
    thread.start()
    yield downstream
    downstream.server.shutdown()
    downstream.server.server_close()
    thread.join()


@contextlib.contextmanager
def sender(library: str, **settings: Any) -> Iterator[Send]:
    """A blocking client of this library."""
    module = importlib.import_module(library)
    if library == "requests":
        with module.Session() as session:
            session.mount("http://", forward.through(module.adapters.HTTPAdapter(), **settings))
            yield lambda method, url, **more: session.request(method, url, **more).close()
    else:
        inner = module.HTTPTransport()
        transport = forward.through(inner, **settings)
        with module.Client(transport=transport, follow_redirects=True) as client:
            yield lambda method, url, **more: client.request(method, url, **more).close()


@pytest.fixture(params=[*HTTPX, "requests"])
def send(request: pytest.FixtureRequest) -> Iterator[Send]:
    with sender(request.param) as send:
        yield send


@pytest.fixture
def attempt() -> oncekey.Attempt:
    return World().attempt()


# ------------------------------------------------------------------------------ one call


def test_e47_a_step_sends_its_child_key(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    attempt.step_sync("charge", send, "POST", f"{downstream.url}/charges")
    assert downstream.seen == [("POST", "/charges", attempt.child_key("charge"))]


def test_e47_a_later_attempt_sends_the_same_key(send: Send, downstream: Downstream) -> None:
    """The first died after its call and before the step was kept."""
    world = World()

    def dies() -> None:
        send("POST", f"{downstream.url}/charges")
        send("POST", f"{downstream.url}/mails")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.attempt().step_sync("charge", dies)
    with pytest.raises(KeyboardInterrupt):
        world.attempt().step_sync("charge", dies)
    assert downstream.keys[:2] == downstream.keys[2:]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET"])
def test_only_what_changes_something_gets_a_key(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt, method: str
) -> None:
    attempt.step_sync("s", send, method, f"{downstream.url}/")
    assert downstream.keys == [None if method == "GET" else attempt.child_key("s")]


def test_a_key_of_ones_own_stays(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    headers = {"idempotency-key": "mine"}
    attempt.step_sync("s", lambda: send("POST", f"{downstream.url}/", headers=headers))
    assert downstream.keys == ["mine"]


def test_outside_a_step_nothing_is_changed(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    attempt.step_sync("s", lambda: None)
    send("POST", f"{downstream.url}/")
    assert downstream.keys == [None]


@pytest.mark.parametrize("library", [*HTTPX, "requests"])
def test_the_header_may_have_another_name(
    library: str, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    with sender(library, header="X-Request-Id") as send:
        attempt.step_sync("s", send, "POST", f"{downstream.url}/")
    assert downstream.keys == [attempt.child_key("s")]


@pytest.mark.parametrize("library", HTTPX)
async def test_async_clients_send_it_too(
    library: str, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    module = importlib.import_module(library)
    transport = forward.through(module.AsyncHTTPTransport())
    async with module.AsyncClient(transport=transport) as client:

        async def charge() -> int:
            answer = await client.post(f"{downstream.url}/charges")
            return int(answer.status_code)

        assert await attempt.step("charge", charge) == 204
        await client.post(f"{downstream.url}/charges")
    assert downstream.keys == [attempt.child_key("charge"), None]


# ------------------------------------------------------------------------- several calls


def test_another_address_gets_another_key_by_its_order(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    def calls() -> None:
        for method, path in (("POST", "/a"), ("POST", "/b"), ("DELETE", "/a"), ("POST", "/a?x=1")):
            send(method, downstream.url + path)

    attempt.step_sync("s", calls)
    keys = [child_key(attempt.held.id, "s", number) for number in (1, 2, 3, 1)]
    assert downstream.keys == keys
    assert len(set(keys)) == 3


def test_a_retry_within_a_step_has_the_same_key_though_its_words_differ(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    def tries() -> None:
        for moment in (1, 2):
            send("POST", f"{downstream.url}/charges", json={"at": moment})

    attempt.step_sync("charge", tries)
    assert downstream.keys == [attempt.child_key("charge")] * 2


def test_a_redirect_keeps_its_key(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    attempt.step_sync("charge", send, "POST", f"{downstream.url}/moved")
    assert downstream.seen == [
        ("POST", "/moved", attempt.child_key("charge")),
        ("POST", "/charges", attempt.child_key("charge")),
    ]


@pytest.mark.parametrize("status", [303, 307])
def test_a_redirect_to_another_origin_does_not_show_the_key(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt, status: int
) -> None:
    with scripted_server() as other:
        other.script = [(status, {"location": f"{downstream.url}/charges"})]
        attempt.step_sync("charge", send, "POST", f"{other.url}/moved")
        assert other.keys == [attempt.child_key("charge")]

    second = child_key(attempt.held.id, "charge", 2)
    assert downstream.keys == [None if status == 303 else second]


@pytest.mark.parametrize("library", HTTPX)
def test_a_call_that_is_retried_keeps_the_key_of_its_step(
    library: str, attempt: oncekey.Attempt
) -> None:
    module: Any = importlib.import_module(library)
    retries = Retries(backoff_s=0.001)
    transport = forward.through(retrying(module.HTTPTransport(), retries=retries))
    with scripted_server() as server, module.Client(transport=transport) as client:
        server.script = ["drop", 503]
        attempt.step_sync("charge", lambda: client.post(f"{server.url}/charges").close())
        assert server.keys == [attempt.child_key("charge")] * 3

    with pytest.raises(Misuse, match=r"through\(retrying\(…\)\), not retrying"):
        retrying(forward.through(module.HTTPTransport()))


def test_e47_steps_have_different_keys_and_so_have_their_further_calls(
    send: Send, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    def both() -> None:
        send("POST", f"{downstream.url}/1")
        send("POST", f"{downstream.url}/2")

    for name in ("a", "b"):
        attempt.step_sync(name, both)
    assert len(set(downstream.keys)) == 4


# ---------------------------------------------------------------------- prepared requests


@pytest.mark.parametrize("library", [*HTTPX, "requests"])
def test_a_prepared_request_does_not_carry_one_steps_key_into_another(
    library: str, downstream: Downstream, attempt: oncekey.Attempt
) -> None:
    module = importlib.import_module(library)
    prepared = module.Request("POST", f"{downstream.url}/charges")
    if library == "requests":
        prepared = prepared.prepare()
        client = module.Session()
        client.mount("http://", forward.through(module.adapters.HTTPAdapter()))
    else:
        client = module.Client(transport=forward.through(module.HTTPTransport()))
    with client:
        for name in ("a", "b"):
            attempt.step_sync(name, lambda: client.send(prepared).close())
        client.send(prepared).close()
    assert downstream.keys == [attempt.child_key("a"), attempt.child_key("b"), None]


@pytest.mark.parametrize("library", [*HTTPX, "requests"])
def test_a_request_that_was_retried_outside_of_a_step_gets_the_key_of_the_next(
    library: str, attempt: oncekey.Attempt
) -> None:
    """The retries left their own key in its headers."""
    module: Any = importlib.import_module(library)
    with scripted_server() as server:
        prepared = module.Request("POST", f"{server.url}/charges")
        if library == "requests":
            prepared = prepared.prepare()
            client = module.Session()
            adapter = forward.through(retrying(module.adapters.HTTPAdapter()))
            client.mount("http://", adapter)
        else:
            transport = forward.through(retrying(module.HTTPTransport()))
            client = module.Client(transport=transport)
        with client:
            client.send(prepared).close()
            attempt.step_sync("a", lambda: client.send(prepared).close())
        assert server.keys[1] == attempt.child_key("a") != server.keys[0]


# -------------------------------------------------------------------------------- wrapping


def test_what_is_no_transport_is_refused() -> None:
    with pytest.raises(Misuse, match=r"takes a transport of httpx .* not str"):
        forward.through("https://")


def test_the_rest_of_a_transport_is_still_there() -> None:
    requests = importlib.import_module("requests")
    adapter = forward.through(requests.adapters.HTTPAdapter(max_retries=3))
    assert adapter.max_retries.total == 3
    adapter.close()


def test_no_client_library_is_imported() -> None:
    libraries = "{'httpx', 'httpx2', 'requests'}"
    script = f"import oncekey.client.forward, sys; print({libraries} & {{*sys.modules}})"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.stdout == "set()\n"
