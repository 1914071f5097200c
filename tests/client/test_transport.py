"""The transport under every library, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import logging
import subprocess
import sys
import threading
import uuid
from typing import Any

import pytest

from oncekey._core.key import short_hash
from oncekey._system.clock import FakeClock
from oncekey.client import Counters, Counts, Retries, RetryBudget, outcome_of, retrying
from oncekey.client.forward import through
from oncekey.errors import Mismatch, Misuse
from tests.client.hostile_server import IN_FLIGHT, MISMATCH
from tests.client.libraries import QUICK, library, sender, server
from tests.client.scripted_server import ScriptedServer, scripted_server

__all__ = ["library", "server"]


# ------------------------------------------------------------------------------------- retried


@pytest.mark.parametrize(
    "fault", ["drop", "truncate", 500, 503, 408, 425, 429, (409, {}, IN_FLIGHT)], ids=str
)
def test_what_may_pass_is_sent_again_with_the_same_key_and_body(
    library: str, server: ScriptedServer, fault: Any
) -> None:
    server.script = [fault, fault]
    with sender(library) as send:
        answer = send("POST", f"{server.url}/orders", json={"sku": "mug"})

    assert (answer.status_code, answer.json()) == (201, {"n": 1})
    assert len(server.seen) == 3
    assert len({(seen.key, seen.body) for seen in server.seen}) == 1
    assert uuid.UUID(server.keys[0]).version == 7
    told = outcome_of(answer)
    assert told is not None
    assert (told.key, told.attempts, told.replayed) == (server.keys[0], 3, False)


def test_every_request_has_a_key_of_its_own(library: str, server: ScriptedServer) -> None:
    with sender(library) as send:
        for _ in range(3):
            send("POST", f"{server.url}/orders", json={"sku": "mug"})

    assert len(set(server.keys)) == 3


@pytest.mark.parametrize("status", [400, 402, 404, 409, 422])
def test_other_refusals_are_not_sent_again(
    library: str, server: ScriptedServer, status: int
) -> None:
    server.script = [status]
    with sender(library) as send:
        assert send("POST", f"{server.url}/orders").status_code == status

    assert len(server.seen) == 1


def test_a_mismatch_is_raised_at_once(library: str, server: ScriptedServer) -> None:
    server.script = [(422, {}, MISMATCH)]
    with sender(library) as send, pytest.raises(Mismatch, match="belongs to another request"):
        send("POST", f"{server.url}/orders")

    assert len(server.seen) == 1


def test_in_the_end_the_last_answer_is_the_answer(library: str, server: ScriptedServer) -> None:
    server.script = [503] * 9
    with sender(library, retries=Retries(attempts_max=4, backoff_s=0.001)) as send:
        answer = send("POST", f"{server.url}/orders")

    assert (answer.status_code, answer.json()) == (503, {"n": 1})
    told = outcome_of(answer)
    assert told is not None
    assert (told.attempts, told.gave_up) == (4, "4 attempts were made")


UNKNOWN = {"type": "urn:oncekey:problem:outcome-unknown", "title": "Nobody knows"}


@pytest.mark.parametrize(
    "answered",
    [
        (500, {"Idempotency-Outcome": "unknown", "Retry-After": "0"}, {"n": 0}),
        (409, {"X-Should-Retry": "false"}, UNKNOWN),
        (409, {}, UNKNOWN),
    ],
)
def test_what_nobody_knows_is_no_outcome(
    library: str, server: ScriptedServer, answered: Any
) -> None:
    """It is asked once, and whoever records outcomes by `gave_up` keeps its key."""
    server.script = [answered]
    with sender(library) as send:
        answer = send("POST", f"{server.url}/orders")

    assert (answer.status_code, len(server.seen)) == (answered[0], 1)
    told = outcome_of(answer)
    assert told is not None
    assert told.gave_up == "the server says that nobody knows what became of it"


def test_in_the_end_an_error_is_the_library_s_own_and_says_what_to_do(
    library: str, server: ScriptedServer
) -> None:
    server.script = ["drop"] * 9
    module = importlib.import_module(library.removeprefix("async "))
    base = module.ConnectionError if library == "requests" else module.TransportError
    with (
        sender(library, retries=Retries(attempts_max=3, backoff_s=0.001)) as send,
        pytest.raises(base) as raised,
    ):
        send("POST", f"{server.url}/orders")

    (note,) = raised.value.__notes__
    assert "in 3 attempts it was sent, and nobody knows whether it was carried out" in note
    assert f"with the same key (key={short_hash(server.keys[0] or '')}" in note
    assert server.keys[0] not in note


def test_a_replay_is_surfaced(library: str, server: ScriptedServer) -> None:
    expires = "Mon, 16 Nov 2026 00:00:00 GMT"
    server.script = ["truncate", (201, {"Idempotent-Replayed": "true"})]
    server.script[1][1]["Idempotency-Expires"] = expires
    with sender(library) as send:
        told = outcome_of(send("POST", f"{server.url}/orders"))

    assert told is not None
    assert (told.replayed, told.expires, told.attempts) == (True, expires, 2)


# --------------------------------------------------------------------------------------- left alone


def test_what_changes_nothing_is_left_alone(library: str, server: ScriptedServer) -> None:
    server.script = [503]
    with sender(library) as send:
        answer = send("GET", f"{server.url}/orders")

    assert (answer.status_code, server.keys, outcome_of(answer)) == (503, [None], None)


def test_the_caller_s_key_is_respected(library: str, server: ScriptedServer) -> None:
    server.script = ["drop"]
    with sender(library) as send:
        send("POST", f"{server.url}/orders", headers={"idempotency-key": "order-17"})

    assert server.keys == ["order-17", "order-17"]


def test_one_key_for_two_requests_is_warned_of(
    library: str, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    mine = {"headers": {"Idempotency-Key": "order-17"}}
    with sender(library) as send, caplog.at_level(logging.WARNING, "oncekey.client"):
        send("POST", f"{server.url}/orders", json={"a": 1, "b": 2}, **mine)
        send("POST", f"{server.url}/orders", json={"b": 2, "a": 1}, **mine)
        assert not caplog.records
        send("POST", f"{server.url}/orders", json={"a": 2}, **mine)

    assert "sent before with another request" in caplog.text
    assert "order-17" not in caplog.text


# ----------------------------------------------------------------------------------------- bodies


def _stream(library: str) -> Any:
    async def awaited() -> Any:
        yield b"abc"
        yield b"def"

    return awaited() if library.startswith("async") else iter([b"abc", b"def"])


def test_a_stream_is_sent_once_and_the_error_says_why(library: str, server: ScriptedServer) -> None:
    server.script = ["drop"]
    body = {"data" if library == "requests" else "content": _stream(library)}
    with sender(library) as send, pytest.raises(Exception, match=r".") as raised:
        send("POST", f"{server.url}/files", **body)

    assert [(seen.body, seen.key is None) for seen in server.seen] == [(b"abcdef", False)]
    assert "its body is a stream, which cannot be sent twice" in raised.value.__notes__[0]


def test_a_file_that_is_small_enough_is_sent_again(library: str, server: ScriptedServer) -> None:
    server.script = ["drop", 503]
    with sender(library) as send:
        send("POST", f"{server.url}/files", files={"f": ("a.txt", io.BytesIO(b"contents"))})

    assert len(server.seen) == 3
    assert len({seen.body for seen in server.seen}) == 1
    assert b"contents" in server.seen[2].body


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-length": None}, {"content-type": "text/event-stream"}],
    ids=["length known", "length unknown", "endless"],
)
def test_an_answer_that_is_too_large_to_keep_is_read_by_the_caller(
    library: str, server: ScriptedServer, headers: dict[str, str | None]
) -> None:
    large = b"x" * 300_000
    server.script = [503, (200, headers, large)]
    with sender(library, answer_bytes_max=1000) as send:
        assert send("POST", f"{server.url}/a").content == large

    assert len(server.seen) == 2


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_answers_that_are_not_read_give_their_connection_back(
    library: str, server: ScriptedServer
) -> None:
    server.script = [(503, {}, b"x" * 300_000)] * 3
    module = importlib.import_module(library)
    inner = module.HTTPTransport(limits=module.Limits(max_connections=1))
    transport = retrying(inner, retries=QUICK, answer_bytes_max=1000)
    with module.Client(transport=transport, timeout=2.0) as client:
        assert client.post(f"{server.url}/a").status_code == 201

    assert len(server.seen) == 4


def test_an_answer_that_drips_is_cut_off_when_the_time_is_over(
    library: str, server: ScriptedServer
) -> None:
    """Each byte comes in time; the rest would, and never all of it."""
    clock, left = FakeClock(), threading.Event()

    def drip(handler: Any) -> None:
        handler.send_response(201)
        handler.send_header("content-length", "1000")
        handler.end_headers()
        handler.wfile.write(b"{")
        clock.advance(100.0)
        handler.wfile.write(b" ")
        handler.connection.settimeout(25.0)
        with contextlib.suppress(ConnectionError):
            assert handler.connection.recv(1) == b""  # it hung up
        left.set()

    server.script = [drip]
    with (
        sender(library, clock=clock, retries=Retries(budget_s=90.0)) as send,
        pytest.raises(Exception, match="the time for all attempts was over") as late,
    ):
        send("POST", f"{server.url}/orders", timeout=30.0)

    assert "same key" in late.value.__notes__[0]
    assert left.wait(25.0)
    assert len(server.seen) == 1


def test_redirects_share_one_budget(library: str, server: ScriptedServer) -> None:
    clock = FakeClock()

    def slowly(handler: Any) -> None:
        clock.advance(50.0)
        handler.send_response(307)
        handler.send_header("location", "/again")
        handler.send_header("content-length", "0")
        handler.end_headers()

    server.script = [slowly] * 10
    with (
        sender(library, clock=clock, retries=Retries(budget_s=90.0)) as send,
        pytest.raises(Exception, match="the time for all attempts was over"),
    ):
        send("POST", f"{server.url}/orders")

    assert len(server.seen) == 2
    assert len(set(server.keys)) == 1


def test_the_same_request_sent_again_is_a_retry(server: ScriptedServer) -> None:
    httpx2, requests = (importlib.import_module(name) for name in ("httpx2", "requests"))
    with httpx2.Client(transport=retrying(httpx2.HTTPTransport())) as client:
        request = client.build_request("POST", f"{server.url}/orders")
        for _ in range(2):
            client.send(request)
    with requests.Session() as session:
        session.mount("http://", retrying(requests.adapters.HTTPAdapter()))
        prepared = session.prepare_request(requests.Request("POST", f"{server.url}/orders"))
        for _ in range(2):
            session.send(prepared).close()

    first, again, other, other_again = server.keys
    assert first == again != other == other_again
    assert None not in server.keys


# --------------------------------------------------------------------------------------- redirects


def test_a_redirect_keeps_the_key_within_its_origin_and_hides_it_elsewhere(
    library: str, server: ScriptedServer
) -> None:
    with scripted_server() as other, sender(library) as send:
        server.script = [(307, {"location": "/moved"}), (308, {"location": f"{other.url}/away"})]
        answer = send("POST", f"{server.url}/orders", data={"a": "1"})
        assert answer.status_code == 201
        assert (other.keys, other.seen[0].body) == ([None], b"a=1")

    assert [seen.path for seen in server.seen] == ["/orders", "/moved"]
    assert len(set(server.keys)) == 1
    assert server.keys[0] is not None


def test_a_read_that_follows_is_none_of_its_attempts(library: str, server: ScriptedServer) -> None:
    """A 303 says that it was done; what is read after it needs no key and no retry of ours."""
    server.script = [503, (303, {"location": "/receipt"}), 503]
    with sender(library) as send:
        answer = send("POST", f"{server.url}/orders")
        assert answer.status_code == 503

    assert [seen.method for seen in server.seen] == ["POST", "POST", "GET"]
    first, again, read = server.keys
    assert first == again
    assert read is None


def test_attempts_are_counted_over_all_redirects(library: str, server: ScriptedServer) -> None:
    """Also once nothing is left to count for the host's own budget."""
    server.script = [503, *[(307, {"location": "/moved"})] * 3, 503, 201]
    with sender(library, budget=RetryBudget(tokens_per_request=20.0)) as send:
        told = outcome_of(send("POST", f"{server.url}/orders"))
        assert told is not None
        assert told.attempts == 3

        server.script = [503, *[(307, {"location": "/moved"})] * 3, 201]
        told = outcome_of(send("POST", f"{server.url}/orders"))
        assert told is not None
        assert told.attempts == 2


