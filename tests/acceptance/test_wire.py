"""Raw bytes against uvicorn, under both of its parsers: nobody is served something else than they
asked for, and what is refused leaves nothing behind (P7).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from oncekey import Policy, single_tenant
from oncekey._core.record import State
from oncekey.web.asgi import IdempotencyMiddleware
from tests.acceptance.client import Client, Exchange
from tests.acceptance.serve import serving
from tests.acceptance.shop import Shop, kept

pytestmark = pytest.mark.slow

PARSERS = ("h11", "httptools")
BODY_BYTES_MAX = 10_000
ANSWER_BYTES_MAX = 2_000_000


@dataclass
class Counter:
    """A shop over its counter: the server, the client and the store."""

    shop: Shop
    client: Client
    store: str

    def refused(self) -> bool:
        """Nothing ran and nothing is kept."""
        return self.shop.runs == 0 and kept(self.store) == []


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


def guarded(shop: Shop, store: str, *, required: bool = True) -> IdempotencyMiddleware:
    policy = Policy(
        required=required, request_bytes_max=BODY_BYTES_MAX, answer_bytes_max=ANSWER_BYTES_MAX
    )
    return IdempotencyMiddleware(shop.app, store=store, tenant=single_tenant, policy=policy)


@pytest.fixture(params=PARSERS)
def counter(request: pytest.FixtureRequest, store: str) -> Iterator[Counter]:
    shop = Shop()
    app = shop.watched(guarded(shop, store))
    with serving(app, http=request.param) as client:
        yield Counter(shop, client, store)


def order(
    *lines: bytes, body: bytes = b'{"tea":1}', length: bytes | None = None, end: bool = True
) -> bytes:
    """A request as it goes over the wire, with these header lines and with any length claimed."""
    claimed = b"%d" % len(body) if length is None else length
    head = [b"POST /orders HTTP/1.1", b"Host: test", b"Content-Type: application/json", *lines]
    head += [b"Content-Length: " + claimed] if claimed else []
    head += [b"Connection: close"] if end else []
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


def said(counter: Counter, raw: bytes) -> tuple[int, bytes]:
    with counter.client.open() as wire:
        wire.send(raw)
        reply = wire.read()
    return reply.status, reply.body


# ------------------------------------------------------------------------------ the key's line


def test_e1_blanks_around_the_key_do_not_count_whichever_parser_reads_it(store: str) -> None:
    shop = Shop()
    lines = [b"Idempotency-Key:k1", b"Idempotency-Key: \t k1 \t ", b"idempotency-KEY:   k1"]
    bodies = set()
    for parser in PARSERS:
        with serving(guarded(shop, store), http=parser) as client:
            for line in lines:
                bodies.add(said(Counter(shop, client, store), order(line)))
    assert bodies == {(201, b'{"run":1,"got":{"tea":1}}')}
    assert shop.runs == len(kept(store)) == 1


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([b"Idempotency-Key: k1", b"Idempotency-Key: k2"], id="e2-two-lines"),
        pytest.param([b"Idempotency-Key: k1", b"idempotency-key: k1"], id="e2-two-equal-lines"),
        pytest.param([b"Idempotency-Key: k1, k2"], id="e2-joined-by-a-proxy"),
        pytest.param([b"Idempotency-Key:"], id="e3-empty"),
        pytest.param([b'Idempotency-Key: ""'], id="e3-quoted-empty"),
        pytest.param([b'Idempotency-Key: "k1";a=1'], id="e4-parameters"),
        pytest.param(["Idempotency-Key: caf\u00e9".encode()], id="e5-utf-8"),
        pytest.param([b"Idempotency-Key: caf\xe9"], id="e5-latin-1"),
        pytest.param([b"Idempotency-Key: k\x001"], id="e6-nul"),
        pytest.param([b"Idempotency-Key: k\x011"], id="e6-control"),
        pytest.param([b"Idempotency-Key: k\x1b[2J"], id="e6-escape"),
        pytest.param([b"Idempotency-Key: k\x7f"], id="e6-delete"),
        pytest.param([b"Idempotency-Key: k\tk"], id="e6-tab-within"),
        pytest.param([b"Idempotency-Key: k1\r\n k2"], id="e7-folded"),
        pytest.param([b"Idempotency-Key: k1\r\n\tk2"], id="e7-folded-by-a-tab"),
        pytest.param([b"Idempotency-Key: " + b"k" * 256], id="e8-too-long"),
        pytest.param([b"Idempotency_Key: k1"], id="e12-underscore"),
        pytest.param([b"Idempotency-Key : k1"], id="blank-before-the-colon"),
        pytest.param([], id="none"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_and_leaves_nothing(
    counter: Counter, lines: list[bytes]
) -> None:
    status, _ = said(counter, order(*lines))
    assert status == 400
    assert counter.refused()
    assert said(counter, order(b"Idempotency-Key: k1"))[0] == 201  # and the server still stands


def test_e12_an_underscore_is_no_way_to_slip_in_another_key(counter: Counter) -> None:
    spoofed = order(b"Idempotency_Key: k2", b"Idempotency-Key: k1", b"IDEMPOTENCY_KEY: k3")
    assert said(counter, spoofed)[0] == 201
    [record] = kept(counter.store)
    assert record.key == "k1"


# ---------------------------------------------------------------------------------- the length

KEY = b"Idempotency-Key: k1"


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(b"4", id="shorter-than-the-body"),
        pytest.param(b"-1", id="negative"),
        pytest.param(b"nine", id="a-word"),
        pytest.param(b"0x9", id="hexadecimal"),
        pytest.param(b"+9", id="signed"),
        pytest.param(b"9\r\nContent-Length: 8", id="two-that-differ"),
    ],
)
def test_a_length_that_lies_is_refused_and_leaves_nothing(counter: Counter, length: bytes) -> None:
    status, answer = said(counter, order(KEY, length=length))
    assert status == 400, answer
    assert counter.refused()
    assert said(counter, order(KEY))[0] == 201


def test_a_length_that_promises_more_is_a_client_that_left(counter: Counter) -> None:
    with counter.client.open() as wire:
        wire.send(order(KEY, length=b"100"))
        wire.finish()
        assert wire.read().status in (0, 400)
    counter.shop.wait_ended(1)
    assert counter.refused()
    assert said(counter, order(KEY))[0] == 201


def test_e25_a_body_over_the_limit_is_refused_by_its_declared_length(counter: Counter) -> None:
    """Before it is read: whoever waits to be told sends nothing."""
    with counter.client.open() as wire:
        wire.send(order(KEY, length=b"%d" % (BODY_BYTES_MAX + 1), body=b""))
        reply = wire.read()
    assert (reply.status, reply.kind) == (413, "request-too-large")
    assert counter.refused()


# --------------------------------------------------------------------------------- chunked bodies

CHUNKED = b"Transfer-Encoding: chunked"


def test_a_chunked_body_is_the_same_request(counter: Counter) -> None:
    first = said(counter, order(KEY, CHUNKED, length=b"", body=chunked(b'{"te', b'a":', b"1}")))
    again = said(counter, order(KEY))
    assert first == again == (201, b'{"run":1,"got":{"tea":1}}')
    other = said(counter, order(KEY, CHUNKED, length=b"", body=chunked(b'{"tea":', b"2}")))
    assert (other[0], counter.shop.runs) == (422, 1)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'9\r\n{"tea":1}\r\nxyz\r\n', id="size-is-no-number"),
        pytest.param(b'-9\r\n{"tea":1}\r\n0\r\n\r\n', id="size-is-negative"),
        pytest.param(b'3\r\n{"tea":1}\r\n0\r\n\r\n', id="size-is-too-small"),
        pytest.param(b'ffffffffffffffffff\r\n{"tea":1}\r\n0\r\n\r\n', id="size-overflows"),
    ],
)
def test_broken_chunks_are_refused_and_leave_nothing(counter: Counter, body: bytes) -> None:
    with counter.client.open() as wire:
        wire.send(order(KEY, CHUNKED, length=b"", body=body))
        wire.finish()
        assert wire.read().status in (0, 400)
    counter.shop.wait_ended(1)
    assert counter.refused()
    assert said(counter, order(KEY))[0] == 201


def test_e25_a_chunked_body_over_the_limit_is_refused(counter: Counter) -> None:
    parts = [b'{"tea":"', b"a" * BODY_BYTES_MAX, b'"}']
    status, _ = said(counter, order(KEY, CHUNKED, length=b"", body=chunked(*parts)))
    assert status == 413
    assert counter.refused()


def test_a_body_with_a_length_and_chunks_is_never_read_by_its_length(counter: Counter) -> None:
    """The way to smuggle: two programs in a row that disagree where a request ends."""
    smuggled = order(KEY, CHUNKED, length=b"4", body=chunked(b'{"tea":1}'))
    status, answer = said(counter, smuggled)
    if status == 201:
        assert json.loads(answer)["got"] == {"tea": 1}
    else:
        assert status == 400
        assert counter.refused()


# ------------------------------------------------------------------------------- one connection


def test_the_same_key_twice_in_one_breath_runs_once(counter: Counter) -> None:
    with counter.client.open() as wire:
        wire.send(order(KEY, end=False) + order(KEY, end=False) + order(KEY))
        replies = [wire.read() for _ in range(3)]
    assert [reply.status for reply in replies] == [201, 201, 201]
    assert [reply.replayed for reply in replies] == [False, True, True]
    assert {reply.body for reply in replies} == {b'{"run":1,"got":{"tea":1}}'}
    assert counter.shop.runs == 1


def test_a_refusal_does_not_spoil_the_next_request_on_its_connection(counter: Counter) -> None:
    with counter.client.open() as wire:
        wire.send(order(b"Idempotency-Key: k1, k2", end=False) + order(KEY))
        assert wire.read().kind == "invalid-key"
        assert wire.read().status == 201


def test_a_request_that_expects_to_be_asked_is_asked(counter: Counter) -> None:
    head, _, body = order(KEY, b"Expect: 100-continue").partition(b"\r\n\r\n")
    with counter.client.open() as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.read().status == 100
        wire.send(body)
        assert wire.read().status == 201


# ------------------------------------------------------------------------------ clients that leave


def leave(wire: Exchange, *, politely: bool) -> None:
    if politely:
        wire.finish()
    else:
        wire.reset()


@pytest.mark.parametrize("politely", [True, False], ids=["fin", "rst"])
def test_p7_a_client_that_leaves_within_its_body_spends_nothing(
    counter: Counter, politely: bool
) -> None:
    with counter.client.open() as wire:
        wire.send(order(KEY)[:-5])
        leave(wire, politely=politely)
        counter.shop.wait_ended(1)
    assert counter.refused()
    assert said(counter, order(KEY, body=b'{"tea":2}'))[0] == 201


@pytest.mark.parametrize("politely", [True, False], ids=["fin", "rst"])
def test_e35_a_client_that_leaves_while_its_handler_runs_finds_the_answer_later(
    counter: Counter, politely: bool
) -> None:
    counter.shop.handler = counter.shop.held
    with counter.client.open() as wire:
        wire.send(order(KEY))
        assert counter.shop.started.wait(20)
        leave(wire, politely=politely)
        counter.shop.go_on.set()
        counter.shop.wait_ended(1)
    [record] = kept(counter.store)
    assert record.state is State.COMPLETED
    with counter.client.open() as wire:
        wire.send(order(KEY))
        retried = wire.read()
    assert retried.replayed
    assert retried.json() == {"run": 1, "got": {"tea": 1}}
    assert counter.shop.runs == 1


def test_e36_e37_an_answer_that_was_cut_is_whole_when_it_is_asked_for_again(
    counter: Counter,
) -> None:
    page = bytes(range(256)) * 4096  # one MiB

    async def large(request: Request) -> Response:
        return Response(page)

    counter.shop.handler = large
    with counter.client.open() as wire:
        wire.send(order(KEY))
        begun = wire.read_some(1000)
        wire.reset()
    with counter.client.open() as wire:
        wire.send(order(KEY))
        again = wire.read()
    assert begun.startswith(b"HTTP/1.1 200")
    assert again.body == page
    assert again.replayed
    assert counter.shop.runs == 1


def test_e59_e60_a_client_that_leaves_an_endless_answer_learns_that_it_was_done(
    counter: Counter,
) -> None:
    """What is over the limit flows; that its reader left does not change what happened."""

    async def endless(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(64):
                yield b"x" * (ANSWER_BYTES_MAX // 16)

        return StreamingResponse(parts(), headers={"location": "/orders/1"})

    counter.shop.handler = endless
    with counter.client.open() as wire:
        wire.send(order(KEY))
        assert wire.read_some(1000).startswith(b"HTTP/1.1 200")
        wire.reset()
    counter.shop.wait_ended(1)
    with counter.client.open() as wire:
        wire.send(order(KEY))
        told = wire.read()
    assert (told.status, told.kind) == (409, "answer-not-kept")
    assert told.header("location") == "/orders/1"
    assert counter.shop.runs == 1
