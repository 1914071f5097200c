"""One attempt at a delivery, against real sockets."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from oncekey._system.clock import FakeClock
from oncekey.errors import Misuse
from oncekey.webhooks import (
    LOOPBACK,
    Answered,
    Destinations,
    NotSent,
    Sender,
    SendLimits,
    Unanswered,
)
from tests.webhooks.listeners import PATIENCE_S, certificates, listening

INSIDE = Destinations(https_required=False, allowed=LOOPBACK)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class HastyClock(FakeClock):
    """Every look at it takes a second: time passes with what is done, not with how fast."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def sender(**given: Any) -> Sender:
    return Sender(INSIDE, **given)


def answer(status: str, *headers: str, body: str = "") -> bytes:
    lines = (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", body)
    return "\r\n".join(lines).encode()


# ------------------------------------------------------------------------------ what is sent


def test_the_request_is_as_it_was_given() -> None:
    with listening(OK) as there:
        sent = sender().send(f"{there.url}?a=b", {"Content-Type": "text/x"}, b"hi")
    assert isinstance(sent, Answered)
    assert (sent.status, sent.excerpt, sent.is_delivered) == (200, b"ok", True)
    assert there.requests == [
        b"POST /hook?a=b HTTP/1.1\r\n"
        b"Host: 127.0.0.1:%d\r\n"
        b"Content-Length: 2\r\nConnection: close\r\n"
        b"Content-Type: text/x\r\n\r\nhi" % there.port
    ]


def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 4_096
    with listening(OK) as there:
        assert isinstance(sender().send(there.url, {}, body), Answered)
    assert there.requests[0].endswith(b"\r\n\r\n" + body)
    with pytest.raises(Misuse, match="body_bytes_max"):
        sender().send(there.url, {}, body + b"!")


@pytest.mark.parametrize(
    ("name", "text"),
    [("X", "a\r\nY: b"), ("X\r\nY", "b"), ("X:", "b"), ("", "b"), ("host", "other"), ("X", "☃")],
)
def test_headers_cannot_smuggle_in_others(name: str, text: str) -> None:
    with pytest.raises(Misuse, match="header"):
        sender().send("http://127.0.0.1:9/", {name: text}, b"")


# --------------------------------------------------------------------- to the checked address


def test_the_name_is_looked_up_once_and_its_first_answer_is_used() -> None:
    """A name whose second answer leads inside: there is no second question."""
    asked: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    with listening(OK) as there:
        url = f"http://hooks.example.com:{there.port}/hook"
        assert isinstance(sender(lookup=lookup).send(url, {}, b""), Answered)
    assert asked == ["hooks.example.com"]
    assert b"Host: hooks.example.com:%d\r\n" % there.port in there.requests[0]


@pytest.mark.parametrize("leads_to", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:7f00:1"])
def test_a_name_that_leads_inside_gets_no_connection(leads_to: str) -> None:
    with listening(OK) as there:
        strict = Sender(Destinations(https_required=False), lookup=lambda *_: [leads_to])
        sent = strict.send(f"http://hooks.example.com:{there.port}/", {}, b"")
    assert isinstance(sent, NotSent)
    assert "not a public address" in sent.reason
    assert there.requests == []


def test_forbidden_urls_are_not_even_looked_up() -> None:
    looked: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        looked.append(host)
        return ["1.1.1.1"]

    strict = Sender(lookup=lookup)
    for url in ("http://example.com/", "https://127.0.0.1/", "https://[::1]/", "nonsense"):
        assert isinstance(strict.send(url, {}, b""), NotSent)
    assert looked == []


def test_what_is_said_of_a_url_when_it_is_registered() -> None:
    leads_to: dict[str, list[str]] = {"in.example": ["10.0.0.1"], "out.example": ["1.1.1.1"]}
    strict = Sender(lookup=lambda host, port: leads_to.get(host, []))
    assert strict.objection("https://out.example/") is None
    assert strict.objection("https://later.example/") is None  # it has no address yet
    assert "10.0.0.1" in (strict.objection("https://in.example/") or "")
    assert "https://" in (strict.objection("http://out.example/") or "")


def test_tls_is_by_the_name_of_the_url(tmp_path: Path) -> None:
    server, client = certificates(tmp_path, "hooks.example.com")
    with listening(OK, tls=server) as there:
        secure = Sender(Destinations(allowed=LOOPBACK), lookup=lambda *_: ["127.0.0.1"], tls=client)
        sent = secure.send(f"https://hooks.example.com:{there.port}/", {}, b"")
        assert isinstance(sent, Answered), sent
        other = secure.send(f"https://other.example.com:{there.port}/", {}, b"")
        assert isinstance(other, NotSent)
        assert "certificate" in other.reason
    assert there.server_names == ["hooks.example.com", "other.example.com"]
    assert len(there.requests) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    server, _ = certificates(tmp_path, "hooks.example.com")
    with listening(OK, tls=server) as there:
        plain = Sender(Destinations(allowed=LOOPBACK), lookup=lambda *_: ["127.0.0.1"])
        sent = plain.send(f"https://hooks.example.com:{there.port}/", {}, b"")
    assert isinstance(sent, NotSent)
    assert there.requests == []


def test_the_next_address_is_tried_where_nobody_listens() -> None:
    with listening(OK) as there:
        both = sender(lookup=lambda *_: ["127.0.0.77", "127.0.0.1"])
        assert isinstance(both.send(f"http://two.example:{there.port}/", {}, b""), Answered)
        none = sender(lookup=lambda *_: ["127.0.0.77"])
        sent = none.send(f"http://one.example:{there.port}/", {}, b"")
    assert isinstance(sent, NotSent)
    assert "Refused" in sent.reason


def test_a_name_that_does_not_exist() -> None:
    def lookup(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    sent = sender(lookup=lookup).send("http://nowhere.example/", {}, b"")
    assert isinstance(sent, NotSent)
    assert "not known" in sent.reason


def test_a_name_that_is_not_looked_up_in_time() -> None:
    end = threading.Event()

    def lookup(host: str, port: int) -> list[str]:
        end.wait(PATIENCE_S)
        return []

    limits = SendLimits(connect_s=0.05)
    sent = sender(lookup=lookup, limits=limits).send("http://slow.example/", {}, b"")
    end.set()
    assert isinstance(sent, NotSent)
    assert "in time" in sent.reason


# ------------------------------------------------------------------------------- what comes back


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 Other", "307 T", "308 P"])
def test_redirects_are_never_followed(status: str) -> None:
    with listening(OK) as trap:
        with listening(answer(status, f"Location: {trap.url}")) as there:
            sent = sender().send(there.url, {}, b"")
        assert isinstance(sent, Answered)
        assert not sent.is_delivered
    assert trap.requests == []
    assert len(there.requests) == 1


@pytest.mark.parametrize(
    ("status", "is_delivered", "is_gone"),
    [
        *(("200 OK", True, False), ("204 No Content", True, False), ("299 X", True, False)),
        *(("400 Bad", False, False), ("410 Gone", False, True), ("500 Oh", False, False)),
    ],
)
def test_what_answers_mean(status: str, is_delivered: bool, is_gone: bool) -> None:
    with listening(answer(status)) as there:
        sent = sender().send(there.url, {}, b"")
    assert isinstance(sent, Answered)
    assert (sent.is_delivered, sent.is_gone) == (is_delivered, is_gone)


def test_an_interim_answer_is_not_the_answer() -> None:
    """What was delivered would be sent again for days."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nRetry-After: 9\r\n\r\n"
    with listening(b"HTTP/1.1 100 Continue\r\n\r\n" + 2 * hints + OK) as there:
        sent = sender().send(there.url, {}, b"")
    assert isinstance(sent, Answered)
    assert (sent.status, sent.excerpt, sent.retry_after_s) == (200, b"ok", None)


def test_interim_answers_without_end_are_cut_off() -> None:
    with listening(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10_000) as there:
        sent = sender().send(there.url, {}, b"")
    assert isinstance(sent, Unanswered)


def test_retry_after_is_read_and_bounded() -> None:
    with listening(answer("503 Later", "Retry-After: 7")) as there:
        sent = sender().send(there.url, {}, b"")
        assert isinstance(sent, Answered)
        assert sent.retry_after_s == 7.0
    with listening(answer("503 Later", "Retry-After: 999999999")) as there:
        sent = sender().send(there.url, {}, b"")
        assert isinstance(sent, Answered)
        assert sent.retry_after_s == 3600.0


def test_only_the_beginning_of_a_long_answer_is_read() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(100_000):
            connection.sendall(b"x" * 10_000)  # ends when the other side has gone

    with listening(endless) as there:
        sent = sender(limits=SendLimits(excerpt_bytes_max=100)).send(there.url, {}, b"")
    assert isinstance(sent, Answered)
    assert sent.excerpt == b"x" * 100


def test_a_head_without_end_is_cut_off() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for n in range(100_000):
            connection.sendall(b"X-%d: y\r\n" % n)

    limits = SendLimits(head_bytes_max=400, excerpt_bytes_max=1)
    with listening(endless) as there:
        sent = sender(limits=limits).send(there.url, {}, b"")
    assert isinstance(sent, Unanswered)
    assert "limit" in sent.reason


def test_a_head_that_drips_is_cut_off_in_time() -> None:
    with listening(lambda connection: drip(connection, b"")) as there:
        sent = sender(clock=HastyClock()).send(there.url, {}, b"")
    assert isinstance(sent, Unanswered)
    assert "too long" in sent.reason


def test_a_body_that_drips_is_cut_off_and_its_status_counts() -> None:
    with listening(lambda connection: drip(connection, b"HTTP/1.1 200 OK\r\n\r\n")) as there:
        sent = sender(clock=HastyClock()).send(there.url, {}, b"")
    assert isinstance(sent, Answered)
    assert sent.is_delivered
    assert sent.excerpt.strip(b"x") == b""


def drip(connection: socket.socket, first: bytes) -> None:
    """A byte now and then: no single read is slow."""
    connection.sendall(first)
    pause = threading.Event()
    for _ in range(1_000):
        connection.sendall(b"x")  # ends when the other side has gone
        pause.wait(0.002)


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\0" * 99])
def test_what_is_no_answer(said: bytes) -> None:
    with listening(said) as there:
        sent = sender().send(there.url, {}, b"")
    assert isinstance(sent, Unanswered)


def test_a_receiver_that_does_not_read_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        limits = SendLimits(total_s=0.1, body_bytes_max=50_000_000)
        sent = sender(limits=limits, clock=FakeClock()).send(url, {}, b"x" * 50_000_000)
    assert isinstance(sent, Unanswered)
    assert "too long" in sent.reason


def test_limits_that_are_none() -> None:
    with pytest.raises(Misuse, match="total_s"):
        SendLimits(total_s=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"destinations": "https://example.com"}, r"destinations=… takes a Destinations\(…\)"),
        ({"limits": {"total_s": 1}}, r"limits=… takes a SendLimits\(…\), not a dict"),
    ],
)
def test_settings_of_another_kind_are_refused_before_the_first_webhook(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(Misuse, match=said):
        Sender(**given)


def test_a_body_that_is_no_bytes_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Misuse, match="a webhook's body is bytes, as it was signed, not a str"):
        Sender().send("https://example.com/hook", {}, "text")  # type: ignore[arg-type]