def test_a_key_of_the_caller_s_own_is_hidden_as_well(library: str, server: ScriptedServer) -> None:
    with scripted_server() as other, sender(library) as send:
        server.script = [(303, {"location": f"{other.url}/receipt"})]
        send("POST", f"{server.url}/orders", headers={"Idempotency-Key": "order-17"})
        assert [(seen.method, seen.key) for seen in other.seen] == [("GET", None)]


# ------------------------------------------------------------------------------------- and besides


def test_attempts_are_counted(library: str, server: ScriptedServer) -> None:
    server.script = ["drop", 503, (201, {"Idempotent-Replayed": "true"}), (422, {}, MISMATCH)]
    counters = Counters()
    with sender(library, hooks=[counters]) as send:
        send("POST", f"{server.url}/orders")
        with pytest.raises(Mismatch):
            send("POST", f"{server.url}/orders")

    assert counters.read() == Counts(requests=2, attempts=4, retries=2, replays=1, mismatches=1)


def test_what_is_no_transport_is_refused() -> None:
    with pytest.raises(Misuse, match=r"retrying\(…\) takes a transport of httpx or httpx2"):
        retrying(object())


@pytest.mark.parametrize("wrap", [retrying, through])
def test_a_transport_for_another_kind_of_client_is_told_so(wrap: Any) -> None:
    httpx2, requests = map(importlib.import_module, ("httpx2", "requests"))
    url = "http://127.0.0.1:9/"
    wrong = wrap(httpx2.AsyncHTTPTransport())
    for ask in (lambda: httpx2.Client(transport=wrong).post(url), wrong.__enter__):
        with pytest.raises(Misuse, match=r"AsyncHTTPTransport is no transport for httpx\.Client"):
            ask()
    awaited = httpx2.AsyncClient(transport=wrap(httpx2.HTTPTransport()))
    with pytest.raises(Misuse, match=r"HTTPTransport is no transport for httpx\.AsyncClient"):
        asyncio.run(awaited.__aenter__())
    with requests.Session() as session:
        session.mount("http://", wrap(httpx2.HTTPTransport()))
        with pytest.raises(Misuse, match=r"HTTPTransport is no transport for session\.mount"):
            session.post(url)
    client = httpx2.Client(transport=wrap(requests.adapters.HTTPAdapter()))
    with pytest.raises(Misuse, match=r"HTTPAdapter is no transport for httpx\.Client"):
        client.post(url)


@pytest.mark.parametrize(("library", "kind"), [("httpx2", "Client"), ("requests", "Session")])
def test_a_whole_client_is_refused_whose_requests_would_leave_without_keys(
    library: str, kind: str
) -> None:
    with getattr(importlib.import_module(library), kind)() as whole:
        with pytest.raises(Misuse, match=rf"retrying\(…\) was given a {kind}"):
            retrying(whole)
        with pytest.raises(Misuse, match=rf"forward.through\(…\) was given a {kind}"):
            through(whole)


@pytest.mark.parametrize("options", [{"retries": 3}, {"budget": 20.0}])
def test_a_number_of_retries_is_refused_before_the_first_request(options: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=r"it takes a Retr(ies|yBudget)"):
        retrying(importlib.import_module("httpx2").HTTPTransport(), **options)


@pytest.mark.parametrize("methods", ["POST", ["POST", None]])
def test_a_method_that_is_no_list_of_them_is_refused(methods: Any) -> None:
    """Each of its letters counted as one, and requests left without keys and without retries."""
    with pytest.raises(Misuse, match=r"methods=.*: takes a list of names, such as \['POST'\]"):
        retrying(importlib.import_module("httpx2").HTTPTransport(), methods=methods)


def test_no_library_is_imported() -> None:
    program = (
        "import sys, oncekey.client; "
        "assert not {'httpx', 'httpx2', 'requests', 'urllib3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
